#pragma once
/// Lets kernels that run on a GPU be tuned: their trials are timed by CUDA's events, in the stream that they use.
///
///     cuda_kernels gpu(self.where(), driver, /*device=*/0, stream);
///     tunable_op<void(std::span<const float>, std::span<float>)> scale(self.kernels(), {
///         .name = "scale",
///         .implementations = {{"256 threads", by_256}, {"512 threads", by_512}},        // each launches a kernel into `stream`
///         .outputs = [](auto, auto out) { return out; },                                // device memory
///         .device = &gpu});
///
/// Before each timed run the L2 cache is filled with other data (ROTATING_BUFFER_SIZE; unset: the size of the L2 cache), and the caches of
/// instructions with other code (ICACHE_FLUSH_ENABLED). Times are those of the device, without the launch. With NUMERICAL_CHECK on, outputs
/// are compared on the host.
///
/// A call that tunes waits for the stream. It tunes later instead, if the stream is being captured, or if what is in the stream already has
/// not ended within 100 ms: that work may wait for a message that this thread has to receive. Throws `device_failed` if the device fails,
/// or if a kernel takes longer than 30 s. One thread.
#include <parley/ops/kernels/kernel_device.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class cuda_kernels final : public kernel_device {
 public:
  /// The executor, whose clock it reads, and the driver must outlive it. Throws `unavailable` if there is no such device.
  cuda_kernels(runtime::executor& ex, transports::cuda_driver& driver, int device,
               transports::cuda_stream stream = nullptr);
  ~cuda_kernels() override;
  cuda_kernels(const cuda_kernels&) = delete;
  cuda_kernels& operator=(const cuda_kernels&) = delete;

  transports::cuda_driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }
  transports::cuda_stream stream() const noexcept { return stream_; }
  /// From now on the kernels use this stream, which belongs to the same device.
  void use(transports::cuda_stream stream) noexcept { stream_ = stream; }

  std::string why_not_now() override;
  std::uint64_t cache_bytes() const noexcept override;
  /// Fills fewer bytes, or none, if the device has no memory left.
  void evict(std::uint64_t bytes, bool instructions) override;
  bool is_capturing() override { return driver_.is_capturing(stream_); }
  std::size_t begin_timer() override;
  void end_timer(std::size_t number) override;
  bool is_over(std::size_t number) override;
  double took_ns(std::size_t number) override;
  void drop(std::size_t number) noexcept override { timers_[number].is_used = false; }
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill(std::span<std::byte> memory, std::byte with) override;

 private:
  void must(runtime::errc outcome) const;
  enum class state : std::uint8_t { ended, still_running };
  state wait_for(transports::cuda_event e, runtime::time_ns most_ns);
  void must_pass(transports::cuda_event e);
  void finish();

  runtime::executor& executor_;
  transports::cuda_driver& driver_;
  int device_;
  transports::cuda_stream stream_;
  transports::cuda_event mark_ = nullptr;  // behind all work in the stream
  struct timer {
    transports::cuda_event began = nullptr, ended = nullptr;
    bool is_used = false;
  };
  std::vector<timer> timers_;
  transports::cuda_memory other_data_;
};

}  // namespace parley::ops
