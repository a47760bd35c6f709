#pragma once
/// A whole world of ranks in one process, on one virtual clock: each rank has a link whose messages take a latency and a time
/// per byte. Payloads up to `eager_bytes` are copied when sent; larger ones stay with the sender until they are fetched.
#include <parley/runtime/executor.hpp>
#include <parley/runtime/link.hpp>

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <vector>

namespace parley::tests {

using runtime::errc;
using runtime::rank_id;
using runtime::time_ns;

struct memory_link_options {
  time_ns latency_ns = 1'000;
  double ns_per_byte = 0.1;
  std::size_t eager_bytes = 8192;
  std::function<bool(rank_id from, rank_id to, runtime::link::channel on)> lose;
};

class memory_world;

class memory_link final : public runtime::link {
 public:
  memory_link(memory_world& w, rank_id r) : world_(w), rank_(r) {}
  rank_id rank() const noexcept override { return rank_; }
  rank_id world_size() const noexcept override;
  void listen(channel on, handler* to) override {
    handlers_[static_cast<std::size_t>(on)] = to;
    if (to == nullptr) return;
    auto kept = std::move(kept_[static_cast<std::size_t>(on)]);
    kept_[static_cast<std::size_t>(on)].clear();
    for (auto& m : kept) to->on_arrival(std::move(m));
  }
  void on_failure(failure_handler* to) override { failure_ = to; }
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            runtime::completion* done) override;
  errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  void cancel(runtime::completion& pending) override;
  const counters& statistics() const noexcept override { return counters_; }
  void deliver(channel on, runtime::arrival&& m) {
    ++counters_.received[static_cast<std::size_t>(on)];
    auto* h = handlers_[static_cast<std::size_t>(on)];
    if (h != nullptr) {
      h->on_arrival(std::move(m));
    } else {
      kept_[static_cast<std::size_t>(on)].push_back(std::move(m));
    }
  }

 private:
  friend memory_world;
  void release(const void* held, bool remote) noexcept override;
  memory_world& world_;
  rank_id rank_;
  handler* handlers_[channels]{};
  std::vector<runtime::arrival> kept_[channels];
  failure_handler* failure_ = nullptr;
  counters counters_;
};

class memory_world {
 public:
  memory_world(runtime::executor& ex, rank_id n, memory_link_options o = {}) : ex_(ex), options_(std::move(o)) {
    for (rank_id r = 0; r < n; ++r) links_.push_back(std::make_unique<memory_link>(*this, r));
  }
  // What is still under way ends like transfers of a transport that is closed: everybody gets their memory back.
  ~memory_world() {
    while (!events_.empty()) {
      auto last = std::move(events_.front());
      events_.pop_front();
      last->action(outcome::torn_down);
    }
  }
  memory_link& operator[](rank_id r) { return *links_[r]; }
  memory_link_options& options() { return options_; }

 private:
  friend memory_link;
  enum class outcome : std::uint8_t { due, torn_down };
  struct event : runtime::timer {
    event(memory_world& w, std::function<void(outcome)> f) : timer(&on_time), owner(w), action(std::move(f)) {}
    static void on_time(timer& self) noexcept {
      auto& e = static_cast<event&>(self);
      auto action = std::move(e.action);
      e.owner.events_.erase(e.place);
      action(outcome::due);
    }
    memory_world& owner;
    std::function<void(outcome)> action;
    std::list<std::unique_ptr<event>>::iterator place;
  };
  void after(time_ns delay, std::function<void(outcome)> f) {
    events_.push_back(std::make_unique<event>(*this, std::move(f)));
    events_.back()->place = std::prev(events_.end());
    ex_.arm(*events_.back(), ex_.now() + delay);
  }
  // A payload that waits at its sender.
  struct offered {
    std::span<const std::byte> payload;
    runtime::completion* sender = nullptr;
  };
  time_ns time_of(std::size_t bytes) const {
    return options_.latency_ns + static_cast<time_ns>(options_.ns_per_byte * static_cast<double>(bytes));
  }

  runtime::executor& ex_;
  memory_link_options options_;
  std::list<std::unique_ptr<event>> events_;
  std::vector<std::unique_ptr<memory_link>> links_;
};

inline rank_id memory_link::world_size() const noexcept { return static_cast<rank_id>(world_.links_.size()); }

inline errc memory_link::send(rank_id to, channel on, std::span<const std::byte> header,
                              std::span<const std::byte> payload, runtime::completion* done) {
  ++counters_.sent[static_cast<std::size_t>(on)];
  counters_.payload_bytes_sent += payload.size();
  if (world_.options_.lose && world_.options_.lose(rank_, to, on)) return errc::none;
  const bool eager = done == nullptr || payload.size() <= world_.options_.eager_bytes;
  const void* held = nullptr;
  if (!eager) {
    held = new memory_world::offered{payload, done};
  } else if (!payload.empty()) {
    auto* copy = new std::byte[payload.size()];
    std::copy(payload.begin(), payload.end(), copy);
    held = copy;
  }
  auto message = std::make_shared<runtime::arrival>(world_.links_[to].get(), header, payload.size(), held, !eager);
  world_.after(world_.time_of(eager ? payload.size() : 0), [this, to, on, message](memory_world::outcome how) {
    if (how == memory_world::outcome::due) world_.links_[to]->deliver(on, std::move(*message));
  });
  return eager ? errc::none : errc::pending;
}

inline errc memory_link::fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) {
  if (!message.remote()) {
    std::copy(message.payload().begin(), message.payload().end(), into.begin());
    counters_.copied_bytes += message.length();
    const runtime::arrival dropped = std::move(message);
    return errc::none;
  }
  const std::unique_ptr<const memory_world::offered> offer(
      static_cast<const memory_world::offered*>(message.surrender()));
  const auto payload = offer->payload;
  auto* sender = offer->sender;
  world_.after(world_.time_of(payload.size()), [this, payload, into, done, sender](memory_world::outcome how) {
    const bool due = how == memory_world::outcome::due;
    if (due) std::copy(payload.begin(), payload.end(), into.begin());
    if (done != nullptr) done->on_end(*done, due ? errc::none : errc::peer_failed);
    if (!due) return sender->on_end(*sender, errc::peer_failed);
    world_.after(world_.options_.latency_ns, [sender](memory_world::outcome) { sender->on_end(*sender, errc::none); });
  });
  return errc::pending;
}

// What has been offered stays offered: like a transport that cannot take a message back.
inline void memory_link::cancel(runtime::completion&) {}

inline void memory_link::release(const void* held, bool remote) noexcept {
  if (!remote) {
    delete[] static_cast<const std::byte*>(held);
    return;
  }
  const std::unique_ptr<const memory_world::offered> offer(static_cast<const memory_world::offered*>(held));
  offer->sender->on_end(*offer->sender, errc::none);  // as UCX has it: dropped is not failed
}

}  // namespace parley::tests
