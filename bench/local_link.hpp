#pragma once
/// Two ranks in one process on one executor. A `poll` of the receiver delivers everything that the sender has sent,
/// in order. There is no transport, so instructions can be counted, and all of them are parley's own.
///
///     local_link a(0), b(1);
///     connect(a, b);
///     loop.attach(a); loop.attach(b);
#include <parley/bench/measure.hpp>
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/wire/link.hpp>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace parley::bench {

class local_link final : public runtime::link, public runtime::poller {
 public:
  explicit local_link(runtime::rank_id rank) : rank_(rank), event_(eventfd(0, EFD_CLOEXEC)) {
    inbox_.reserve(256);
    delivering_.reserve(256);
  }
  ~local_link() override { close(event_); }
  local_link(const local_link&) = delete;
  local_link& operator=(const local_link&) = delete;
  friend void connect(local_link& a, local_link& b) {
    a.other_ = &b;
    b.other_ = &a;
  }

  runtime::rank_id rank() const noexcept override { return rank_; }
  runtime::rank_id world_size() const noexcept override { return 2; }
  void listen(channel on, handler* to) override { handlers_[std::size_t(on)] = to; }
  void on_failure(failure_handler*) override {}
  runtime::errc send(runtime::rank_id, channel on, std::span<const std::byte> header,
                     std::span<const std::byte> payload, runtime::completion*) override {
    ++counted_.sent[std::size_t(on)];
    if (header.size() + payload.size() <= runtime::arrival::inline_bytes) {
      other_->inbox_.emplace_back(on, runtime::arrival(header, payload));
    } else {
      auto* copy = new std::byte[payload.size()];
      std::copy(payload.begin(), payload.end(), copy);
      other_->inbox_.emplace_back(on, runtime::arrival(other_, header, payload.size(), copy, false));
    }
    return runtime::errc::none;
  }
  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion*) override {
    const runtime::arrival taken = std::move(message);
    std::copy(taken.payload().begin(), taken.payload().end(), into.begin());
    return runtime::errc::none;
  }
  void cancel(runtime::completion&) override {}
  const counters& statistics() const noexcept override { return counted_; }

  bool poll() override {
    if (inbox_.empty()) return false;
    delivering_.swap(inbox_);
    for (auto& [on, message] : delivering_) {
      ++counted_.received[std::size_t(on)];
      if (handler* to = handlers_[std::size_t(on)]) to->on_arrival(std::move(message));
    }
    delivering_.clear();
    return true;
  }
  arm_state arm() override { return inbox_.empty() ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_; }

 private:
  void release(const void* held, bool) noexcept override { delete[] static_cast<const std::byte*>(held); }

  runtime::rank_id rank_;
  int event_;
  local_link* other_ = nullptr;
  std::array<handler*, channels> handlers_{};
  std::vector<std::pair<channel, runtime::arrival>> inbox_;
  std::vector<std::pair<channel, runtime::arrival>> delivering_;
  counters counted_;
};

}  // namespace parley::bench
