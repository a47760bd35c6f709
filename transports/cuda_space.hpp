#pragma once
/// A GPU's memory as the place where ops keep their own buffers (runtime/memory_space.hpp).
///
///     cuda_space space(copies);
///     auto pipe = self.declare(linear_pipeline{.name = "activations", .configs = configs, .memory = &space});
#include <parley/runtime/memory_space.hpp>
#include <parley/transports/cuda_copies.hpp>

namespace parley::transports {

class cuda_space final : public runtime::memory_space {
 public:
  /// On the device of `copies`, which does the copies and outlives it.
  explicit cuda_space(cuda_copies& copies) noexcept : copies_(copies) {}
  std::unique_ptr<block> make(std::size_t bytes) override;
  /// Throws `device_failed` with CUDA's words.
  runtime::task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override;

 private:
  class device_block;
  cuda_copies& copies_;
};

/// `auto outcome = co_await copied(copies, to, from);`: one copy, started where it is awaited, to its end.
class [[nodiscard]] copied : private runtime::completion {
 public:
  copied(cuda_copies& copies, std::span<std::byte> to, std::span<const std::byte> from) noexcept
      : completion(&on_copied), copies_(copies), to_(to), from_(from) {}
  ~copied() {
    if (outcome_ == runtime::errc::pending) copies_.forget(this);
  }
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) noexcept {
    where_ = &caller.promise().home->where();
    caller_ = caller;
    outcome_ = copies_.copy(to_, from_, this);
    return outcome_ == runtime::errc::pending;
  }
  runtime::result<> await_resume() const {
    if (outcome_ == runtime::errc::device_failed)
      return runtime::error{outcome_, "device " + std::to_string(copies_.device()) + ": " + copies_.driver().fault()};
    return outcome_;
  }

 private:
  static void on_copied(completion& self, runtime::errc how) noexcept {
    auto& me = static_cast<copied&>(self);
    me.outcome_ = how;
    me.where_->schedule(me.caller_);
  }
  cuda_copies& copies_;
  std::span<std::byte> to_;
  std::span<const std::byte> from_;
  runtime::executor* where_ = nullptr;
  std::coroutine_handle<> caller_;
  runtime::errc outcome_ = runtime::errc::none;
};

}  // namespace parley::transports
