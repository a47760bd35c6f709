#include <parley/ring_attention.hpp>

#include <parley/ops/core/call_guard.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/edges/message_options.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

ring_attention::ring_attention(rank& self, const ring_attention_options& op) {
  const std::vector<rank_id> order = named_or_first(op.ranks, self.world_size());
  p2p_options messages = messages_of(op, order);
  const std::size_t size = order.size();
  for (std::size_t i = 0; i < size; ++i) messages.edges.emplace_back(order[i], order[(i + 1) % size]);
  title_ = "op " + op.name + ", rank " + std::to_string(self.id());
  ring_ = p2p(self, messages);
  memory_ = op.memory;
  const auto mine = std::find(order.begin(), order.end(), self.id());
  if (mine == order.end()) return;
  size_ = size;
  place_ = static_cast<std::uint64_t>(mine - order.begin());
  next_ = order[(place_ + 1) % size];
  previous_ = order[(place_ + size - 1) % size];
  if (size == 1) return;
  std::string ranks;
  for (const rank_id r : order) ranks += (ranks.empty() ? "" : " ") + std::to_string(r);
  neighbours::options around{.op = op.name,
                             .listed = {previous_, next_},
                             .timeout_ns = op.timeout.count(),
                             .declared = {{"ranks in the order", ranks}}};
  around_ = &*self.attach(std::make_unique<neighbours>(self.services(), ring_.edges(), std::move(around)));
}

namespace {

void check_shape(const std::string& title, const attention_shape& shape) {
  if (shape.heads == 0 || shape.rows == 0 || shape.dimensions == 0)
    runtime::raise({errc::bad_argument, title + ": heads, rows and dimensions are at least 1"});
}

void check_sizes(const std::string& title, const attention_shape& shape, std::initializer_list<std::size_t> sizes) {
  const auto fits = [&](std::size_t elements) { return elements == shape.elements(); };
  if (std::all_of(sizes.begin(), sizes.end(), fits)) return;
  std::string found;
  for (const std::size_t n : sizes) found += (found.empty() ? "" : ", ") + std::to_string(n);
  runtime::raise({errc::bad_argument, title + ": q, k, v and out have " + found + " elements where the shape has " +
                                          std::to_string(shape.elements())});
}

// Throws `bad_argument` if rank `from` has sent another number of bytes.
void check_came(const std::string& title, const neighbours& around, rank_id from, std::uint64_t bytes,
                std::uint64_t expected) {
  if (bytes == expected) return;
  runtime::error_facts about = around.about(from);
  about.whole_bytes = bytes;
  about.own_bytes = expected;
  runtime::raise(runtime::error::in_words(errc::bad_argument, about,
                                          title + ": rank " + std::to_string(from) + " sent " + std::to_string(bytes) +
                                              " bytes of keys or values where " + std::to_string(expected) +
                                              " were expected; give all ranks the same shape"));
}

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

std::uint32_t ring_attention::begin(const attention_shape& shape, std::string_view type) {
  ring_.check_caller();
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
  return static_cast<std::uint32_t>(terms) & ~3U;
}

void ring_attention::check(const attention_shape& shape, std::initializer_list<std::size_t> sizes) const {
  if (size_ == 0) runtime::raise({errc::bad_argument, title_ + ": this rank has no part in it"});
  if (memory_ != nullptr && memory_->has_streams())
    runtime::raise({errc::bad_argument, title_ + ": its arrays lie on a device, where a `plan` computes with them"});
  check_shape(title_, shape);
  check_sizes(title_, shape, sizes);
}

bool ring_attention::rejoin() { return ops::rejoin(ring_, around_); }

namespace {

// Runs a rotation, and tells the neighbours if it fails.
template <class Rotation, class Owner, class Call>
task<> run_call(Rotation rotation, Owner* of, Call* c, neighbours* around) {
  call_guard now(around);
  std::exception_ptr thrown;
  try {
    co_await runtime::with_dataflow(rotation, of, c);
  } catch (...) {
    thrown = std::current_exception();
  }
  now.end(thrown);
}

}  // namespace

// ---- in host memory ----------------------------------------------------------------------------------------------------

task<> ring_attention::run(call& c) { return run_call(rotate, this, &c, around_); }

task<> ring_attention::rotate(runtime::dataflow& flow, ring_attention* self, call* c) {
  using runtime::reads;
  using runtime::updates;
  flow.stop_at_failure();
  const std::uint64_t bytes = c->shape.elements() * c->element_bytes;
  // Two blocks of keys and values, used in turn: the computation reads one while the other is received.
  for (auto& both : c->came) both.resize(self->size_ > 1 ? 2 * bytes : 0);
  const auto typed = [c](p2p_operation o) {
    o.type = c->type;
    return o;
  };
  const runtime::compute_options here{.name = self->title_, .where = runtime::compute_options::place::actor_thread};
  std::span<const std::byte> keys = c->keys;
  std::span<const std::byte> values = c->values;
  for (std::uint64_t step = 0; step < self->size_; ++step) {
    const std::span<std::byte> next(c->came[step % 2]);
    if (step + 1 < self->size_) {
      // Two successive rotations have different tags. Otherwise, if a receive ended without its block, the next receive would get that
      // block.
      const std::uint32_t tag = c->tag + 2 * static_cast<std::uint32_t>(step % 2);
      auto moving =
          self->ring_.start(flow, {typed(p2p::isend(keys, {.to = self->next_, .tag = tag})),
                                   typed(p2p::isend(values, {.to = self->next_, .tag = tag + 1})),
                                   typed(p2p::irecv(next.first(bytes), {.from = self->previous_, .tag = tag})),
                                   typed(p2p::irecv(next.last(bytes), {.from = self->previous_, .tag = tag + 1}))});
      for (const std::size_t part : {2, 3}) {
        auto check = [self, bytes, message = moving[part]] {
          self->around_->heard(self->previous_);
          check_came(self->title_, *self->around_, self->previous_, message.bytes(), bytes);
        };
        const auto half = part == 2 ? next.first(bytes) : next.last(bytes);
        auto checked = flow.compute({updates(half)}, std::move(check), here);
      }
    }
    const std::uint64_t from = (self->place_ + self->size_ - step) % self->size_;
    auto add = [self, c, keys, values, from] {
      if (c->shape.causal && from > self->place_) return;
      c->add(keys, values, self->place_ * c->shape.rows, from * c->shape.rows);
    };
    auto added = flow.compute({reads(c->q), reads(keys), reads(values), updates(c->sums)}, std::move(add),
                              {.name = self->title_ + ": a block", .modelled_ns = c->shape.block_ns});
    keys = next.first(std::min<std::size_t>(bytes, next.size()));
    values = next.last(std::min<std::size_t>(bytes, next.size()));
  }
  auto done = flow.compute({reads(c->sums), runtime::writes(c->out)}, [c] { c->divide(); }, here);
  co_await done;
}

// ---- on a device ------------------------------------------------------------------------------------------------------

struct attention_plan::state {
  struct part {
    std::shared_ptr<runtime::memory_space::block> memory;  // keys, then values
    actors::registered_memory registered;
  };
  std::string title;
  p2p ring;
  runtime::memory_space* memory = nullptr;
  attention_shape shape;
  std::uint64_t element_bytes = 0;
  std::uint64_t size = 0;
  std::uint64_t place = 0;
  rank_id next = 0;
  rank_id previous = 0;
  std::array<part, 2> came;  // used in turn, as on the host
  neighbours* around = nullptr;
};

attention_plan::attention_plan() : state_(std::make_unique<state>()) {}
attention_plan::attention_plan(attention_plan&&) noexcept = default;
attention_plan& attention_plan::operator=(attention_plan&&) noexcept = default;
attention_plan::~attention_plan() = default;

const attention_shape& attention_plan::shape() const noexcept { return state_->shape; }
std::uint64_t attention_plan::first_query() const noexcept { return state_->place * state_->shape.rows; }
p2p& attention_plan::ring() noexcept { return state_->ring; }

attention_plan ring_attention::plan_of(const attention_shape& shape, std::uint64_t element_bytes) const {
  if (size_ == 0) runtime::raise({errc::bad_argument, title_ + ": this rank has no part in it"});
  if (memory_ == nullptr || !memory_->has_streams())
    runtime::raise({errc::bad_argument, title_ + ": its arrays lie in host memory; say in `memory` which device's"});
  check_shape(title_, shape);
  attention_plan made;
  *made.state_ = {title_, ring_, memory_, shape, element_bytes, size_, place_, next_, previous_, {}, around_};
  // With two ranks there is one rotation.
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(size_ - 1, 2); ++i) {
    attention_plan::state::part& p = made.state_->came[i];
    p.memory = memory_->make(2 * shape.elements() * element_bytes);
    p.registered = made.registered(p.memory->bytes());
    p.registered.keep(p.memory);
  }
  return made;
}

void attention_plan::check(std::uint64_t element_bytes, std::initializer_list<std::size_t> sizes,
                           runtime::device_stream stream) const {
  state_->ring.check_caller();
  if (state_->around != nullptr) state_->around->throw_refused();
  check_sizes(state_->title, state_->shape, sizes);
  if (element_bytes != state_->element_bytes)
    runtime::raise({errc::bad_argument, state_->title + ": elements have " + std::to_string(element_bytes) +
                                            " bytes, and in its plan " + std::to_string(state_->element_bytes)});
  if (stream == nullptr)
    runtime::raise(
        {errc::bad_argument, state_->title + ": its arrays lie on a device; say in which stream kernels work on them"});
}

task<> attention_plan::run(const call& c) { return run_call(rotate, state_.get(), &c, state_->around); }

task<> attention_plan::rotate(runtime::dataflow& flow, state* s, const call* c) {
  flow.stop_at_failure();
  const std::uint64_t bytes = s->shape.elements() * s->element_bytes;
  const std::uint64_t last = s->shape.causal ? s->place : s->size - 1;
  std::vector<runtime::flow_work> coming;
  runtime::flow_work leaving;
  std::span<const std::byte> keys = c->keys;
  std::span<const std::byte> values = c->values;
  for (std::uint64_t step = 0; step < s->size; ++step) {
    const bool rotates = step + 1 < s->size;
    const std::span<std::byte> next = rotates ? s->came[step % 2].memory->bytes() : std::span<std::byte>();
    if (rotates) {
      // The receive overwrites the block that the last rotation sends, so that send must end first. This waits for it before kernels that
      // read the block are in the stream: otherwise the send would run after them, not during the computation with the previous block.
      if (step > 1) co_await leaving;
      const std::uint32_t tag = 2 * static_cast<std::uint32_t>(step % 2);  // the same tags as on the host
      coming.push_back(s->ring.start(flow,
                                     {p2p::irecv(next.first(bytes), {.from = s->previous, .tag = tag}),
                                      p2p::irecv(next.last(bytes), {.from = s->previous, .tag = tag + 1})},
                                     {.stream = c->stream, .ahead = true}));
      // Kernels in the stream write the first keys and values. All others are complete when their receive has ended.
      leaving = s->ring.start(
          flow, {p2p::isend(keys, {.to = s->next, .tag = tag}), p2p::isend(values, {.to = s->next, .tag = tag + 1})},
          {.stream = step == 0 ? c->stream : nullptr});
    }
    const std::uint64_t from = (s->place + s->size - step) % s->size;
    if (!s->shape.causal || from <= s->place) {
      if (step > 0) s->memory->wait_on(s->came[(step - 1) % 2].memory->bytes(), c->stream);
      c->enqueue({keys, values, from * s->shape.rows, step == 0, step == last});
    }
    keys = next.first(std::min<std::size_t>(bytes, next.size()));
    values = next.last(std::min<std::size_t>(bytes, next.size()));
  }
  for (const runtime::flow_work& both : coming) {
    co_await both;
    for (const std::size_t i : {0, 1}) check_came(s->title, *s->around, s->previous, both[i].bytes(), bytes);
  }
}

}  // namespace parley::ops
