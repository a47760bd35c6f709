#pragma once
/// Makes, multiplies and hashes the payloads of the ranks of `parley tune`: on the processor, or on a GPU with kernels that
/// make the same bytes.
///
///     cuda_engine gpu(*job.gpu(), *job.gpu_memory());
///     std::uint64_t digest = co_await engine.run({.number = 7, .makes = true, .factor = 3, .hashes = true}, payload);
///
/// On a GPU a step without a digest ends as soon as its kernels are enqueued: the next transfer of the payload follows them in
/// stream order (`cuda_copies::after`), so no processor waits for a kernel. Throws `device_failed` with CUDA's message.
#include <parley/cuda_copies.hpp>
#include <parley/cuda_space.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace parley::cli {

struct payload_step {
  std::uint64_t number = 0;  ///< of the microbatch or message
  bool makes = false;
  std::uint16_t factor = 1;
  bool hashes = false;
};

class payload_engine {
 public:
  virtual ~payload_engine() = default;
  /// The memory that payloads lie in; null: host memory.
  virtual runtime::memory_space* memory() noexcept = 0;
  /// Returns the digest of the payload after the step; 0 unless the step `hashes`.
  virtual runtime::task<std::uint64_t> run(payload_step step, std::span<std::byte> payload) = 0;
};

class host_engine final : public payload_engine {
 public:
  /// How long a step takes in virtual time; empty: no time.
  using model = std::function<runtime::time_ns(const payload_step&, std::uint64_t bytes)>;
  explicit host_engine(model takes = {}) : takes_(std::move(takes)) {}
  runtime::memory_space* memory() noexcept override { return nullptr; }
  runtime::task<std::uint64_t> run(payload_step step, std::span<std::byte> payload) override;

 private:
  model takes_;
};

class cuda_engine final : public payload_engine {
 public:
  /// Both arguments must outlive the engine.
  cuda_engine(transports::cuda_copies& copies, transports::cuda_space& memory);
  ~cuda_engine() override;
  runtime::memory_space* memory() noexcept override { return &space_; }
  runtime::task<std::uint64_t> run(payload_step step, std::span<std::byte> payload) override;

 private:
  runtime::task<> bring_to_host(std::span<std::byte> payload);
  transports::cuda_copies& copies_;
  transports::cuda_space& space_;
  transports::cuda_stream stream_;
  transports::cuda_memory on_host_;
};

}  // namespace parley::cli
