#include <parley/runtime/dataflow/enqueued_step.hpp>

#include <parley/runtime/time/executor.hpp>

#include <algorithm>
#include <functional>
#include <utility>

namespace parley::runtime {

enqueued_step::~enqueued_step() {
  let_go();
  forget();
}

// The program may keep the step's `flow_work` after the flow and the step's coroutine were destroyed.
void enqueued_step::on_torn_down() noexcept {
  waiting_ = nullptr;
  forget();
}

void enqueued_step::forget() noexcept {
  if (outcome_ == errc::pending) memory_.forget(this);
  outcome_ = errc::cancelled;
}

template <class Does>
void enqueued_step::tried(const Does& does) noexcept {
  try {
    does();
  } catch (...) {
    if (!refused_) refused_ = std::current_exception();
  }
}

flow_step::on_device enqueued_step::part_of_device(const buffer_access& use) const noexcept {
  if (refused_ || given_ == nullptr) return {};
  if (word_ != 0) return {&memory_, on_device::kind::held};
  const bool writes = std::any_of(written_.begin(), written_.end(), [&](std::span<const std::byte> w) {
    return std::less<>{}(w.data(), use.bytes.data() + use.bytes.size()) &&
           std::less<>{}(use.bytes.data(), w.data() + w.size());
  });
  return {&memory_, writes ? on_device::kind::computed : on_device::kind::read};
}

// The device orders this step after kernels in other streams by events, and after expected messages by their words. A step that overwrites
// a message waits on the host instead: it must also come after the steps before that receive, and a receive that was given up did not wait
// for these steps.
bool enqueued_step::comes_after(const flow_step& earlier, const buffer_access& use) {
  const on_device part = earlier.part_of_device(use);
  if (part.memory != &memory_) return false;
  if (part.what == on_device::kind::awaited) return use.use == buffer_use::read;
  if (part.what == on_device::kind::held) return false;
  const auto& kernels = static_cast<const enqueued_step&>(earlier);
  tried([&] {
    if (kernels.stream_ != stream_) memory_.wait_for(kernels.given_, stream_);
  });
  return true;
}

void enqueued_step::let_go() noexcept {
  if (word_ != 0) memory_.came(std::exchange(word_, 0), errc::none);
}

void enqueued_step::enqueue(std::span<const buffer_access> uses, const std::function<void(device_stream)>& f) noexcept {
  if (abandoned_) return;  // its flow is cancelled
  tried([&] {
    if (refused_) return;
    for (const buffer_access& a : uses) memory_.wait_on(a.bytes, stream_);
    if (has_to_wait()) word_ = memory_.hold(stream_);
    f(stream_);
  });
  // This also runs if the function threw, because it may have enqueued work before that.
  tried([&] {
    // Buffers that are only read are left out: otherwise earlier sends of them would wait for everything that the stream waits for.
    for (const buffer_access& a : uses) {
      if (a.use == buffer_use::read) continue;
      memory_.after(a.bytes, stream_);
      written_.push_back(a.bytes);
    }
    given_ = memory_.moment_of(stream_);
    outcome_ = memory_.when_reached(stream_, this);
  });
}

task<> enqueued_step::run() {
  let_go();
  scope& here = co_await this_scope;
  where_ = &here.where();
  co_await reached{*this};
  if (refused_) std::rethrow_exception(refused_);
  if (outcome_ != errc::none) raise({outcome_, memory_.words_of(outcome_)});
}

void enqueued_step::on_reached(completion& self, errc outcome) noexcept {
  auto& mine = static_cast<enqueued_step&>(self);
  mine.outcome_ = outcome;
  if (mine.waiting_) mine.where_->schedule(std::exchange(mine.waiting_, nullptr));
}

}  // namespace parley::runtime
