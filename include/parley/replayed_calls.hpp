#pragma once
/// Calls an op without headers inside a step that a device replays from a capture, such as a CUDA graph. A step of a program has kernels
/// and, for example, the sum of the gradients. Each replay counts as a call of the op. If leases assign another config from some call on,
/// all members capture their step again before that replay. Until then no decision changes the captured steps.
///
///     task<> step(model* m, cuda_stream s, captured_call sum) {       // enqueues, and waits for nothing
///       backward(*m, s);
///       co_await sum(m->gradients);
///       update(*m, s);
///     }
///     symmetric sums(self, {.name = "gradients", …, .memory = &space, .replayed = true});
///     replayed_calls steps(sums, *here.gpu(), [&m](cuda_stream s, captured_call sum) { return step(&m, s, sum); },
///                          {.bytes = m.gradients.size_bytes()});
///     co_await steps.replay(stream);                                  // ends when the step has run
///
/// A step may call the op several times: these calls count as one call, and one config makes them. Several replays may be in progress, in
/// any streams; they run one after the other in the order of their calls. Failure: as for the op (symmetric.hpp). A replay that fails
/// aborts its communicator, because no member knows which part of the replay the others have done. All captures are dropped. Kernels of the
/// step may still be running.
///
/// Destroy the object before its rank, and before the communicators that the op has used.
#include <parley/cuda_copies.hpp>
#include <parley/symmetric.hpp>

#include <cstdint>
#include <functional>
#include <ranges>
#include <span>
#include <vector>

namespace parley::ops {

/// The op as a step calls it, while the step is being captured.
class captured_call {
 public:
  template <std::ranges::contiguous_range B>
  runtime::task<> operator()(B&& data) const {
    return config_->capture(call_, std::as_writable_bytes(std::span(data)), stream_);
  }

 private:
  friend class replayed_calls;
  captured_call(const symmetric_call& call, const symmetric_config& config, transports::cuda_stream stream) noexcept
      : call_(call), config_(&config), stream_(stream) {}
  symmetric_call call_;
  const symmetric_config* config_;
  transports::cuda_stream stream_;
};

class replayed_calls {
 public:
  /// Enqueues a step into the stream. The host part of a step runs once for each capture.
  using step = std::function<runtime::task<>(transports::cuda_stream, captured_call)>;
  /// The op chooses its config for calls of `o.bytes`. Throws `bad_argument` if the op is not declared as replayed, or if `o.bytes` is 0.
  replayed_calls(symmetric op, transports::cuda_copies& copies, step what, symmetric_call_options o);
  replayed_calls(const replayed_calls&) = delete;
  replayed_calls& operator=(const replayed_calls&) = delete;

  runtime::task<> replay(transports::cuda_stream in);
  /// How often the step has been captured so far.
  std::uint64_t captures() const noexcept { return made_; }

 private:
  // Enough captures for the default, a winner, and some candidates that are tried on calls.
  static constexpr std::size_t most_kept = 8;
  struct captured_step {
    std::uint64_t digest;
    const communicator* over;
    transports::cuda_capture graph;
  };
  struct one_replay;
  const captured_step* find(const symmetric_call& call, const symmetric_config& config) const noexcept;
  runtime::task<> capture(symmetric_call call, const symmetric_config& config);

  symmetric op_;
  transports::cuda_copies& copies_;
  step step_;
  symmetric_call_options options_;
  std::vector<captured_step> kept_;  // the latest is last
  bool capturing_now_ = false;
  std::uint64_t made_ = 0;
};

}  // namespace parley::ops
