#pragma once
/// Ranks in one process on a virtual clock. Each link carries one payload at a time: payloads sent together take as
/// long as payloads sent in turn, so cutting a transfer into parts gains nothing by itself.
///
///     modelled_world links(clock, 4, {.ns_per_byte = 0.1});
///     ops::rank r({clock, links[0], …}, {});
///
/// A payload up to `eager_bytes` arrives with its message; a larger one must be fetched, which costs a further
/// latency.
#include <parley/bench/measure.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace parley::bench {

struct wire_model {
  runtime::time_ns latency_ns = 1'000;
  runtime::time_ns per_part_ns = 3'000;  ///< cost of starting one payload
  double ns_per_byte = 0.1;
  std::size_t eager_bytes = 8192;
};

class modelled_world {
 public:
  class port;
  modelled_world(runtime::executor& ex, runtime::rank_id ranks, wire_model m = {}) : ex_(ex), model_(m) {
    for (runtime::rank_id r = 0; r < ranks; ++r) ports_.push_back(std::make_unique<port>(*this, r));
  }
  inline port& operator[](runtime::rank_id r);

 private:
  struct event : runtime::timer {
    event(modelled_world& w, std::function<void()> f) : timer(&on_time), owner(w), action(std::move(f)) {}
    static void on_time(timer& self) noexcept {
      auto& e = static_cast<event&>(self);
      const auto action = std::move(e.action);
      e.owner.events_.erase(&e);
      action();
    }
    modelled_world& owner;
    std::function<void()> action;
  };
  void at(runtime::time_ns when, std::function<void()> f) {
    auto made = std::make_unique<event>(*this, std::move(f));
    ex_.arm(*made, when);
    events_.emplace(made.get(), std::move(made));
  }
  // The time at which a payload that is ready now has crossed the link between two ranks.
  runtime::time_ns crossed(runtime::rank_id from, runtime::rank_id to, std::size_t bytes) {
    runtime::time_ns& free_at = free_at_[{from, to}];
    free_at = std::max<runtime::time_ns>(free_at, ex_.now()) + model_.per_part_ns +
              runtime::time_ns(model_.ns_per_byte * double(bytes));
    return free_at + model_.latency_ns;
  }

  runtime::executor& ex_;
  wire_model model_;
  std::vector<std::unique_ptr<port>> ports_;
  std::map<std::pair<runtime::rank_id, runtime::rank_id>, runtime::time_ns> free_at_;
  std::map<event*, std::unique_ptr<event>> events_;
};

class modelled_world::port final : public runtime::link {
 public:
  port(modelled_world& w, runtime::rank_id rank) : world_(w), rank_(rank) {}
  runtime::rank_id rank() const noexcept override { return rank_; }
  runtime::rank_id world_size() const noexcept override { return runtime::rank_id(world_.ports_.size()); }
  void listen(channel on, handler* to) override { handlers_[std::size_t(on)] = to; }
  void on_failure(failure_handler*) override {}
  void cancel(runtime::completion&) override {}
  const counters& statistics() const noexcept override { return counted_; }

  runtime::errc send(runtime::rank_id to, channel on, std::span<const std::byte> header,
                     std::span<const std::byte> payload, runtime::completion* done) override {
    ++counted_.sent[std::size_t(on)];
    port& other = *world_.ports_[to];
    const bool eager = done == nullptr || payload.size() <= world_.model_.eager_bytes;
    const void* held = nullptr;
    if (!eager) {
      held = new offered{rank_, payload, done};
    } else if (!payload.empty()) {
      held = std::copy(payload.begin(), payload.end(), new std::byte[payload.size()]) - payload.size();
    }
    auto message = std::make_shared<runtime::arrival>(&other, header, payload.size(), held, !eager);
    const auto when =
        eager ? world_.crossed(rank_, to, payload.size()) : world_.ex_.deadline_in(world_.model_.latency_ns);
    world_.at(when, [&other, on, message] { other.deliver(on, std::move(*message)); });
    return eager ? runtime::errc::none : runtime::errc::pending;
  }

  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override {
    runtime::arrival taken = std::move(message);
    if (!taken.remote()) {
      std::copy(taken.payload().begin(), taken.payload().end(), into.begin());
      return runtime::errc::none;
    }
    const std::unique_ptr<const offered> offer(static_cast<const offered*>(taken.surrender()));
    const auto when = world_.crossed(offer->from, rank_, offer->payload.size());
    auto bring = [payload = offer->payload, into, done, sender = offer->sender] {
      std::copy(payload.begin(), payload.end(), into.begin());
      if (done != nullptr) done->on_end(*done, runtime::errc::none);
      sender->on_end(*sender, runtime::errc::none);
    };
    world_.at(when, std::move(bring));
    return runtime::errc::pending;
  }

 private:
  struct offered {
    runtime::rank_id from;
    std::span<const std::byte> payload;
    runtime::completion* sender;
  };
  void deliver(channel on, runtime::arrival&& message) {
    ++counted_.received[std::size_t(on)];
    if (handler* to = handlers_[std::size_t(on)]) to->on_arrival(std::move(message));
  }
  void release(const void* held, bool remote) noexcept override {
    if (!remote) {
      delete[] static_cast<const std::byte*>(held);
      return;
    }
    const std::unique_ptr<const offered> offer(static_cast<const offered*>(held));
    offer->sender->on_end(*offer->sender, runtime::errc::none);
  }

  modelled_world& world_;
  runtime::rank_id rank_;
  std::array<handler*, channels> handlers_{};
  counters counted_;
};

inline modelled_world::port& modelled_world::operator[](runtime::rank_id r) { return *ports_[r]; }

}  // namespace parley::bench
