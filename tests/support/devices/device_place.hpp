#pragma once
/// A GPU as the place of a worked case: a real one or a fake.
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/cuda_copies.hpp>
#include <parley/cuda_space.hpp>

#include <functional>
#include <utility>
#include <variant>

namespace parley::tests {

class device_place : public place {
 public:
  /// `memory` must outlive the ops that use it.
  device_place(transports::cuda_copies& copies, transports::cuda_space& memory)
      : copies_(copies), space_(memory), stream_(copies.driver().make_stream(copies.device())) {}
  device_place(const device_place&) = delete;
  device_place& operator=(const device_place&) = delete;
  ~device_place() override { copies_.driver().destroy(stream_); }

  runtime::memory_space* memory() noexcept override { return &space_; }
  runtime::device_stream stream() noexcept override { return stream_; }
  void compute(runtime::dataflow& flow, std::span<const runtime::buffer_access> uses, kernels::any kernel,
               std::size_t count) override {
    const auto f = [&](runtime::device_stream s) { launch(kernel, count, static_cast<transports::cuda_stream>(s)); };
    static_cast<void>(flow.compute(uses, f, {.name = "kernel", .stream = stream_, .memory = &space_}));
  }
  void compute(kernels::any kernel, std::size_t count) override { launch(kernel, count, stream_); }
  void behind_messages(std::span<const std::byte> bytes) override {
    if (!bytes.empty()) space_.wait_on(bytes, stream_);
  }
  void before_messages(std::span<const std::byte> bytes) override {
    if (!bytes.empty()) space_.after(bytes, stream_);
  }
  runtime::task<> reached() override {
    auto there = co_await transports::reached(copies_, stream_);
    there.value();
  }

 protected:
  virtual void launch(const kernels::any& kernel, std::size_t count, transports::cuda_stream s) = 0;

 private:
  transports::cuda_copies& copies_;
  transports::cuda_space& space_;
  transports::cuda_stream stream_;
};

/// A fake GPU on which each kernel takes `ticks` ticks.
class fake_place final : public device_place {
 public:
  fake_place(transports::cuda_copies& copies, transports::cuda_space& memory, std::uint64_t ticks = 200)
      : device_place(copies, memory), gpu_(dynamic_cast<fake_cuda&>(copies.driver())), ticks_(ticks) {}

 private:
  void launch(const kernels::any& kernel, std::size_t count, transports::cuda_stream s) override {
    gpu_.launch(s, ticks_, [kernel, count] { kernels::run(kernel, count); });
  }
  const std::byte* seen_by_kernels(const std::byte* address) override {
    return address == nullptr ? nullptr : gpu_.shadow(address);
  }
  fake_cuda& gpu_;
  std::uint64_t ticks_;
};

}  // namespace parley::tests
