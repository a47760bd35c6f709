#pragma once
/// A computation that is enqueued into a device's stream when the step is made (dataflow.hpp). If the computation must come after something
/// that the device does not know of, the stream first waits for a word. The step sets this word at its turn.
///
///     const auto step = new_step<enqueued_step>("sum", space, stream);
///     flow_work work = flow.add(step, uses);              // whom it comes after
///     step->enqueue(uses, [&](device_stream s) { launch(s, y, a); });
///
/// The step ends when the stream has reached the end of the computation: with the function's exception, or with `device_failed` and the
/// device's message. Enqueued work cannot be undone: a step that is cancelled before its turn sets the word, and its kernels run.
#include <parley/runtime/dataflow/flow_step.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <coroutine>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::runtime {

class enqueued_step final : public flow_step, private completion {
 public:
  enqueued_step(std::string name, memory_space& memory, device_stream stream) noexcept
      : completion(&on_reached), name_(std::move(name)), memory_(memory), stream_(stream) {}
  ~enqueued_step() override;
  std::string title() const override { return name_; }
  task<> run() override;
  on_device part_of_device(const buffer_access& use) const noexcept override;
  /// Call this once the step is part of its flow.
  void enqueue(std::span<const buffer_access> uses, const std::function<void(device_stream)>& f) noexcept;

 private:
  struct reached {
    enqueued_step& step;
    bool await_ready() const noexcept { return step.outcome_ != errc::pending; }
    void await_suspend(std::coroutine_handle<> h) const noexcept { step.waiting_ = h; }
    void await_resume() const noexcept {}
  };
  bool comes_after(const flow_step& earlier, const buffer_access& use) override;
  void on_abandoned() noexcept override {
    abandoned_ = true;
    let_go();
  }
  void on_torn_down() noexcept override;
  template <class Does>
  void tried(const Does& does) noexcept;
  void let_go() noexcept;
  void forget() noexcept;
  static void on_reached(completion& self, errc outcome) noexcept;

  std::string name_;
  memory_space& memory_;
  device_stream stream_;
  std::uint64_t word_ = 0;  // the word that the stream waits for; 0: none
  bool abandoned_ = false;
  device_moment given_;  // all work in the stream up to the end of the computation
  std::vector<std::span<const std::byte>> written_;
  errc outcome_ = errc::none;
  std::exception_ptr refused_;
  executor* where_ = nullptr;
  std::coroutine_handle<> waiting_;
};

}  // namespace parley::runtime
