#include <parley/ops/ring_attention.hpp>

#include <parley/ops/rank.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

namespace parley::ops {

using runtime::errc;

attention rank::declare(const ring_attention& op) {
  const std::vector<rank_id> order = named_or_first(op.ranks, world_size());
  point_to_point messages = messages_of(op, order);
  const std::size_t size = order.size();
  for (std::size_t i = 0; i < size; ++i) messages.edges.emplace_back(order[i], order[(i + 1) % size]);
  attention handle;
  handle.title_ = "op " + op.name + ", rank " + std::to_string(id());
  handle.ring_ = declare(messages);
  const auto mine = std::find(order.begin(), order.end(), id());
  if (mine == order.end()) return handle;
  handle.size_ = size;
  handle.place_ = static_cast<std::uint64_t>(mine - order.begin());
  handle.next_ = order[(handle.place_ + 1) % size];
  handle.previous_ = order[(handle.place_ + size - 1) % size];
  if (size == 1) return handle;
  neighbours::options around{.op = op.name, .listed = {handle.previous_, handle.next_}, .timeout_ns = op.timeout_ns};
  handle.around_ = &attach(std::make_unique<neighbours>(services_, handle.ring_, std::move(around)));
  return handle;
}

namespace {

double scale_of(const attention_shape& s) {
  return s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.dimensions));
}

std::string words_of(const attention_shape& s, std::string_view type) {
  char scale[32];
  std::snprintf(scale, sizeof scale, "%.9g", scale_of(s));
  return std::string(type) + ", " + std::to_string(s.heads) + " heads of " + std::to_string(s.dimensions) +
         " dimensions, " + (s.causal ? "causal" : "full") + ", scale " + scale;
}

}  // namespace

std::uint32_t attention::begin(const attention_shape& shape, std::string_view type) {
  if (around_ == nullptr) return 0;
  around_->throw_refused();
  std::uint64_t terms = shape.heads;
  const auto add = [&terms](std::uint64_t more) { terms = runtime::mix(terms ^ runtime::mix(more + 1)); };
  add(shape.dimensions);
  add(shape.causal ? 1 : 0);
  add(std::bit_cast<std::uint64_t>(scale_of(shape)));
  for (const char c : type) add(static_cast<unsigned char>(c));
  around_->call(terms, [&] { return words_of(shape, type); });
  around_->expect(previous_);
  return static_cast<std::uint32_t>(terms) & ~1U;
}

// The messages of a call that was refused end in many ways.
void attention::end(const std::exception_ptr& thrown) const {
  if (around_ != nullptr) around_->throw_refused();
  std::rethrow_exception(thrown);
}

void attention::check(const attention_shape& shape, std::initializer_list<std::size_t> sizes) const {
  if (size_ == 0) runtime::raise({errc::bad_argument, title_ + ": this rank has no part in it"});
  if (shape.heads == 0 || shape.rows == 0 || shape.dimensions == 0)
    runtime::raise({errc::bad_argument, title_ + ": heads, rows and dimensions are at least 1"});
  const auto fits = [&](std::size_t elements) { return elements == shape.elements(); };
  if (std::all_of(sizes.begin(), sizes.end(), fits)) return;
  std::string found;
  for (const std::size_t n : sizes) found += (found.empty() ? "" : ", ") + std::to_string(n);
  runtime::raise({errc::bad_argument, title_ + ": q, k, v and out have " + found + " elements where the shape has " +
                                          std::to_string(shape.elements())});
}

void attention::check_came(std::uint64_t bytes, std::uint64_t expected) const {
  around_->heard(previous_);
  if (bytes == expected) return;
  runtime::raise({errc::bad_argument, title_ + ": rank " + std::to_string(previous_) + " sent " +
                                          std::to_string(bytes) + " bytes of keys or values where " +
                                          std::to_string(expected) + " were expected; give all ranks the same shape"});
}

}  // namespace parley::ops
