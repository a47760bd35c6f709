#include <parley/ops/pipeline.hpp>
#include <parley/runtime/compute.hpp>
#include <parley/runtime/scope.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace parley::ops {

using runtime::task;

time_ns pipeline_stage::modelled_ns(std::uint64_t, std::size_t) const { return 0; }
void pipeline_stage::on_done(std::uint64_t) {}

task<> pipeline::pass_on(std::span<const std::byte> activation) { co_await out_->send(activation, {}); }

namespace {

task<> bring(edge_in& in, std::span<std::byte> into) {
  const std::uint64_t got = co_await in.receive(into, {});
  if (got != into.size())
    runtime::raise({runtime::errc::bad_argument,
                    in.declaration().title() + ": an activation of " + std::to_string(got) + " bytes came where " +
                        std::to_string(into.size()) + " were expected; give all stages the same sizes"});
}

// The steps of one microbatch in one of two buffers, so that one can be computed while the other moves.
struct slot {
  std::vector<std::byte> activation;
  std::optional<runtime::scope> arriving;
  std::optional<runtime::scope> leaving;
};

}  // namespace

task<> pipeline::run(std::span<const std::uint64_t> bytes, pipeline_stage& stage) {
  runtime::scope& here = co_await runtime::this_scope;
  std::array<slot, 2> slots;
  const std::uint64_t largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  for (slot& s : slots) {
    s.activation.resize(largest);
    s.arriving.emplace(here);
    s.leaving.emplace(here);
  }
  if (in_ != nullptr && !bytes.empty()) slots[0].arriving->spawn(bring(*in_, std::span(slots[0].activation).first(bytes[0])));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    slot& now = slots[i % 2];
    slot& next = slots[(i + 1) % 2];
    co_await now.arriving->join();
    // The other buffer takes the next activation as soon as the one before has left it.
    if (i + 1 < bytes.size()) {
      co_await next.leaving->join();
      if (in_ != nullptr) next.arriving->spawn(bring(*in_, std::span(next.activation).first(bytes[i + 1])));
    }
    const std::span<std::byte> activation = std::span(now.activation).first(bytes[i]);
    auto forward = [&stage, i, activation] { stage.forward(i, activation); };
    co_await runtime::compute(forward, stage.modelled_ns(i, activation.size()));
    if (out_ != nullptr) now.leaving->spawn(pass_on(activation));
    stage.on_done(i);
  }
  for (slot& s : slots) co_await s.leaving->join();
}

}  // namespace parley::ops
