#pragma once
/// Ranks whose messages stay in flight until a search chooses which one arrives next. Each rank has its own executor and clock, so that
/// only messages connect the ranks (explorer.hpp relies on that). A rank's clock stands still unless the search advances it.
///
/// Messages may arrive in any order. A message may be lost as soon as it is sent (a later loss has the same effect), or arrive twice.
/// A put lands at any time after its start, and a fence ends at any time after the puts before it have landed. Memory of another rank is
/// read at any time, by a get or to fetch the payload of a large message. `bounds` limits the number of losses, repetitions and timers.
#include <parley/tests/small_scope/explorer.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/services.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/time/virtual_time.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

namespace parley::tests {

using runtime::errc;
using runtime::time_ns;

struct bounds {
  std::size_t losses = 0;
  std::size_t repetitions = 0;
  std::size_t timers = 0;         ///< how often the search advances a clock to its rank's next timer
  bool acknowledge_late = false;  ///< acknowledgements arrive in any order, too
};

class held_world;

/// A payload that stays in its sender's memory until the receiver fetches or releases it.
struct lent_payload {
  rank_id from = 0;
  std::span<const std::byte> bytes;
  runtime::completion* done = nullptr;  // completes the send
};

/// An operation or message in flight.
struct held {
  enum class kind : std::uint8_t { message, put, fence, announcement, answer, read };
  kind what = kind::message;
  rank_id from = 0;
  rank_id to = 0;
  runtime::link::channel on = runtime::link::channel::control;
  std::vector<std::byte> header;
  std::vector<std::byte> payload;
  std::byte* place = nullptr;           // where a put or a read writes to
  std::span<const std::byte> source{};  // what a read reads, in the memory of `to`
  const lent_payload* lent = nullptr;   // the payload of a large message, or of the read that fetches it
  runtime::completion* done =
      nullptr;  // what to complete: a fence, an announcement (a fence with a message), its answer, a send or a read
  std::uint64_t number = 0;  // counts in the order of sending
  std::uint64_t name = 0;
  bool fresh = true;  // the latest event sent it

  /// The body of a control message, if it has type `M`.
  template <class M>
  std::optional<M> as() const {
    if (type() != M::message_type) return std::nullopt;
    auto m = runtime::decode<M>(payload);
    if (!m) return std::nullopt;
    return std::move(*m);
  }
  template <class M>
  void replace(const M& m) {
    runtime::frame_header h = frame();
    payload.clear();
    runtime::encode(m, payload);
    h.body_bytes = static_cast<std::uint32_t>(payload.size());
    std::memcpy(header.data(), &h, sizeof h);
  }
  runtime::frame_header frame() const {
    runtime::frame_header h;
    std::memcpy(&h, header.data(), sizeof h);
    return h;
  }
  /// The type of a control message; 0 for everything else.
  std::uint16_t type() const {
    return what == kind::message && on == runtime::link::channel::control ? frame().type : std::uint16_t{0};
  }
};

class held_link final : public runtime::link {
 public:
  held_link(held_world& w, rank_id r) : world_(w), rank_(r) {}
  rank_id rank() const noexcept override { return rank_; }
  rank_id world_size() const noexcept override;
  void listen(channel on, handler* to) override { handlers_[static_cast<std::size_t>(on)] = to; }
  void on_failure(failure_handler*) override {}
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            runtime::completion*) override;
  errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion*) override;
  void cancel(runtime::completion&) override {}
  const counters& statistics() const noexcept override { return counters_; }
  runtime::result<> one_sided() const override { return {}; }
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override {
    return runtime::exposed_memory{.number = 1, .bytes = memory, .key = std::vector<std::byte>(8)};
  }
  runtime::late_writes withdraw(const runtime::exposed_memory&) override;
  errc put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data, runtime::completion*) override;
  errc get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
           runtime::completion* done) override;
  errc fence(rank_id to, runtime::completion* done) override;
  errc announce(rank_id to, channel on, std::span<const std::byte> header, runtime::completion* done) override;
  void deliver(const held& m) {
    auto* const h = handlers_[static_cast<std::size_t>(m.on)];
    if (h == nullptr) return;
    if (m.lent != nullptr) return h->on_arrival({this, m.header, m.lent->bytes.size(), m.lent, true});
    std::byte* const copy = m.payload.empty() ? nullptr : new std::byte[m.payload.size()];
    std::copy(m.payload.begin(), m.payload.end(), copy);
    h->on_arrival({this, m.header, m.payload.size(), copy, false});
  }
  void give_back(const lent_payload& lent) noexcept;
  bool withdrawn = false;

 private:
  void release(const void* held, bool remote) noexcept override;
  held_world& world_;
  rank_id rank_;
  handler* handlers_[channels]{};
  counters counters_;
};

struct site {
  site(held_world& w, rank_id r, std::vector<std::uint64_t> incarnations)
      : net(w, r), mail(clock, net, {}), data(net), actors(clock),
        shared{clock, actors, net, mail, data, flight, std::move(incarnations)} {}
  /// Runs the loop until it can only go on with a message or a later time.
  void settle() {
    while (clock.ready() || clock.next_timer() <= clock.now()) clock.turn();
  }
  runtime::virtual_time clock;
  held_link net;
  runtime::flight_recorder flight{64};
  runtime::router mail;
  actors::data_hub data;
  runtime::scope actors;
  actors::services shared;
};

class held_world : public scenario {
 public:
  held_world(rank_id n, bounds b)
      : ranks(n), bounds_(b), breaches_([this](const runtime::breach& found) { breaks(found.sentence()); }) {
    std::vector<std::uint64_t> incarnations;
    for (rank_id r = 0; r < n; ++r) incarnations.push_back(1000 + r);
    for (rank_id r = 0; r < n; ++r) sites.push_back(std::make_unique<site>(*this, r, incarnations));
  }

  // What a scenario adds: the steps of its programs, whose ids the scenario chooses, and what a fair world would do last.
  virtual std::vector<event> steps() = 0;
  virtual void step(const event& e) = 0;
  virtual std::string name_of_step(const event& e) = 0;
  /// Does what the programs still have to do, if they can; returns whether they did anything.
  virtual bool go_on() = 0;
  virtual bool over() = 0;
  /// Called after a fair end: reports what does not hold although every rank had what it needed.
  virtual void judge() = 0;
  virtual std::string unfinished() = 0;
  /// Sees each message that is sent; a mutant may change it. Returns false if the message is lost.
  virtual bool on_send(held&) { return true; }
  virtual bool on_deliver(held&) { return true; }
  /// Whether the message may arrive at once, so that the search need not try later arrivals.
  virtual bool comes_at_once(const held& m) const {
    return m.type() == actors::ack::message_type && bounds_.timers == 0 && !bounds_.acknowledge_late;
  }
  virtual void on_landing(const held&) {}
  virtual void on_reading(const held&) {}
  /// Checks what must hold after each event.
  virtual void look() {}

  // An acknowledgement removes a letter from an outbox, and only timers look at outboxes. While no timer can fire, an acknowledgement does
  // not change what else may happen, so the search delivers it at once and does not try later arrivals.
  std::vector<event> possible() final {
    std::vector<event> all;
    for (std::uint32_t i = 0; i < in_flight.size() && all.empty(); ++i) {
      if (comes_at_once(in_flight[i])) add_events_of(i, all);
    }
    if (!all.empty()) return all;
    all = steps();
    for (std::uint32_t i = 0; i < in_flight.size(); ++i) add_events_of(i, all);
    for (rank_id r = 0; fired_ < bounds_.timers && r < sites.size(); ++r) {
      if (sites[r]->clock.next_timer() != runtime::never) all.push_back({timer_name, r, 0, time + r});
    }
    return all;
  }
  void add_events_of(std::uint32_t i, std::vector<event>& all) const {
    const held& h = in_flight[i];
    const auto same = [&](const held& other) { return other.name == h.name; };
    if (!may_end(h) || std::find_if(in_flight.begin(), in_flight.end(), same) != in_flight.begin() + i) return;
    all.push_back({h.name, ends_at(h), 0, arrives + i});
    if (h.what != held::kind::message || h.lent != nullptr) return;
    if (repeated_ < bounds_.repetitions) all.push_back({h.name, h.to, mix(h.name + 1), arrives_again + i});
    if (h.fresh && lost_ < bounds_.losses && h.on == runtime::link::channel::control)
      all.push_back({mix(h.name + 2), event::nobody, mix(h.name + 2), lost + i});
  }
  void happen(const event& e) final {
    act(e);
    look();
  }
  void act(const event& e) {
    if (e.id < arrives) {
      for (held& h : in_flight) h.fresh = false;
      step(e);
      sites[e.where]->settle();
      return;
    }
    const std::uint32_t i = e.id % span;
    if (e.id < time) {
      for (held& h : in_flight) h.fresh = h.fresh && e.id >= lost;  // two messages sent together may both be lost
      const bool again = e.id >= arrives_again && e.id < lost;
      held m = again ? in_flight[i] : take(i);
      if (again) in_flight[i].name = mix(m.name + 3);  // renamed: a router drops a copy, but not a retry
      repeated_ += again ? 1 : 0;
      lost_ += e.id >= lost ? 1 : 0;
      if (e.id < lost) arrive(m);
    } else {
      for (held& h : in_flight) h.fresh = false;
      ++fired_;
      let_time_pass(i);
    }
  }
  void let_time_pass(rank_id r) {
    sites[r]->clock.advance_to(sites[r]->clock.next_timer());
    sites[r]->settle();
  }
  std::string describe(const event& e) final {
    if (e.id < arrives) return name_of_step(e);
    const std::uint32_t i = e.id % span;
    if (e.id >= time) return "time goes on for rank " + std::to_string(i);
    const held& h = in_flight[i];
    return text_of(h) + (e.id >= lost ? " is lost" : e.id >= arrives_again ? " arrives, and will again" : " arrives");
  }
  /// Delivers everything, lets the programs go on and advances time, until everything is over or nothing is left that could progress it.
  void finish() final {
    for (std::size_t round = 0; round < 2'000 && !broken; ++round) {
      bool moved = true;
      while (moved && !broken) {
        moved = go_on();
        for (auto& s : sites) s->settle();
        for (std::uint32_t i = 0; i < in_flight.size() && !broken; ++i) {
          if (!may_end(in_flight[i])) continue;
          held m = take(i--);
          arrive(m);
          moved = true;
        }
      }
      if (broken || over()) break;
      const auto earliest = std::min_element(sites.begin(), sites.end(), [](const auto& a, const auto& b) {
        return a->clock.next_timer() < b->clock.next_timer();
      });
      if ((*earliest)->clock.next_timer() == runtime::never) break;
      let_time_pass(static_cast<rank_id>(earliest - sites.begin()));
    }
    look();
    if (!broken && !over()) breaks(unfinished());
    if (!broken) judge();
  }

  const rank_id ranks;
  bool fences_work = true;
  bool fences_bring_messages = false;
  bool withdrawing_works = true;
  std::size_t most_sent_along = ~std::size_t{0};  // the receiver has to fetch a larger payload
  // Declared before the sites, because it must outlive them.
  std::deque<lent_payload> lent;
  struct network : std::vector<held> {
    ~network() {
      for (const held& h : *this) {
        if (h.done != nullptr) h.done->on_end(*h.done, errc::peer_failed);
        if (h.lent != nullptr) h.lent->done->on_end(*h.lent->done, errc::peer_failed);
      }
    }
  } in_flight;
  std::vector<std::unique_ptr<site>> sites;

  void enter(held m) {
    if (m.what == held::kind::message && !on_send(m)) return;
    m.number = ++sent_;
    m.name = name_of(m);
    in_flight.push_back(std::move(m));
  }
  static std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t h) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min<std::size_t>(8, bytes.size()))) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), std::min<std::size_t>(8, bytes.size()));
      h = mix(h ^ word) + 1;
    }
    return h;
  }
  static std::string text_of(const held& h) {
    const std::string way = " " + std::to_string(h.from) + "->" + std::to_string(h.to);
    if (h.what == held::kind::put) return "the put" + way;
    if (h.what == held::kind::fence) return "the end of the fence" + way;
    if (h.what == held::kind::answer) return "the end of the send" + way;
    if (h.what == held::kind::announcement) return "what is behind the puts" + way;
    if (h.what == held::kind::read) return "what is read" + way;
    const std::string what = h.type() != 0 ? "message " + std::to_string(h.type()) : "data";
    return what + way + " #" + std::to_string(h.number);
  }

 private:
  static constexpr std::uint32_t span = 1U << 16U;  // id = action (a multiple of `span`) + index of the message or rank
  static constexpr std::uint32_t arrives = span;
  static constexpr std::uint32_t arrives_again = 2 * span;
  static constexpr std::uint32_t lost = 3 * span;
  static constexpr std::uint32_t time = 4 * span;
  static constexpr std::uint64_t timer_name = 0x71ae;

  // The name leaves out a frame's acknowledgement and its sequence number. Nothing depends on them within a window of 64 frames, and with
  // them the same message would have another name in each order.
  std::uint64_t name_of(const held& m) const {
    std::uint64_t h =
        mix(m.from * 1024 + m.to * 16 + static_cast<std::uint64_t>(m.what) * 4 + static_cast<std::uint64_t>(m.on) + 1);
    if (m.type() != 0) {
      runtime::frame_header f = m.frame();
      f.accepted = 0;
      f.sequence = 0;
      h = hash_of(std::as_bytes(std::span(&f, 1)), h);
    } else {
      h = hash_of(m.header, h);
    }
    h = hash_of(m.payload, h) ^ mix(reinterpret_cast<std::uint64_t>(m.place));
    const auto same = [&](const held& other) { return other.name == h; };
    while (m.done != nullptr && std::any_of(in_flight.begin(), in_flight.end(), same)) h = mix(h);
    return h;
  }
  static rank_id ends_at(const held& h) {
    return h.what == held::kind::fence || h.what == held::kind::answer || h.what == held::kind::read ? h.from : h.to;
  }
  bool may_end(const held& h) const {
    if (h.what != held::kind::fence && h.what != held::kind::announcement) return true;
    return std::none_of(in_flight.begin(), in_flight.end(), [&](const held& p) {
      return p.what == held::kind::put && p.from == h.from && p.to == h.to && p.number < h.number;
    });
  }
  held take(std::size_t i) {
    held m = std::move(in_flight[i]);
    in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(i));
    return m;
  }
  void arrive(held& m) {
    switch (m.what) {
      case held::kind::message:
        if (on_deliver(m)) sites[m.to]->net.deliver(m);
        break;
      case held::kind::put:
        on_landing(m);
        if (!sites[m.to]->net.withdrawn) std::copy(m.payload.begin(), m.payload.end(), m.place);
        break;
      case held::kind::announcement: {
        sites[m.to]->net.deliver(m);
        held answer;
        answer.what = held::kind::answer;
        answer.from = m.from;
        answer.to = m.to;
        answer.done = m.done;
        enter(std::move(answer));
        break;
      }
      case held::kind::read:
        on_reading(m);
        std::copy(m.source.begin(), m.source.end(), m.place);
        m.done->on_end(*m.done, errc::none);
        if (m.lent != nullptr) sites[m.to]->net.give_back(*m.lent);
        break;
      case held::kind::fence:
      case held::kind::answer: m.done->on_end(*m.done, errc::none); break;
    }
    sites[ends_at(m)]->settle();
  }

  bounds bounds_;
  runtime::breach_watch breaches_;
  std::uint64_t sent_ = 0;
  std::size_t lost_ = 0;
  std::size_t repeated_ = 0;
  std::size_t fired_ = 0;
};

inline rank_id held_link::world_size() const noexcept { return world_.ranks; }
inline errc held_link::send(rank_id to, channel on, std::span<const std::byte> header,
                            std::span<const std::byte> payload, runtime::completion* done) {
  held m;
  m.from = rank_;
  m.to = to;
  m.on = on;
  m.header.assign(header.begin(), header.end());
  const bool stays = done != nullptr && payload.size() > world_.most_sent_along;
  if (stays) {
    m.lent = &world_.lent.emplace_back(lent_payload{rank_, payload, done});
  } else {
    m.payload.assign(payload.begin(), payload.end());
  }
  world_.enter(std::move(m));
  return stays ? errc::pending : errc::none;
}
inline errc held_link::fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) {
  runtime::arrival taken = std::move(message);
  if (!taken.remote()) {
    std::copy(taken.payload().begin(), taken.payload().end(), into.begin());
    return errc::none;
  }
  held m;
  m.what = held::kind::read;
  m.from = rank_;
  m.lent = static_cast<const lent_payload*>(taken.surrender());
  m.to = m.lent->from;
  m.source = m.lent->bytes;
  m.place = into.data();
  m.done = done;
  world_.enter(std::move(m));
  return errc::pending;
}
inline errc held_link::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                           runtime::completion* done) {
  held m;
  m.what = held::kind::read;
  m.from = rank_;
  m.to = from;
  m.source = {reinterpret_cast<const std::byte*>(at.address), into.size()};
  m.place = into.data();
  m.done = done;
  world_.enter(std::move(m));
  return errc::pending;
}
inline void held_link::release(const void* held, bool remote) noexcept {
  if (remote) {
    give_back(*static_cast<const lent_payload*>(held));
  } else {
    delete[] static_cast<const std::byte*>(held);
  }
}
// The payload's sender learns, at some later time, that nobody reads the payload any more.
inline void held_link::give_back(const lent_payload& payload) noexcept {
  held m;
  m.what = held::kind::answer;
  m.from = payload.from;
  m.to = rank_;
  m.done = payload.done;
  world_.enter(std::move(m));
}
inline errc held_link::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                           runtime::completion*) {
  held m;
  m.what = held::kind::put;
  m.from = rank_;
  m.to = to;
  m.place = reinterpret_cast<std::byte*>(at.address);
  m.payload.assign(data.begin(), data.end());
  world_.enter(std::move(m));
  return errc::none;
}
inline runtime::late_writes held_link::withdraw(const runtime::exposed_memory&) {
  withdrawn = world_.withdrawing_works;
  return runtime::late_writes::fail;
}
inline errc held_link::fence(rank_id to, runtime::completion* done) {
  if (!world_.fences_work) return errc::none;
  held m;
  m.what = held::kind::fence;
  m.from = rank_;
  m.to = to;
  m.done = done;
  world_.enter(std::move(m));
  return errc::pending;
}
inline errc held_link::announce(rank_id to, channel on, std::span<const std::byte> header, runtime::completion* done) {
  if (!world_.fences_bring_messages) return errc::unavailable;
  if (!world_.fences_work) return send(to, on, header, {}, nullptr);
  held m;
  m.what = held::kind::announcement;
  m.from = rank_;
  m.to = to;
  m.on = on;
  m.header.assign(header.begin(), header.end());
  m.done = done;
  world_.enter(std::move(m));
  return errc::pending;
}

}  // namespace parley::tests
