// Explores one edge: both ends are the actors that programs run, with credits, gets, large messages, timeouts and failing sends. The
// search tries every order in which messages, puts, fences and reads can complete.
#include <parley/tests/small_scope/held_world.hpp>

#include <parley/actors/edge/edge_receiver.hpp>
#include <parley/actors/edge/edge_sender.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::uint64_t in_parts = 77;  // the default
constexpr std::uint64_t put_digest = 88;
constexpr std::uint64_t get_digest = 99;
constexpr std::size_t whole_bytes = 64;
constexpr std::size_t half = whole_bytes / 2;
constexpr time_ns ms = 1'000'000;

enum class flaw : std::uint8_t {
  none,
  no_fence,
  memory_stays_open,  // the link of a sender that was declared dead can still put
  numbers_unchecked,  // the sender accepts credits that were revoked
  revoke_ignored,     // the sender acknowledges a revoke but keeps using the revoked credits
  answers_to_any,     // the receiver accepts the answer to one revoke as the answer to another
  poison_lost,
  by_arrival,       // the receiver matches data to invocations in the order of arrival
  too_large,        // credits promise more room than the buffer has
  word_of_another,  // the receiver reports the wrong get as read
  word_lost,        // the receiver's report of a get is lost
};

struct edge_setup {
  std::vector<std::size_t> sizes{whole_bytes, whole_bytes};  // bytes of each send
  std::vector<std::size_t> room{whole_bytes};                // bytes of the receive buffers, used in turns
  std::size_t parts = 1;                                     // number of parts of each send
  std::size_t failures = 0;
  enum class late : std::uint8_t { first, last } first_late = late::first;
  bool credits = true;
  bool gets = false;   // the op uses gets instead of puts
  bool large = false;  // payloads stay with the sender until the receiver fetches them
  bool fences_bring_stamps = false;
  bool dies = false;  // the receiver may declare the sender dead while it lives on
  bounds allowed{};
  flaw broken = flaw::none;
};

struct sent {
  std::uint64_t digest = 0;
  std::span<std::byte> data;  // overwritten once the send has ended, as its user may do then
  std::byte value{};
  std::optional<std::size_t> fails_after;  // the send fails after this many parts
  std::optional<errc> ended;
};
struct posted {
  std::span<std::byte> buffer;
  time_ns deadline = never;
  part_receiver* live = nullptr;
  std::optional<errc> ended;
  std::optional<std::uint64_t> invocation;
  std::uint64_t digest = 0;
};

// The buffers have the same address in every run, because credits and gets contain addresses.
std::array<std::byte, 1024> memory_of_receiver;
std::array<std::byte, 1024> memory_of_sender;
constexpr std::byte used_again{0xee};

op_declaration one_edge() {
  auto op = declare_edge("edge", 0, 1, "");
  op.default_config = "in_parts";
  op.default_digest = in_parts;
  return op;
}

class edge_world final : public held_world {
 public:
  explicit edge_world(const edge_setup& setup)
      : held_world(2, setup.allowed), setup_(setup), op_(one_edge()),
        assigned_(in_parts, "in_parts", "", {0, 1}, tuning_policy::off, {}), memory_(sites[1]->net, memory_of_receiver),
        source_(sites[0]->net, memory_of_sender), out_(sites[0]->shared, op_, 5, assigned_),
        in_(sites[1]->shared, op_, 5), sending_(sites[0]->clock), receiving_(sites[1]->clock) {
    fences_work = setup_.broken != flaw::no_fence;
    fences_bring_messages = setup_.fences_bring_stamps;
    withdrawing_works = setup_.broken != flaw::memory_stays_open;
    if (setup_.large) most_sent_along = 0;
    memory_of_receiver.fill(std::byte{0});
    memory_of_sender.fill(used_again);
    sends_.reserve(setup_.sizes.size());
    receives_.reserve(most_receives);
    if (setup_.gets) {
      out_.allow_one_sided({}, {get_digest});
      in_.allow_one_sided();
      out_.one_sided()->add_memory(source_.region());
      assigned_.open({in_parts, get_digest}, {"in_parts", "get"}, {{"64B", "get", 1.0}}, 0);
    } else if (setup_.credits) {
      out_.allow_one_sided({put_digest}, {});
      in_.allow_one_sided();
      in_.add_memory(memory_.region());
      in_.want_credits();
      assigned_.open({in_parts, put_digest}, {"in_parts", "put"}, {{"64B", "put", 1.0}, {"32B", "put", 1.0}}, 0);
    }
    for (auto& s : sites) s->settle();
  }

  std::vector<event> steps() override {
    std::vector<event> all;
    if (sends_.size() < setup_.sizes.size()) {
      const std::uint32_t parts = failed_ < setup_.failures ? static_cast<std::uint32_t>(setup_.parts) : 0;
      for (std::uint32_t i = 0; i <= parts; ++i) all.push_back({send + i, 0, 0, send + i});
    }
    if (!dead_ && in_.next_invocation(0) < setup_.sizes.size() && receives_.size() < most_receives)
      all.push_back({receive, 1, 0, receive});
    if (setup_.dies && !dead_) all.push_back({declare_dead, 1, 0, declare_dead});
    return all;
  }
  void step(const event& e) override {
    switch (e.id) {
      case receive:
        return post(setup_.first_late == edge_setup::late::first
                        ? ms * static_cast<time_ns>(1 + receives_.size())
                        : ms * static_cast<time_ns>(most_receives - receives_.size()));
      case declare_dead:
        dead_ = true;
        in_.fail(errc::peer_failed);
        return;
      case send: return begin_send(std::nullopt);
      default: ++failed_; return begin_send(e.id - send - 1);
    }
  }
  std::string name_of_step(const event& e) override {
    switch (e.id) {
      case receive: return "receive " + std::to_string(receives_.size()) + " is posted";
      case declare_dead: return "the sender is declared dead";
      default: break;
    }
    const std::string what = "send " + std::to_string(sends_.size());
    return e.id == send ? what : what + " fails after " + std::to_string(e.id - send - 1) + " parts";
  }
  void begin_send(std::optional<std::size_t> fails_after) {
    sent& s = sends_.emplace_back();
    const std::size_t n = sends_.size() - 1;
    s.data = std::span(memory_of_sender).subspan(n * 2 * whole_bytes, setup_.sizes[n]);
    s.value = static_cast<std::byte>(sends_.size());
    std::fill(s.data.begin(), s.data.end(), s.value);
    s.fails_after = fails_after;
    sending_.spawn(send_one(*this, s));
  }
  void post(time_ns deadline) {
    posted& r = receives_.emplace_back();
    const std::size_t n = receives_.size() - 1;
    r.buffer = std::span(memory_of_receiver).subspan(n * 2 * whole_bytes, setup_.room[n % setup_.room.size()]);
    r.deadline = deadline == never ? never : sites[1]->clock.deadline_in(deadline);
    receiving_.spawn(receive_one(*this, r));
  }

  static task<> send_one(edge_world& e, sent& s) {
    auto number = co_await e.out_.admit(0, s.data.size(), never);
    const outgoing inv = e.out_.begin(0, s.data.size(), *number, {}, s.data.data());
    s.digest = inv.mark.digest;
    part_sender parts(e.sites[0]->net, 1, inv.mark, inv.access);
    parts.keep_in_flight(2);
    const std::span<const std::byte> data(s.data);
    const std::size_t each = data.size() / e.setup_.parts;
    try {
      for (std::size_t i = 0; i < e.setup_.parts; ++i) {
        if (i == s.fails_after) parts.fail(errc::cancelled);
        const auto part = data.subspan(i * each, each);
        if (s.digest == get_digest) {
          if (i == 0) co_await parts.offer();
        } else if (s.digest == put_digest) {
          co_await parts.put(i * each, part);
        } else {
          co_await parts.send(i * each, part);
        }
      }
    } catch (const failure&) {}
    auto settled = co_await parts.settle();
    if (parts.has_put()) {
      parts.fence();
      settled = co_await parts.settle();
      parts.announce();
    }
    static_cast<void>(settled);
    e.out_.end(inv, parts);
    s.ended = parts.failed();
    std::fill(s.data.begin(), s.data.end(), used_again);
  }
  static task<> receive_one(edge_world& e, posted& r) {
    part_receiver parts(e.in_, 0, r.buffer.size(), part_receiver::kind::user, nullptr, r.buffer.data());
    r.live = &parts;
    parts.keep_in_flight(2);
    auto seen = co_await parts.match(r.deadline);
    if (seen) {
      try {
        const std::size_t each = seen->total_bytes / e.setup_.parts;
        for (std::size_t i = 0; i < e.setup_.parts && !parts.landed(); ++i) {
          const auto part = r.buffer.subspan(i * each, each);
          if (seen->digest == get_digest) {
            co_await parts.get(i * each, part);
          } else {
            co_await parts.receive(i * each, part);
          }
        }
      } catch (const failure&) {}
    }
    const errc settled = co_await parts.settle();
    e.in_.note_end(parts);
    if (parts.matched()) r.invocation = parts.invocation();
    r.digest = parts.digest();
    r.live = nullptr;
    r.ended = seen ? settled : seen.code();
    e.on_end(r);
  }
  void on_end(posted& r) {
    if (!r.invocation) return;
    const std::uint64_t i = *r.invocation;
    const std::string what = "receive " + std::to_string(&r - receives_.data()) + " of invocation " + std::to_string(i);
    if (r.ended == errc::none) {
      const sent& s = sends_[i];
      if (r.digest != s.digest) breaks("S2: " + what + " ran another config than was stamped");
      const auto its = r.buffer.first(s.data.size());
      if (std::count(its.begin(), its.end(), s.value) != std::ssize(its)) breaks("S8: " + what + " has wrong bytes");
    }
    for (const posted& other : receives_) {
      if (&other == &r || !other.invocation) continue;
      if ((&other < &r) != (*other.invocation < i)) breaks("S1: " + what + " is out of the order of posting");
    }
  }
  void on_landing(const held& put) override {
    const std::size_t n = static_cast<std::size_t>(put.place - memory_of_receiver.data()) / (2 * whole_bytes);
    const posted& r = receives_[n];
    const std::uint64_t of = std::to_integer<std::uint64_t>(put.payload[0]) - 1;
    if (sites[1]->net.withdrawn) return;
    const std::string what = "S8: a put of invocation " + std::to_string(of) + " lands ";
    if (r.ended) return breaks(what + "in a buffer that its user has back");
    if (put.place + put.payload.size() > r.buffer.data() + r.buffer.size()) return breaks(what + "beyond its buffer");
    if (r.live != nullptr && r.live->matched() && r.live->invocation() != of)
      breaks(what + "in the buffer of invocation " + std::to_string(r.live->invocation()));
  }
  void on_reading(const held& read) override {
    const std::size_t n = static_cast<std::size_t>(read.source.data() - memory_of_sender.data()) / (2 * whole_bytes);
    if (sends_[n].ended) breaks("S8: the payload of send " + std::to_string(n) + " is read when its user has it back");
    const auto is_there = [&](const posted& r) {
      return r.buffer.data() <= read.place && read.place < r.buffer.data() + r.buffer.size();
    };
    const auto at = std::find_if(receives_.begin(), receives_.end(), is_there);
    if (at == receives_.end() || at->ended) breaks("S8: what is read lands in a buffer that its user has back");
  }
  bool on_send(held& m) override {
    if (auto t = m.as<actors::taken>(); t && t->what == actors::taken::kind::report) {
      if (setup_.broken == flaw::word_lost) return false;
      const auto is_got = [](const sent& s) { return s.digest == get_digest; };
      const bool swaps = sends_.size() == 2 && std::all_of(sends_.begin(), sends_.end(), is_got);
      if (setup_.broken == flaw::word_of_another && swaps) t->invocation ^= 1U;
      m.replace(*t);
    }
    if (auto c = m.as<actors::credit>()) {
      if (setup_.broken == flaw::numbers_unchecked) c->number += 1000;
      if (setup_.broken == flaw::too_large) c->capacity = whole_bytes;
      m.replace(*c);
    }
    if (auto r = m.as<actors::revoke>()) {
      last_revoke_ = r->number;
      if (setup_.broken == flaw::revoke_ignored) r->number = 0;
      m.replace(*r);
    }
    stamp s;
    if (setup_.broken == flaw::poison_lost && read_stamp(m.header, s) && has(s.flags, stamp_flags::poison))
      return false;
    return true;
  }
  bool on_deliver(held& m) override {
    if (auto a = m.as<actors::revoked>();
        a && (setup_.broken == flaw::revoke_ignored || setup_.broken == flaw::answers_to_any)) {
      a->number = last_revoke_;
      m.replace(*a);
    }
    stamp s;
    if (setup_.broken == flaw::by_arrival && read_stamp(m.header, s)) {
      if (s.offset == 0) s.invocation = arrived_++;
      std::memcpy(m.header.data(), &s, sizeof s);
    }
    return true;
  }

  bool go_on() override {
    if (sends_.size() < setup_.sizes.size()) {
      begin_send(std::nullopt);
    } else if (!dead_ && in_.next_invocation(0) < setup_.sizes.size() && receives_.size() < most_receives) {
      post(never);
    } else {
      return false;
    }
    return true;
  }
  bool over() override {
    const auto ended = [](const auto& one) { return one.ended.has_value(); };
    const bool all_ended = in_flight.empty() && std::all_of(sends_.begin(), sends_.end(), ended) &&
                           std::all_of(receives_.begin(), receives_.end(), ended);
    return all_ended && sends_.size() == setup_.sizes.size() && (dead_ || taken() == setup_.sizes.size());
  }
  std::size_t taken() const {
    return static_cast<std::size_t>(
        std::count_if(receives_.begin(), receives_.end(), [](const posted& r) { return r.invocation.has_value(); }));
  }
  std::string unfinished() override {
    for (const posted& r : receives_) {
      if (!r.ended) return "L2: receive " + std::to_string(&r - receives_.data()) + " never ends";
    }
    return taken() < setup_.sizes.size() ? "L2: a send is never received" : "L2: a send never ends";
  }
  void judge() override {
    for (const posted& r : receives_) {
      if (r.invocation && r.ended != errc::none && r.ended != errc::buffer_too_small && !dead_ &&
          !sends_[*r.invocation].fails_after)
        breaks("L2: a send that went well was not received");
    }
  }
  // For each invocation: how its payload was moved and which receive got it.
  std::string outcome() const override {
    std::string text;
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      for (std::size_t n = 0; n < receives_.size(); ++n) {
        if (receives_[n].invocation != i) continue;
        const char how = sends_[i].fails_after            ? 'X'
                         : sends_[i].digest == put_digest ? 'P'
                         : sends_[i].digest == get_digest ? 'G'
                                                          : 'C';
        text += how + std::to_string(n);
      }
    }
    return text;
  }

 private:
  static constexpr std::size_t most_receives = 8;
  enum : std::uint32_t { receive = 1, declare_dead, send = 16 };
  edge_setup setup_;
  op_declaration op_;
  assignment assigned_;
  registered_memory memory_;
  registered_memory source_;
  edge_sender out_;
  edge_receiver in_;
  std::vector<sent> sends_;
  std::vector<posted> receives_;
  std::size_t failed_ = 0;
  bool dead_ = false;
  std::uint64_t last_revoke_ = 0;
  std::uint32_t arrived_ = 0;
  scope sending_;
  scope receiving_;
};

explorer::maker making(const edge_setup& s) {
  return [s] { return std::make_unique<edge_world>(s); };
}

using outcomes = std::set<std::string>;

/// Returns all outcomes of the search, such as `C0P2`: receive 0 got the first message in parts, and receive 2 got the second one by a
/// put. `G` stands for a get.
outcomes check_safe(const std::string& name, const edge_setup& s) {
  const findings f = explore(name, making(s));
  CHECK_MESSAGE(f.safe(), f.how());
  return f.outcomes;
}
void check_broken(const std::string& name, const edge_setup& s, const std::string& invariant) {
  tests::check_broken(name, making(s), invariant);
}
/// Compares with the outcomes that edge_model.py predicts for as many sends and timeouts. The model does not say which send fails, so
/// outcomes with a failed send are left out.
void check_predicted(outcomes come_to, const outcomes& predicted) {
  std::erase_if(come_to, [](const std::string& o) { return o.find('X') != std::string::npos; });
  if (std::getenv("PARLEY_ORDER") == nullptr) CHECK(come_to == predicted);
}

constexpr auto last = edge_setup::late::last;

const outcomes in_order{"C0C1", "C0P1", "P0C1", "P0P1"};
const outcomes with_one_time_out{"C0C1", "C0C2", "C0P1", "C0P2", "C1C2", "C1P2",
                                 "P0C1", "P0C2", "P0P1", "P0P2", "P1C2", "P1P2"};

}  // namespace

TEST_CASE("an edge stays safe when a send fails after any part, and when a message arrives twice") {
  check_predicted(check_safe("failing", {.parts = 2, .failures = 1}), in_order);
  check_predicted(check_safe("repeated", {.failures = 1, .allowed = {.repetitions = 1}}), in_order);
  const outcomes three{"C0C1C2", "C0C1P2", "C0P1C2", "C0P1P2", "P0C1C2", "P0C1P2", "P0P1C2", "P0P1P2"};
  check_predicted(check_safe("three sends", {.sizes = {whole_bytes, whole_bytes, whole_bytes}}), three);
}

TEST_CASE("an edge stays safe when a receive times out, with or without an outstanding credit") {
  outcomes all = check_safe("late", {.failures = 1, .allowed = {.timers = 1}});
  all.merge(check_safe("late, the last one first", {.first_late = last, .allowed = {.timers = 1}}));
  check_predicted(all, with_one_time_out);
  all = check_safe("without credits", {.parts = 2, .failures = 1, .credits = false, .allowed = {.timers = 1}});
  check_predicted(all, {"C0C1", "C0C2", "C1C2"});
  check_safe("late again and again", {.sizes = {whole_bytes}, .allowed = {.timers = 3}});
  check_safe("of several sizes", {.sizes = {whole_bytes, half}, .room = {half, whole_bytes}, .allowed = {.timers = 1}});
  check_safe("lost", {.allowed = {.losses = 1, .timers = 1}});
}

TEST_CASE("an edge stays safe when a fence brings the stamp, which ends a receive before its sender hears of it") {
  check_predicted(check_safe("stamps behind puts", {.parts = 2, .failures = 1, .fences_bring_stamps = true}), in_order);
  outcomes all =
      check_safe("late, stamps behind puts", {.failures = 1, .fences_bring_stamps = true, .allowed = {.timers = 1}});
  all.merge(check_safe("late, stamps behind puts, the last one first",
                       {.first_late = last, .fences_bring_stamps = true, .allowed = {.timers = 1}}));
  check_predicted(all, with_one_time_out);
  check_safe("declared dead, stamps behind puts", {.failures = 1, .fences_bring_stamps = true, .dies = true});
}

TEST_CASE("an edge stays safe when a receiver gets payloads, whose senders have them back after the read") {
  const outcomes with_gets{"C0C1", "C0G1", "G0G1"};  // the receiver has learned of the sender's memory, or not yet
  check_predicted(check_safe("gets", {.parts = 2, .failures = 1, .gets = true}), with_gets);
  check_predicted(check_safe("gets, repeated", {.gets = true, .allowed = {.repetitions = 1}}), with_gets);
  const outcomes with_a_late_one{"C0C1", "C0C2", "C0G1", "C0G2", "C1C2", "C1G2", "G0G1", "G0G2", "G1G2"};
  check_predicted(check_safe("gets, late", {.failures = 1, .gets = true, .allowed = {.timers = 1}}), with_a_late_one);
  check_predicted(check_safe("gets, lost", {.gets = true, .allowed = {.losses = 1, .timers = 1}}), with_a_late_one);
  check_safe("gets, without room", {.room = {half, whole_bytes}, .gets = true});
  check_safe("gets, declared dead", {.failures = 1, .gets = true, .dies = true});
}

TEST_CASE("an edge stays safe when payloads stay with their senders, until they are fetched or no longer wanted") {
  check_predicted(check_safe("large", {.failures = 1, .credits = false, .large = true}), {"C0C1"});
  check_predicted(check_safe("large, in parts",
                             {.sizes = {whole_bytes}, .parts = 2, .failures = 1, .credits = false, .large = true}),
                  {"C0"});
  check_predicted(check_safe("large, late", {.failures = 1, .credits = false, .large = true, .allowed = {.timers = 1}}),
                  {"C0C1", "C0C2", "C1C2"});
  check_safe("large, without room", {.room = {half, whole_bytes}, .credits = false, .large = true});
  check_safe("large, beside puts", {.failures = 1, .large = true});
  check_safe("large, declared dead", {.failures = 1, .credits = false, .large = true, .dies = true});
}

TEST_CASE("the reduced search of an edge finds the same outcomes as the search of every interleaving") {
  const edge_setup s{.sizes = {whole_bytes}, .failures = 1, .allowed = {.timers = 1}};
  const findings some = explore("one send", making(s));
  const findings all = explore("one send, every interleaving", making(s), {.every_interleaving = true});
  CHECK_MESSAGE(all.safe(), all.how());
  CHECK(all.outcomes == some.outcomes);
}

TEST_CASE("an edge stays safe when a sender is declared dead, and lives on") {
  check_safe("declared dead", {.parts = 2, .failures = 1, .dies = true});
}

TEST_CASE("an edge stays safe in the deep searches, which last minutes") {
  if (!deep()) return;
  check_safe("large, in parts, failing", {.parts = 2, .failures = 1, .credits = false, .large = true});
  for (const auto first : {edge_setup::late::first, last}) {
    const std::string which = first == last ? ", the last one first" : "";
    check_safe("late, in parts" + which, {.parts = 2, .first_late = first, .allowed = {.timers = 1}});
    check_safe("late, repeated" + which, {.first_late = first, .allowed = {.repetitions = 1, .timers = 1}});
  }
}

TEST_CASE("the search finds every planted flaw of an edge, and names the broken invariant") {
  check_broken("no fence", {.broken = flaw::no_fence}, "S8");
  check_broken("no fence below the stamp", {.fences_bring_stamps = true, .broken = flaw::no_fence}, "S8");
  check_broken("memory that stays open", {.dies = true, .broken = flaw::memory_stays_open}, "S8");
  check_broken("numbers unchecked", {.allowed = {.timers = 1}, .broken = flaw::numbers_unchecked}, "S8");
  check_broken("a revoke that is ignored", {.allowed = {.timers = 1}, .broken = flaw::revoke_ignored}, "S8");
  check_broken("an answer to any revoke",
               {.sizes = {whole_bytes}, .allowed = {.timers = 3}, .broken = flaw::answers_to_any}, "S8");
  check_broken("a poison that is lost", {.failures = 1, .broken = flaw::poison_lost}, "L2");
  check_broken("matching by arrival", {.broken = flaw::by_arrival}, "S8");
  check_broken("credits that are too large", {.room = {half}, .broken = flaw::too_large}, "S8");
  check_broken("the word of another get", {.gets = true, .broken = flaw::word_of_another}, "S8");
  check_broken("the word of a get that is lost", {.gets = true, .broken = flaw::word_lost}, "L2");
  check_broken(
      "a large message whose poison is lost",
      {.sizes = {whole_bytes}, .parts = 2, .failures = 1, .credits = false, .large = true, .broken = flaw::poison_lost},
      "L2");
}
