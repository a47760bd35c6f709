#include <parley/replayed_calls.hpp>

#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/runtime/finally.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

replayed_calls::replayed_calls(symmetric op, transports::cuda_copies& copies, step what, symmetric_call_options o)
    : op_(std::move(op)), copies_(copies), step_(std::move(what)), options_(o) {
  const auto& declared = op_.end().declaration();
  if (!op_.end().is_replayed())
    runtime::raise({errc::bad_argument, declared.title() +
                                            " is not declared as replayed; set symmetric_options::replayed "
                                            "on all its members"});
  if (o.bytes == 0)
    runtime::raise({errc::bad_argument, declared.title() + ": say how many bytes a step calls it with "
                                                           "(symmetric_call_options::bytes)"});
}

struct replayed_calls::one_replay final : symmetric_caller {
  one_replay(replayed_calls& o, transports::cuda_stream s) noexcept : of(o), in(s) {}

  // If several calls are in flight, one of them captures for all.
  task<> prepare(symmetric_call call, const symmetric_config& config) override {
    while (of.capturing_now_) co_await runtime::yield;
    if (of.find(call, config) == nullptr) co_await of.capture(call, config);
  }
  task<> call(symmetric_call call, const symmetric_config& config) override {
    std::exception_ptr thrown;
    try {
      const std::function<void()> launch = [&] {
        const captured_step* const mine = of.find(call, config);
        if (mine == nullptr) runtime::raise({errc::unavailable, "its capture was forgotten after a failure"});
        const errc begun = mine->graph.replay(in);
        if (begun != errc::none) runtime::raise({begun, of.copies_.driver().fault()});
      };
      if (call.communicator != nullptr) {
        co_await call.communicator->in_turn(in, launch);
      } else {
        launch();
      }
      auto ended = co_await transports::reached(of.copies_, in);
      ended.value();
      if (call.communicator != nullptr && call.communicator->aborted())
        runtime::raise({errc::unavailable, "its communicator was aborted during the call"});
    } catch (...) {
      thrown = std::current_exception();
    }
    if (!thrown) co_return;
    of.kept_.clear();
    if (call.communicator != nullptr) call.communicator->abort();
    std::rethrow_exception(thrown);
  }

  replayed_calls& of;
  transports::cuda_stream in;
};

task<> replayed_calls::replay(transports::cuda_stream in) {
  one_replay mine(*this, in);
  co_await op_.end().run(mine, options_);
}

const replayed_calls::captured_step* replayed_calls::find(const symmetric_call& call,
                                                          const symmetric_config& config) const noexcept {
  const auto at = std::find_if(kept_.begin(), kept_.end(), [&](const captured_step& r) {
    return r.digest == config.digest() && r.over == call.communicator;
  });
  return at == kept_.end() ? nullptr : &*at;
}

task<> replayed_calls::capture(symmetric_call call, const symmetric_config& config) {
  capturing_now_ = true;
  const runtime::finally over([this] { capturing_now_ = false; });
  transports::capture_stream in(copies_.driver(), copies_.device());
  co_await step_(in.stream(), captured_call(call, config, in.stream()));
  if (kept_.size() == most_kept) kept_.erase(kept_.begin());
  kept_.push_back({config.digest(), call.communicator, in.end()});
  ++made_;
}

}  // namespace parley::ops
