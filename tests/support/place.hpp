#pragma once
/// The place where a worked case runs: its arrays are in host memory and its kernels are steps of a flow, or both are on a GPU. The case
/// itself does not know which.
///
///     array<float> x(at, 1000), y(at, 1000);
///     co_await bring(at, x, numbers);
///     auto both = ring.start(flow, …, {.stream = at.stream()});              // an op declared with .memory = at.memory()
///     at.compute(flow, {reads(x), writes(y)}, kernels::linear{at.seen(y), at.seen(x), nullptr, 2, 1}, 1000);
///     co_await at.reached();                                                 // after the flow has been joined
///     std::vector<float> result = co_await taken(at, y);
#include <parley/tests/support/devices/kernels.hpp>

#include <parley/dataflow.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace parley::tests {

template <class T>
class array;

class place {
 public:
  virtual ~place() = default;
  virtual runtime::memory_space* memory() noexcept = 0;
  /// Null: this place has no stream.
  virtual runtime::device_stream stream() noexcept = 0;
  /// Computes `count` elements, after the steps that write its inputs, and after the steps that use its outputs.
  virtual void compute(runtime::dataflow& flow, std::span<const runtime::buffer_access> uses, kernels::any kernel,
                       std::size_t count) = 0;
  void compute(runtime::dataflow& flow, std::initializer_list<runtime::buffer_access> uses, const kernels::any& kernel,
               std::size_t count) {
    compute(flow, std::span(uses.begin(), uses.size()), kernel, count);
  }
  /// Computes without a flow: in the stream, behind the work that is there, or at once if there is no stream.
  virtual void compute(kernels::any kernel, std::size_t count) = 0;
  /// `behind_messages`: kernels from now on wait for the messages that are expected into `bytes`. `before_messages`: the next messages of
  /// `bytes` wait for the kernels so far.
  virtual void behind_messages(std::span<const std::byte> bytes) = 0;
  virtual void before_messages(std::span<const std::byte> bytes) = 0;
  /// Waits until all kernels outside of flows have ended. Throws `failure`.
  virtual runtime::task<> reached() = 0;
  /// The address under which kernels see `address`.
  template <class T>
  T* seen(T* address) {
    return reinterpret_cast<T*>(const_cast<std::byte*>(seen_by_kernels(reinterpret_cast<const std::byte*>(address))));
  }
  template <class T>
  T* seen(const array<T>& a);

 protected:
  virtual const std::byte* seen_by_kernels(const std::byte* address) { return address; }
};

/// An owned array. The processor may access it only if it is in host memory; there it is zero at first.
template <class T>
class array {
 public:
  array(place& at, std::size_t count) : block_(at.memory()->make(count * sizeof(T))) {}
  T* data() const noexcept { return reinterpret_cast<T*>(block_->bytes().data()); }
  std::size_t size() const noexcept { return block_->bytes().size() / sizeof(T); }
  T* begin() const noexcept { return data(); }
  T* end() const noexcept { return data() + size(); }
  T& operator[](std::size_t i) const noexcept { return data()[i]; }
  std::span<std::byte> bytes() const noexcept { return block_->bytes(); }

 private:
  std::unique_ptr<runtime::memory_space::block> block_;
};

template <class T>
T* place::seen(const array<T>& a) {
  return seen(a.data());
}

template <class T>
runtime::task<> bring(place& at, const array<T>& to, std::span<const T> from) {
  co_await at.memory()->copy(to.bytes(), std::as_bytes(from));
}
template <class T>
runtime::task<std::vector<T>> taken(place& at, const array<T>& from) {
  std::vector<T> to(from.size());
  co_await at.memory()->copy(std::as_writable_bytes(std::span(to)), from.bytes());
  co_return to;
}

class host_place : public place {
 public:
  runtime::memory_space* memory() noexcept override { return &runtime::host_memory(); }
  runtime::device_stream stream() noexcept override { return nullptr; }
  void compute(runtime::dataflow& flow, std::span<const runtime::buffer_access> uses, kernels::any kernel,
               std::size_t count) override {
    auto f = [kernel, count] { kernels::run(kernel, count); };
    auto step = runtime::new_step<runtime::compute_step<decltype(f)>>(f, runtime::compute_options{.modelled_ns = 500});
    static_cast<void>(flow.add(std::move(step), uses));
  }
  void compute(kernels::any kernel, std::size_t count) override { kernels::run(kernel, count); }
  void behind_messages(std::span<const std::byte>) override {}
  void before_messages(std::span<const std::byte>) override {}
  runtime::task<> reached() override { co_return; }
};

inline host_place& on_host() {
  static host_place one;
  return one;
}

}  // namespace parley::tests
