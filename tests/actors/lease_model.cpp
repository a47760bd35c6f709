// Explores every interleaving of the lease scheme at small bounds. It runs the same functions as the actors. The network is the set of
// all messages ever sent. Each message may be delivered any number of times, in any order, or never; this covers loss, repetition,
// reordering and any delay.
#include <parley/actors/leases/lease.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

using namespace parley::actors;

namespace {

constexpr std::uint64_t c0 = 100;
constexpr std::uint64_t first_generation_number = 0x10000;

enum class restart : std::uint8_t { never, log_kept_in_op, log_lost, log_lost_and_fenced };

struct bounds {
  std::size_t participants = 2;
  std::uint64_t invocations = 3;
  std::size_t campaigns = 1;
  std::vector<std::uint64_t> margins{0, 1};
  restart coordinator = restart::never;
  bool aborts = true;
  bool refusals = false;
  bool acknowledgements = true;  // without them, every letter carries the whole log
  std::size_t most_states = 100'000;
};

/// A message in the network: a letter to a participant, or a participant's answer.
struct message {
  std::size_t participant = 0;
  bool to_writer = false;
  lease_letter letter;
  lease_answer answer;
};

void put(std::string& text, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7U) text += static_cast<char>(number | 0x80U);
  text += static_cast<char>(number);
}
void put(std::string& text, const std::vector<lease_entry>& entries) {
  put(text, entries.size());
  for (const auto& e : entries) {
    for (const auto number : {std::uint64_t(e.what), e.from, e.tail}) put(text, number);
    for (const auto& s : e.segments) {
      put(text, s.digest);
      put(text, s.count);
    }
  }
}
std::string text_of(const message& m) {
  std::string text = m.to_writer ? "a " : "l ";
  put(text, m.participant);
  if (m.to_writer) {
    for (const auto number :
         {std::uint64_t(m.answer.what), m.answer.generation, m.answer.campaign, m.answer.from, m.answer.known})
      put(text, number);
  } else {
    for (const auto number : {std::uint64_t(m.letter.what), m.letter.generation, m.letter.campaign, m.letter.after})
      put(text, number);
    put(text, m.letter.entries);
  }
  return text;
}

/// The honest participant, and mutants of it below.
struct honest : lease_reader {
  using lease_reader::lease_reader;
  bool ready() const { return may_start(); }
  lease begin() { return start(); }
  lease_answer prepared(const lease_letter& l, std::uint64_t margin) { return on_prepare(l, margin); }
};
struct without_gate : honest {
  using honest::honest;
  bool ready() const { return true; }
  lease begin() {
    const auto kept = std::exchange(gate_, std::nullopt);
    const lease l = start();
    gate_ = kept;
    return l;
  }
};
struct promise_that_changes : honest {
  using honest::honest;
  lease_answer prepared(const lease_letter& l, std::uint64_t margin) {
    gate_.reset();
    return on_prepare(l, margin);
  }
};
struct gate_that_leaks : honest {  // lets one invocation too many through
  using honest::honest;
  bool ready() const { return may_start() || next_ == gated()->from; }
  lease begin() {
    const auto kept = std::exchange(gate_, std::nullopt);
    const lease l = start();
    gate_ = kept;
    return l;
  }
};

template <class Holder>
class exploration {
 public:
  explicit exploration(bounds b) : bounds_(std::move(b)) {}

  struct outcome {
    bool safe = true;
    bool complete = true;
    std::size_t states = 0;
    std::size_t stuck = 0;  // states from which not all participants can finish
    std::string violation;
  };

  outcome run() {
    state first{std::vector<player>(bounds_.participants, player{Holder(first_generation_number, c0), {}}),
                lease_writer(first_generation_number, c0, bounds_.participants),
                {},
                false};
    add(std::move(first), none);
    outcome o;
    for (std::size_t at = 0; at < states_.size() && violation_.empty(); ++at) {
      if (states_.size() > bounds_.most_states) {
        o.complete = false;
        break;
      }
      current_ = at;
      const state here = states_[at];  // a copy, because `states_` grows
      expand(here);
    }
    o.safe = violation_.empty();
    o.violation = violation_;
    o.states = states_.size();
    if (o.safe && o.complete) o.stuck = count_stuck();
    return o;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct ran {
    std::uint64_t generation, invocation, digest;
  };
  struct player {
    Holder reader;
    std::vector<ran> history;
  };
  struct state {
    std::vector<player> players;
    lease_writer writer;
    std::vector<std::uint16_t> network;  // indices into `messages_`, ascending
    bool restarted = false;
  };

  std::size_t intern(const message& m) {
    const auto [at, fresh] = numbers_.emplace(text_of(m), messages_.size());
    if (fresh) messages_.push_back(m);
    return at->second;
  }
  std::string key_of(const state& s) const {
    std::string text;
    for (const player& p : s.players) {
      put(text, p.reader.generation());
      put(text, p.reader.next());
      put(text, p.reader.gated() ? p.reader.gated()->campaign : 0);
      put(text, p.reader.gated() ? p.reader.gated()->from : 0);
      put(text, p.reader.log().entries());
      for (const ran& r : p.history) put(text, r.digest);
      text += '|';
    }
    put(text, s.writer.generation());
    put(text, s.writer.preparing());
    put(text, s.writer.log().entries());
    for (std::size_t p = 0; p < s.players.size(); ++p) {
      put(text, s.writer.known(p));
      put(text, s.writer.preparing() && s.writer.promised(p));
    }
    put(text, s.writer.preparing() ? s.writer.first() : 0);
    put(text, s.restarted);
    for (const std::size_t m : s.network) put(text, m);
    return text;
  }
  void add(state s, std::size_t from) {
    const auto [at, fresh] = known_.emplace(key_of(s), states_.size());
    if (fresh) {
      check(s);
      states_.push_back(std::move(s));
      before_.emplace_back();
    }
    if (from != none) before_[at->second].push_back(from);
  }
  // S1, S2: all participants run the same config in an invocation of a generation: the one that was assigned.
  void check(const state& s) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> seen;
    for (const player& p : s.players) {
      for (const ran& r : p.history) {
        const auto [at, fresh] = seen.emplace(std::pair{r.generation, r.invocation}, r.digest);
        if (!fresh && at->second != r.digest)
          violation_ = "invocation " + std::to_string(r.invocation) + " ran as " + std::to_string(at->second) +
                       " and as " + std::to_string(r.digest);
      }
    }
  }
  void send_letters(state& s) {
    for (std::size_t p = 0; p < s.players.size(); ++p) {
      message m;
      m.participant = p;
      m.letter = s.writer.letter_to(p);
      if (m.letter.what != lease_letter::kind::nothing) enter(s, m);
    }
  }
  void enter(state& s, const message& m) {
    const auto number = static_cast<std::uint16_t>(intern(m));
    const auto at = std::lower_bound(s.network.begin(), s.network.end(), number);
    if (at == s.network.end() || *at != number) s.network.insert(at, number);
  }
  void answer(state& s, std::size_t p, const lease_answer& a) {
    if (a.what == lease_answer::kind::none) return;
    // The writer writes nothing after the last campaign, so nobody needs to know who has the last entry.
    if (a.what == lease_answer::kind::known && (a.known >= bounds_.campaigns || !bounds_.acknowledgements)) return;
    message m;
    m.participant = p;
    m.to_writer = true;
    m.answer = a;
    enter(s, m);
  }

  void expand(const state& here) {
    write(here);
    for (std::size_t p = 0; p < here.players.size(); ++p) {
      const Holder& reader = here.players[p].reader;
      if (reader.next() < bounds_.invocations && reader.ready()) {
        state s = here;
        const lease l = s.players[p].reader.begin();
        s.players[p].history.push_back({reader.generation(), l.invocation, l.digest});
        add(std::move(s), current_);
      }
    }
    for (const std::size_t number : here.network) {
      const message m = messages_[number];
      m.to_writer ? hear(here, m) : deliver(here, m);
    }
  }
  void write(const state& here) {
    if (!here.writer.preparing() && here.writer.log().size() < bounds_.campaigns) {
      state s = here;
      s.writer.prepare();
      send_letters(s);
      add(std::move(s), current_);
    }
    if (here.writer.preparing() && bounds_.aborts) {
      state s = here;
      s.writer.abort();
      send_letters(s);
      add(std::move(s), current_);
    }
    if (here.writer.preparing() && here.writer.all_promised()) {
      state s = here;
      const std::uint64_t c = s.writer.campaign();
      // Campaigns alternate: a trial with its dead-man's switch, then a decision.
      if (c % 2 == 1) {
        s.writer.schedule({{c0 + c, 1}}, s.writer.log().tail());
      } else {
        s.writer.schedule({}, c0 + c);
      }
      send_letters(s);
      add(std::move(s), current_);
    }
    if (bounds_.coordinator != restart::never && !here.restarted) {
      state s = here;
      s.restarted = true;
      const std::uint64_t g = s.writer.generation();
      if (bounds_.coordinator == restart::log_kept_in_op) {
        send_letters(s);
      } else {
        s.writer =
            lease_writer(bounds_.coordinator == restart::log_lost ? g : generation_after(g), c0, s.players.size());
      }
      add(std::move(s), current_);
    }
  }
  void hear(const state& here, const message& m) {
    state s = here;
    const auto heard = s.writer.on_answer(m.participant, m.answer);
    if (heard == lease_writer::heard::refused) s.writer.abort();
    if (heard == lease_writer::heard::refused || heard == lease_writer::heard::noted) send_letters(s);
    add(std::move(s), current_);
  }
  void deliver(const state& here, const message& m) {
    const std::size_t p = m.participant;
    if (is_later_generation(m.letter.generation, here.players[p].reader.generation())) {
      state s = here;
      s.players[p].reader = Holder(m.letter.generation, c0);
      add(std::move(s), current_);
      return;
    }
    if (m.letter.what == lease_letter::kind::schedule) {
      state s = here;
      answer(s, p, s.players[p].reader.on_schedule(m.letter));
      add(std::move(s), current_);
      return;
    }
    for (const std::uint64_t margin : bounds_.margins) {
      state s = here;
      answer(s, p, s.players[p].reader.prepared(m.letter, margin));
      add(std::move(s), current_);
    }
    if (bounds_.refusals && !here.players[p].reader.gated()) {
      state s = here;
      answer(s, p,
             {.what = lease_answer::kind::refuse,
              .generation = m.letter.generation,
              .campaign = m.letter.campaign,
              .from = 0,
              .known = s.players[p].reader.log().size()});
      add(std::move(s), current_);
    }
  }

  // L1: from every state, while messages can get through, all participants can still run all their invocations.
  std::size_t count_stuck() const {
    std::vector<bool> can(states_.size(), false);
    std::deque<std::size_t> open;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const auto finished = [&](const player& p) { return p.reader.next() == bounds_.invocations; };
      if (!std::all_of(states_[i].players.begin(), states_[i].players.end(), finished)) continue;
      can[i] = true;
      open.push_back(i);
    }
    while (!open.empty()) {
      const std::size_t at = open.front();
      open.pop_front();
      for (const std::size_t b : before_[at]) {
        if (can[b]) continue;
        can[b] = true;
        open.push_back(b);
      }
    }
    return static_cast<std::size_t>(std::count(can.begin(), can.end(), false));
  }

  bounds bounds_;
  std::vector<message> messages_;
  std::map<std::string, std::size_t> numbers_;
  std::deque<state> states_;
  std::vector<std::vector<std::size_t>> before_;
  std::unordered_map<std::string, std::size_t> known_;
  std::size_t current_ = 0;
  std::string violation_;
};

template <class Holder>
auto explore(bounds b) {
  auto o = exploration<Holder>(std::move(b)).run();
  MESSAGE(o.states << " states");
  return o;
}

void check_safe(const bounds& b) {
  const auto o = explore<honest>(b);
  CHECK(o.complete);
  CHECK_MESSAGE(o.safe, o.violation);
  CHECK(o.stuck == 0);
}

}  // namespace

TEST_CASE("in no interleaving do two participants run one invocation with different configs, or get stuck") {
  SUBCASE("two participants, one campaign") { check_safe({.invocations = 3, .campaigns = 1}); }
  SUBCASE("two campaigns: a trial with its dead-man's switch, then the decision") {
    check_safe({.invocations = 2, .campaigns = 2, .margins = {1}, .acknowledgements = false});
    check_safe({.invocations = 1, .campaigns = 2, .margins = {0}, .aborts = false});
  }
  SUBCASE("three participants") { check_safe({.participants = 3, .invocations = 2, .campaigns = 1, .margins = {0}}); }
  SUBCASE("participants that refuse") { check_safe({.invocations = 2, .campaigns = 1, .refusals = true}); }
  SUBCASE("a coordinator that restarts with the log kept in the op") {
    check_safe({.invocations = 2, .campaigns = 1, .coordinator = restart::log_kept_in_op});
  }
  SUBCASE("a coordinator whose log is lost begins another generation") {
    check_safe({.invocations = 1, .campaigns = 1, .margins = {0}, .coordinator = restart::log_lost_and_fenced});
  }
}

TEST_CASE("the exploration finds each planted fault") {
  SUBCASE("participants without a gate") {
    CHECK_FALSE(explore<without_gate>({.invocations = 4, .campaigns = 1}).safe);
  }
  SUBCASE("a gate that lets one invocation through") {
    CHECK_FALSE(explore<gate_that_leaks>({.invocations = 3, .campaigns = 1}).safe);
  }
  SUBCASE("a promise that changes when it is asked for again") {
    CHECK_FALSE(explore<promise_that_changes>({.invocations = 3, .campaigns = 1}).safe);
  }
  SUBCASE("a coordinator that lost its log and reuses numbers within the generation") {
    CHECK_FALSE(
        explore<honest>({.invocations = 1, .campaigns = 1, .margins = {0}, .coordinator = restart::log_lost}).safe);
  }
}
