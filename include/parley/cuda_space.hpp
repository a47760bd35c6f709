#pragma once
/// Lets an op use buffers in a GPU's memory: the memory space (runtime/dataflow/memory_space.hpp) of one device.
///
///     cuda_space space(copies);
///     pipeline pipe(self, {.name = "activations", .configs = configs, .memory = &space});
#include <parley/cuda_copies.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace parley::transports {

class cuda_space final : public runtime::memory_space {
 public:
  /// The space of the device of `copies`. `copies` makes all copies of the space and must outlive it.
  explicit cuda_space(cuda_copies& copies) noexcept : copies_(copies) {}
  /// A returned block is reused once no work on it is pending, and it is freed only with the space. Freeing earlier could block: CUDA waits
  /// until the device is idle, and the device may be waiting for a message that this thread has to send.
  std::unique_ptr<block> make(std::size_t bytes) override;
  /// Throws `device_failed` with CUDA's error text.
  runtime::task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override;
  void prepare(runtime::memory_pieces& pieces) override;
  void gather(std::span<std::byte> packed, const runtime::memory_pieces& pieces, runtime::device_stream s) override;
  void scatter(const runtime::memory_pieces& pieces, std::span<const std::byte> packed,
               runtime::device_stream s) override;
  /// `add` and `assign` run in the stream `cuda_copies::prompt`.
  void add(std::span<std::byte> into, std::span<const std::byte> from, runtime::summand of) override;
  void assign(std::span<std::byte> to, std::span<const std::byte> from) override;
  std::string words_of(runtime::errc outcome) const override;
  runtime::result<> check(std::span<const std::byte> memory, std::size_t alignment) override {
    return copies_.check(memory, alignment);
  }
  bool has_streams() const noexcept override { return true; }
  bool busy(std::span<const std::byte> memory) noexcept override { return copies_.busy(memory); }
  runtime::errc when_free(std::span<const std::byte> memory, runtime::completion* done) noexcept override {
    return copies_.when_free(memory, done);
  }
  void forget(runtime::completion* done) noexcept override { copies_.forget(done); }
  runtime::errc when_settled(std::span<const std::byte> memory, runtime::completion* done) noexcept override {
    return copies_.settle(memory, done);
  }
  runtime::task<> settled(std::span<const std::byte> memory) override;
  void after(std::span<const std::byte> memory, runtime::device_stream stream) override;
  runtime::device_moment moment_of(runtime::device_stream stream) override;
  void wait_for(const runtime::device_moment& earlier, runtime::device_stream stream) override;
  runtime::errc when_reached(runtime::device_stream stream, runtime::completion* done) noexcept override {
    return copies_.watch(static_cast<cuda_stream>(stream), done);
  }
  std::uint64_t hold(runtime::device_stream stream) override { return copies_.hold(static_cast<cuda_stream>(stream)); }
  std::uint64_t expect(std::span<const std::byte> memory) override { return copies_.expect(memory); }
  void wait_on(std::span<const std::byte> memory, runtime::device_stream stream) override;
  void came(std::uint64_t expected, runtime::errc outcome) noexcept override { copies_.came(expected, outcome); }

 private:
  class device_block;
  using kept = std::multimap<std::size_t, cuda_memory>;  // by size
  void behind_own(std::span<const std::byte> written, std::span<const std::byte> read);
  cuda_copies& copies_;
  std::shared_ptr<kept> kept_ = std::make_shared<kept>();
};

/// Awaits one operation of a device: the await starts it and lasts until it has ended. `start(done)` has the return values of
/// `link::fetch`. The await cannot be cancelled.
template <class Start>
class [[nodiscard]] device_step : private runtime::completion {
 public:
  device_step(cuda_copies& copies, Start start) noexcept
      : completion(&on_over), copies_(copies), start_(std::move(start)) {}
  ~device_step() {
    if (outcome_ == runtime::errc::pending) copies_.forget(this);
  }
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) noexcept {
    where_ = &caller.promise().home->where();
    caller_ = caller;
    outcome_ = start_(this);
    return outcome_ == runtime::errc::pending;
  }
  runtime::result<> await_resume() const { return copies_.in_words(outcome_); }

 private:
  static void on_over(completion& self, runtime::errc how) noexcept {
    auto& me = static_cast<device_step&>(self);
    me.outcome_ = how;
    me.where_->schedule(me.caller_);
  }
  cuda_copies& copies_;
  Start start_;
  runtime::executor* where_ = nullptr;
  std::coroutine_handle<> caller_;
  runtime::errc outcome_ = runtime::errc::none;
};

/// `auto outcome = co_await copied(copies, to, from);`: makes one copy and waits until it has ended.
inline auto copied(cuda_copies& copies, std::span<std::byte> to, std::span<const std::byte> from) noexcept {
  return device_step(copies, [&copies, to, from](runtime::completion* done) { return copies.copy(to, from, done); });
}

}  // namespace parley::transports
