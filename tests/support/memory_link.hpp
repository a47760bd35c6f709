#pragma once
/// A world of ranks in one process, on one virtual clock. Each rank has a link whose messages take a latency and a time per byte.
/// Payloads up to `eager_bytes` are copied when sent; larger ones stay with the sender until they are fetched.
///
/// A put completes at its origin after its transfer time, and lands later: after `landing_ns`, in any order with messages, or when the test
/// calls `land`. A put outside the memory that its key names fails. A put into withdrawn memory is dropped if `late` is `fail`.
#include <parley/config.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <set>
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
  std::function<time_ns(rank_id from, rank_id to, runtime::link::channel on)> delay;  ///< added to the latency
  std::function<bool(rank_id from, rank_id to, runtime::link::channel on)> breaks{};  ///< sends fail with `peer_failed`
  enum class memory : std::uint8_t { none, exposed } one_sided = memory::exposed;
  enum class fences : std::uint8_t { work, do_nothing, fail } fence = fences::work;
  enum class announcements : std::uint8_t { none, arrive, cut_short } announces = announcements::none;  ///< behind puts
  runtime::late_writes late = runtime::late_writes::fail;
  double one_sided_ns_per_byte = 0.1;
  time_ns landing_ns = 5'000;  ///< from a put's completion until it lands; `never`: when the test calls `land`
  /// A sender can take back a payload that it still keeps, such as lent memory; a later fetch fails.
  bool takes_back = false;
  std::size_t short_bytes = 128;  ///< `link::short_bytes`
};

class memory_world;

class memory_link final : public runtime::link {
 public:
  memory_link(memory_world& w, rank_id r) : world_(w), rank_(r) {}
  rank_id rank() const noexcept override { return rank_; }
  rank_id world_size() const noexcept override;
  std::size_t short_bytes() const noexcept override;
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
  void abandon(runtime::completion& pending) noexcept override;
  const counters& statistics() const noexcept override { return counters_; }
  runtime::result<> one_sided() const override;
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override;
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override;
  errc put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
           runtime::completion* done) override;
  errc get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
           runtime::completion* done) override;
  errc fence(rank_id to, runtime::completion* done) override;
  errc announce(rank_id to, channel on, std::span<const std::byte> header, runtime::completion* done) override;
  void deliver(channel on, runtime::arrival&& m) {
    if (gone_) {
      const runtime::arrival dropped = std::move(m);
      return;
    }
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
  using message_behind = std::optional<std::pair<channel, std::vector<std::byte>>>;
  errc start_fence(rank_id to, runtime::completion* done, message_behind brings);
  void release(const void* held, bool remote) noexcept override;
  memory_world& world_;
  rank_id rank_;
  handler* handlers_[channels]{};
  std::vector<runtime::arrival> kept_[channels];
  failure_handler* failure_ = nullptr;
  bool gone_ = false;  // its process has ended
  counters counters_;
};

class memory_world {
 public:
  memory_world(runtime::executor& ex, rank_id n, memory_link_options o = {}) : ex_(ex), options_(std::move(o)) {
    for (rank_id r = 0; r < n; ++r) links_.push_back(std::make_unique<memory_link>(*this, r));
  }
  // Ends all operations in flight, as a transport that closes does: their owners get their buffers back.
  ~memory_world() {
    while (!events_.empty()) {
      auto last = std::move(events_.front());
      events_.pop_front();
      last->action(outcome::torn_down);
    }
    for (const waiting_fence& f : fences_) f.done->on_end(*f.done, errc::peer_failed);
  }
  memory_link& operator[](rank_id r) { return *links_[r]; }
  memory_link_options& options() { return options_; }

  /// Ends the process of a rank, and all transports know it: the rank sends and receives nothing more, and operations that wait for it end
  /// with `peer_failed`. Puts that it made before still land.
  void end_process(rank_id r) {
    links_[r]->gone_ = true;
    for (auto& kept : links_[r]->kept_) kept.clear();
    end_fences();
  }

  struct put_counters {
    std::size_t landed = 0;
    std::size_t nowhere = 0;  ///< into withdrawn memory, or memory of a rank that has ended
    std::size_t outside = 0;  ///< outside the memory of the key, or with an unknown key: a fault of the protocol
    std::size_t in_the_air = 0;
  };
  const put_counters& puts() const noexcept { return puts_; }
  /// Lands the oldest put in the air. Returns whether there was one.
  bool land() {
    const auto oldest = std::find_if(flying_.begin(), flying_.end(), [](const auto& w) { return w.left_origin; });
    if (oldest == flying_.end()) return false;
    land(oldest);
    return true;
  }

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
    ex_.arm_in(*events_.back(), delay);
  }
  /// True if the operation's buffer is gone. Called once, when the operation ends.
  bool was_abandoned(runtime::completion* c) { return c != nullptr && abandoned_.erase(c) != 0; }
  // A payload that stays with its sender until it is fetched. `sender` is null once the sender has taken it back.
  struct offered {
    std::span<const std::byte> payload;
    runtime::completion* sender = nullptr;
    rank_id from = 0;
  };
  using offer = std::shared_ptr<offered>;
  bool take_back(const runtime::completion& pending) {
    std::erase_if(offers_, [](const auto& o) { return o.expired(); });
    for (const auto& kept : offers_) {
      const offer o = kept.lock();
      if (!options_.takes_back || o->sender != &pending) continue;
      after(0, [sender = std::exchange(o->sender, nullptr)](outcome) { sender->on_end(*sender, errc::cancelled); });
      o->payload = {};
      return true;
    }
    return false;
  }
  struct flying_put {
    std::uint64_t number;
    rank_id from;
    rank_id to;
    std::uint64_t key;
    std::uint64_t address;
    std::vector<std::byte> data;
    bool left_origin = false;
  };
  struct waiting_fence {
    rank_id from;
    rank_id to;
    std::uint64_t last_put;
    time_ns asked_there_ns;  // when the question reaches the peer
    runtime::completion* done;
    memory_link::message_behind brings;
  };
  // The exposed memory that a key and an address name, or null.
  std::byte* place_of(rank_id owner, std::span<const std::byte> key, std::uint64_t address, std::size_t bytes) {
    std::uint64_t number = 0;
    if (key.size() != sizeof number) return nullptr;
    std::memcpy(&number, key.data(), sizeof number);
    for (const region& r : regions_) {
      if (r.owner != owner || r.number != number) continue;
      const auto begin = reinterpret_cast<std::uint64_t>(r.bytes.data());
      if (address < begin || address - begin > r.bytes.size() || bytes > r.bytes.size() - (address - begin))
        return nullptr;
      return r.bytes.data() + (address - begin);
    }
    return nullptr;
  }
  std::deque<flying_put>::iterator find_put(std::uint64_t number) {
    return std::find_if(flying_.begin(), flying_.end(), [&](const auto& w) { return w.number == number; });
  }
  void leave_origin(std::uint64_t number, std::span<const std::byte> data) {
    const auto at = find_put(number);
    at->data.assign(data.begin(), data.end());
    at->left_origin = true;
    ++puts_.in_the_air;
    if (options_.landing_ns == runtime::never) return;
    after(options_.landing_ns, [this, number](outcome how) {
      const auto put = find_put(number);
      if (how == outcome::due && put != flying_.end()) land(put);
    });
  }
  void land(std::deque<flying_put>::iterator at) {
    const flying_put w = std::move(*at);
    flying_.erase(at);
    --puts_.in_the_air;
    region& r = regions_[w.key - 1];
    if (links_[w.to]->gone_ || (r.withdrawn && options_.late == runtime::late_writes::fail)) {
      ++puts_.nowhere;
    } else {
      std::copy(w.data.begin(), w.data.end(), reinterpret_cast<std::byte*>(w.address));
      ++puts_.landed;
    }
    end_fences();
  }
  void end_fences() {
    for (std::size_t i = 0; i < fences_.size();) {
      const waiting_fence f = fences_[i];
      const bool waits = ex_.now() < f.asked_there_ns ||
                         std::any_of(
                             flying_.begin(), flying_.end(),
                             [&](const auto& w) { return w.from == f.from && w.to == f.to && w.number <= f.last_put; });
      if (waits) {
        ++i;
        continue;
      }
      fences_.erase(fences_.begin() + static_cast<std::ptrdiff_t>(i));
      if (f.brings) links_[f.to]->deliver(f.brings->first, runtime::arrival(f.brings->second, {}));
      after(options_.latency_ns, [this, f](outcome how) {
        was_abandoned(f.done);
        f.done->on_end(*f.done, how == outcome::due && !links_[f.to]->gone_ ? errc::none : errc::peer_failed);
      });
    }
  }
  struct region {
    rank_id owner;
    std::uint64_t number;
    std::span<std::byte> bytes;
    bool withdrawn = false;
  };
  time_ns one_sided_time_of(std::size_t bytes) const {
    return options_.latency_ns + static_cast<time_ns>(options_.one_sided_ns_per_byte * static_cast<double>(bytes));
  }
  time_ns time_of(std::size_t bytes) const {
    return options_.latency_ns + static_cast<time_ns>(options_.ns_per_byte * static_cast<double>(bytes));
  }

  runtime::executor& ex_;
  memory_link_options options_;
  std::list<std::unique_ptr<event>> events_;
  std::vector<region> regions_;  // of all ranks; the number of a region is its index + 1
  std::deque<flying_put> flying_;
  std::vector<std::weak_ptr<offered>> offers_;
  std::vector<waiting_fence> fences_;
  std::set<runtime::completion*> abandoned_;  // completions of operations that have not ended
  std::uint64_t last_put_ = 0;
  put_counters puts_;
  std::vector<std::unique_ptr<memory_link>> links_;
};

inline rank_id memory_link::world_size() const noexcept { return static_cast<rank_id>(world_.links_.size()); }

inline std::size_t memory_link::short_bytes() const noexcept { return world_.options_.short_bytes; }

inline errc memory_link::send(rank_id to, channel on, std::span<const std::byte> header,
                              std::span<const std::byte> payload, runtime::completion* done) {
  if (world_.options_.breaks && world_.options_.breaks(rank_, to, on)) return errc::peer_failed;
  ++counters_.sent[static_cast<std::size_t>(on)];
  counters_.payload_bytes_sent += payload.size();
  if (gone_ || (world_.options_.lose && world_.options_.lose(rank_, to, on))) return errc::none;
  const bool eager = done == nullptr || payload.size() <= world_.options_.eager_bytes;
  const void* held = nullptr;
  if (!eager) {
    auto* const offer = new memory_world::offer(new memory_world::offered{payload, done, rank_});
    world_.offers_.emplace_back(*offer);
    held = offer;
  } else if (!payload.empty()) {
    auto* copy = new std::byte[payload.size()];
    std::copy(payload.begin(), payload.end(), copy);
    held = copy;
  }
  auto message = std::make_shared<runtime::arrival>(world_.links_[to].get(), header, payload.size(), held, !eager);
  const time_ns extra = world_.options_.delay ? world_.options_.delay(rank_, to, on) : 0;
  world_.after(extra + world_.time_of(eager ? payload.size() : 0), [this, to, on, message](memory_world::outcome how) {
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
  const std::unique_ptr<const memory_world::offer> held(static_cast<const memory_world::offer*>(message.surrender()));
  const memory_world::offer offer = *held;
  if (offer->sender == nullptr) return errc::send_failed;
  world_.after(world_.time_of(offer->payload.size()), [this, offer, into, done](memory_world::outcome how) {
    const auto payload = offer->payload;
    auto* const sender = offer->sender;
    if (sender == nullptr) {
      if (done != nullptr) done->on_end(*done, errc::send_failed);
      return;
    }
    offer->sender = nullptr;  // from now on the sender cannot take it back
    const memory_link& origin = *world_.links_[offer->from];
    const bool sender_went = world_.was_abandoned(sender);
    const bool receiver_went = world_.was_abandoned(done);
    const bool ends = gone_ || origin.gone_;
    const bool due = how == memory_world::outcome::due && !sender_went && !receiver_went && !ends;
    if (due) std::copy(payload.begin(), payload.end(), into.begin());
    if (done != nullptr) done->on_end(*done, due ? errc::none : errc::peer_failed);
    if (!due) return sender->on_end(*sender, errc::peer_failed);
    world_.after(world_.options_.latency_ns, [&w = world_, sender](memory_world::outcome) {
      w.was_abandoned(sender);
      sender->on_end(*sender, errc::none);
    });
  });
  return errc::pending;
}

inline runtime::result<> memory_link::one_sided() const {
  if (world_.options_.one_sided == memory_link_options::memory::exposed) return {};
  return runtime::error{errc::unavailable, "memory_link was told to have no one-sided transfers"};
}

inline runtime::result<runtime::exposed_memory> memory_link::expose(std::span<std::byte> memory) {
  if (const auto can = one_sided(); !can) return can.reason();
  runtime::exposed_memory made;
  made.number = world_.regions_.size() + 1;
  made.bytes = memory;
  made.key.resize(sizeof made.number);
  std::memcpy(made.key.data(), &made.number, sizeof made.number);
  world_.regions_.push_back({rank_, made.number, memory});
  return made;
}

inline runtime::late_writes memory_link::withdraw(const runtime::exposed_memory& memory) {
  world_.regions_[memory.number - 1].withdrawn = true;
  return world_.options_.late;
}

inline errc memory_link::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                             runtime::completion* done) {
  counters_.payload_bytes_sent += data.size();
  if (world_.place_of(to, at.key, at.address, data.size()) == nullptr) {
    ++world_.puts_.outside;
    return errc::bad_argument;
  }
  std::uint64_t key = 0;
  std::memcpy(&key, at.key.data(), sizeof key);
  const std::uint64_t number = ++world_.last_put_;
  world_.flying_.push_back({number, rank_, to, key, at.address, {}});
  world_.after(world_.one_sided_time_of(data.size()), [&w = world_, number, data, done](auto how) {
    if (w.was_abandoned(done)) {
      w.flying_.erase(w.find_put(number));
      w.end_fences();
      return done->on_end(*done, errc::peer_failed);
    }
    if (how == memory_world::outcome::torn_down) return done->on_end(*done, errc::peer_failed);
    w.leave_origin(number, data);
    done->on_end(*done, errc::none);
  });
  return errc::pending;
}

inline errc memory_link::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                             runtime::completion* done) {
  const std::byte* const place = world_.place_of(from, at.key, at.address, into.size());
  if (place == nullptr) return errc::bad_argument;
  world_.after(world_.options_.latency_ns + world_.one_sided_time_of(into.size()),
               [&w = world_, &origin = *world_.links_[from], place, into, done](auto how) {
                 const bool due = !w.was_abandoned(done) && how == memory_world::outcome::due && !origin.gone_;
                 if (due) std::copy(place, place + into.size(), into.begin());
                 done->on_end(*done, due ? errc::none : errc::peer_failed);
               });
  return errc::pending;
}

inline errc memory_link::fence(rank_id to, runtime::completion* done) { return start_fence(to, done, {}); }

inline errc memory_link::announce(rank_id to, channel on, std::span<const std::byte> header,
                                  runtime::completion* done) {
  using announcements = memory_link_options::announcements;
  if (world_.options_.announces == announcements::none) return errc::unavailable;
  if (world_.options_.announces == announcements::cut_short) {
    world_.after(world_.options_.latency_ns, [done](memory_world::outcome) { done->on_end(*done, errc::cancelled); });
    return errc::pending;
  }
  if (world_.options_.fence == memory_link_options::fences::do_nothing) return send(to, on, header, {}, nullptr);
  return start_fence(to, done, std::pair(on, std::vector(header.begin(), header.end())));
}

inline errc memory_link::start_fence(rank_id to, runtime::completion* done, message_behind brings) {
  if (world_.options_.fence == memory_link_options::fences::do_nothing) return errc::none;
  if (world_.options_.fence == memory_link_options::fences::fail) return errc::peer_failed;
  const time_ns asked_there_ns = world_.ex_.deadline_in(world_.options_.latency_ns);
  world_.fences_.push_back({rank_, to, world_.last_put_, asked_there_ns, done, std::move(brings)});
  world_.after(world_.options_.latency_ns, [&w = world_](memory_world::outcome how) {
    if (how == memory_world::outcome::due) w.end_fences();
  });
  return errc::pending;
}

// Cancels a payload that can be taken back, or a fence without a message. Other operations go on, as in a transport that cannot cancel.
inline void memory_link::cancel(runtime::completion& pending) {
  if (world_.take_back(pending)) return;
  const auto waits = [&](const memory_world::waiting_fence& f) { return f.done == &pending && !f.brings; };
  if (std::erase_if(world_.fences_, waits) == 0) return;
  world_.after(0, [&w = world_, &pending](memory_world::outcome) {
    w.was_abandoned(&pending);
    pending.on_end(pending, errc::cancelled);
  });
}
// An abandoned operation ends at its usual time at both ends, but moves no data.
inline void memory_link::abandon(runtime::completion& pending) noexcept {
  if (!world_.take_back(pending)) world_.abandoned_.insert(&pending);
}

inline void memory_link::release(const void* held, bool remote) noexcept {
  if (!remote) {
    delete[] static_cast<const std::byte*>(held);
    return;
  }
  const std::unique_ptr<const memory_world::offer> offer(static_cast<const memory_world::offer*>(held));
  auto* const sender = std::exchange((*offer)->sender, nullptr);
  if (sender == nullptr) return;
  world_.was_abandoned(sender);
  sender->on_end(*sender, gone_ ? errc::peer_failed : errc::none);  // as with UCX: a drop is not a failed send
}

}  // namespace parley::tests
