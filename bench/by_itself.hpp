#pragma once
/// The config `direct` without an op, as a baseline for the calls of an op. The config's coroutine and its parts in
/// flight move a word from one link to another, and one coroutine awaits each arrival.
///
///     lone_inbox box;
///     links[1].listen(link::channel::data, &box);
///     run(loop, direct_by_itself(links[0], links[1], box, count));
#include <parley/actors/edge/part_sender.hpp>
#include <parley/bench/measure.hpp>
#include <parley/config.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace parley::bench {

using word = std::array<std::uint64_t, 1>;

/// Holds one message at a time, for one waiting coroutine.
class lone_inbox final : public runtime::link::handler {
 public:
  void on_arrival(runtime::arrival&& message) noexcept override {
    message_ = std::move(message);
    if (waiting_ != nullptr) std::exchange(waiting_, nullptr)->wake(runtime::errc::none);
  }
  class next : public runtime::waiter {
   public:
    explicit next(lone_inbox& from) noexcept : runtime::waiter(&on_cancelled), from_(from) {}
    bool await_ready() const noexcept { return from_.message_.length() != 0; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) noexcept {
      if (!enter(caller)) return false;
      from_.waiting_ = this;
      return true;
    }
    runtime::arrival await_resume() noexcept { return std::exchange(from_.message_, {}); }

   private:
    static void on_cancelled(waiter& self, runtime::errc why) noexcept {
      static_cast<next&>(self).from_.waiting_ = nullptr;
      self.wake(why);
    }
    lone_inbox& from_;
  };

 private:
  runtime::arrival message_;
  next* waiting_ = nullptr;
};

template <class Link>
runtime::task<> direct_by_itself(Link& from, Link& to, lone_inbox& box, std::int64_t count) {
  const ops::config_ptr chosen = configs::direct();
  actors::stamp mark;
  mark.total_bytes = sizeof(word);
  word out{1};
  word in{};
  for (std::int64_t n = 0; n < count; ++n) {
    actors::part_sender sender(from, to.rank(), mark);
    co_await chosen->send(sender, std::as_bytes(std::span(out)));
    co_await sender.settle();
    runtime::arrival message = co_await lone_inbox::next(box);
    static_cast<void>(to.fetch(std::move(message), std::as_writable_bytes(std::span(in)), nullptr));
    if (in != out) give_up("a transfer brought the wrong word");
    ++out[0];
  }
}

}  // namespace parley::bench
