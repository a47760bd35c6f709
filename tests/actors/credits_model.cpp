// Explores every interleaving of one stream of an edge at small scope. The sender and the receiver use the product's credit bookkeeping
// (actors/edge/credits.hpp) and follow docs/protocol.md (Edges). Control messages arrive late, repeatedly and in any order; puts land at
// any time; receives time out, sends fail, the generation changes, and a sender that was declared dead may still be alive. The search must
// find a violation for each rule that is taken out.
#include <parley/actors/edge/credits.hpp>
#include <parley/error.hpp>
#include <parley/runtime/invariant.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

using namespace parley::actors;

namespace {

enum class without : std::uint8_t {
  nothing,
  fence,                // R5: the stamp may overtake the put
  fenced_poison,        // R5: the poison may overtake the put
  fenced_generation,    // R5: the sender may change its generation before its puts are fenced
  revoke,               // R2: a receive that times out ends at once, without a revoke
  wait_for_answer,      // R2: a receive that times out revokes, and ends without waiting for the answer
  revoking_all,         // R2: a receive revokes only the credits up to its own
  numbers,              // R3: the sender accepts a credit that arrives after its revoke
  echo,                 // R3: any answer ends a revoke
  pause,                // R4: the receiver gives credits while a revoke is unanswered
  moving_up,            // R1: the next receive posted gets the index that was given back
  capacity,             // a put ignores how large the buffer is
  poison,               // R1: a failed send does not poison its index
  end_with_generation,  // credits outlive their generation
  withdrawal,           // R6: buffers of a dead sender are released while it may still write
};

struct limits {
  int sends = 2;
  int timeouts = 1;
  int errors = 0;
  int duplicates = 0;
  int generations = 0;
  bool dies = false;
  std::vector<int> sizes{1, 1, 1};
  std::vector<int> capacities{1};
  without rule = without::nothing;
};

// A control message. The control plane is a set, because each message is sent again until it can have no effect.
struct message {
  enum class kind : std::uint8_t { credit, revoke, answer, generation } what{};
  int generation = 0;
  std::uint64_t number = 0;
  std::uint64_t index = 0;  // of a credit: its index; of an answer: the sender's next index
  int posting = -1;
  int capacity = 0;
  friend auto operator<=>(const message&, const message&) = default;
};
struct datum {
  int generation = 0;
  int index = 0;
  char config = 'D';  // D: direct, P: put, X: poison
  int size = 0;
  friend auto operator<=>(const datum&, const datum&) = default;
};
struct write {  // a put in flight
  int posting = 0;
  int generation = 0;
  int index = 0;
  friend auto operator<=>(const write&, const write&) = default;
};
struct posting {
  int id = 0;
  int index = 0;
  int capacity = 0;
  std::uint64_t credit = 0;  // number of the credit outstanding for this buffer
  int content = -1;          // generation * 10 + invocation of the data written; -1: none
  bool leaving = false;
  friend auto operator<=>(const posting&, const posting&) = default;
};
struct sender {
  int generation = 0;
  int next = 0;
  credits_held held;
  std::uint64_t highest_revoked = 0;  // used by mutants only
  std::vector<write> unfenced;
  int errors = 0;
  friend auto operator<=>(const sender&, const sender&) = default;
};
struct receiver {
  int generation = 0;
  std::vector<posting> posted;  // receives posted or matched that have not ended
  int next_posting = 0;
  credits_given given;
  std::vector<int> ended;  // indices of ended receives
  std::vector<datum> early;
  int begun = 0;
  std::vector<std::pair<int, int>> log;  // (posting, index) of matched receives that have ended
  int timeouts = 0;
  bool dead = false;
  friend auto operator<=>(const receiver&, const receiver&) = default;
};
struct state {
  sender s;
  receiver r;
  std::vector<message> control;
  std::vector<datum> data;
  std::vector<write> writes;
  int duplicates = 0;
  friend auto operator<=>(const state&, const state&) = default;
};

struct broken {
  std::string rule;
};

template <class T>
void add(std::vector<T>& set, const T& one) {
  const auto at = std::lower_bound(set.begin(), set.end(), one);
  if (at == set.end() || *at != one) set.insert(at, one);
}

class world {
 public:
  explicit world(limits l) : limits_(std::move(l)) {}

  /// Returns `safe`, `stuck`, or the name of the broken invariant.
  std::string search() {
    std::map<state, int> number;
    std::vector<const state*> states;
    std::vector<std::vector<int>> before;
    const auto visit = [&](state next, int from) {
      forget_moot(next);
      const auto [at, is_new] = number.try_emplace(std::move(next), static_cast<int>(states.size()));
      if (is_new) {
        states.push_back(&at->first);
        before.emplace_back();
      }
      if (from >= 0) before[static_cast<std::size_t>(at->second)].push_back(from);
    };
    state first;
    first.duplicates = limits_.duplicates;
    visit(first, -1);
    try {
      for (std::size_t i = 0; i < states.size(); ++i) {
        successors_.clear();
        step(*states[i]);
        for (state& next : successors_) visit(std::move(next), static_cast<int>(i));
      }
    } catch (const broken& b) {
      return b.rule;
    }
    explored_ = states.size();
    std::vector<bool> can_finish(states.size());
    std::deque<int> todo;
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (!finished(*states[i])) continue;
      can_finish[i] = true;
      todo.push_back(static_cast<int>(i));
    }
    for (; !todo.empty(); todo.pop_front()) {
      for (const int b : before[static_cast<std::size_t>(todo.front())]) {
        if (can_finish[static_cast<std::size_t>(b)]) continue;
        can_finish[static_cast<std::size_t>(b)] = true;
        todo.push_back(b);
      }
    }
    return std::find(can_finish.begin(), can_finish.end(), false) == can_finish.end() ? "safe" : "stuck";
  }
  std::size_t explored() const noexcept { return explored_; }

 private:
  bool drops(without rule) const noexcept { return limits_.rule == rule; }

  bool finished(const state& x) const {
    if (x.r.dead) return true;
    return x.s.generation == x.r.generation && x.s.next == limits_.sends && x.s.unfenced.empty() && x.writes.empty() &&
           static_cast<int>(x.r.log.size()) == limits_.sends && x.r.posted.empty() && !x.r.given.revoking();
  }

  // Drops control messages that can have no effect any more, to keep the number of states small.
  void forget_moot(state& x) const {
    std::erase_if(x.control, [&](const message& m) {
      switch (m.what) {
        case message::kind::credit:
          if (drops(without::end_with_generation)) return false;
          if (m.generation < x.s.generation || x.r.dead) return true;
          return m.generation == x.s.generation && (static_cast<int>(m.index) < x.s.next ||
                                                    (!drops(without::numbers) && m.number <= x.s.highest_revoked));
        case message::kind::revoke:
          return m.generation < x.s.generation || m.generation != x.r.generation || !x.r.given.revoking();
        case message::kind::answer: return m.generation != x.r.generation || x.r.dead || answer_is_moot(x, m);
        case message::kind::generation: return m.generation <= x.r.generation;
      }
      return false;
    });
  }
  bool answer_is_moot(const state& x, const message& m) const {
    return !drops(without::echo) && !drops(without::revoking_all) && x.r.given.revoking() != m.number;
  }

  state& then(const state& x) { return successors_.emplace_back(x); }

  void step(const state& x) {
    send(x);
    end_fences(x);
    change_generation(x);
    for (const write& w : x.writes) land(then(x), w);
    for (const datum& d : x.data) {
      state& once = then(x);
      std::erase(once.data, d);
      bring(once, d);
      if (x.duplicates == 0) continue;
      state& again = then(x);
      --again.duplicates;
      bring(again, d);
    }
    for (const message& m : x.control) take(x, m);
    if (x.r.dead) return;
    post(x);
    for (const posting& p : x.r.posted) {
      if (p.index < x.r.begun) continue;
      give_again(x, p);
      if (x.r.timeouts < limits_.timeouts && !p.leaving) time_out(x, p);
    }
    if (limits_.dies) {
      state& y = then(x);
      y.r = {};
      y.r.dead = true;
      y.r.generation = x.r.generation;
    }
  }

  // ---- the sender
  void send(const state& x) {
    if (x.s.next == limits_.sends) return;
    const int i = x.s.next;
    const int size = limits_.sizes[static_cast<std::size_t>(i)];
    const auto begun = [&](state& y) {
      y.s.held.begun(static_cast<std::uint64_t>(i));
      ++y.s.next;
    };
    state& plain = then(x);
    begun(plain);
    add(plain.data, {x.s.generation, i, 'D', size});
    if (x.s.errors < limits_.errors) {
      state& failing = then(x);
      begun(failing);
      ++failing.s.errors;
      if (!drops(without::poison)) add(failing.data, {x.s.generation, i, 'X', 0});
    }
    const held_credit* const c =
        x.s.held.find(static_cast<std::uint64_t>(i), drops(without::capacity) ? 0 : static_cast<std::uint64_t>(size));
    if (c == nullptr) return;
    const write w{static_cast<int>(c->address), x.s.generation, i};
    state& put = then(x);
    begun(put);
    add(put.writes, w);
    if (drops(without::fence)) {
      add(put.data, {x.s.generation, i, 'P', size});
    } else {
      add(put.s.unfenced, w);
    }
  }
  void end_fences(const state& x) {
    for (const write& w : x.s.unfenced) {
      const bool landed = !std::binary_search(x.writes.begin(), x.writes.end(), w);
      if (landed) {
        state& stamped = then(x);
        std::erase(stamped.s.unfenced, w);
        add(stamped.data, {w.generation, w.index, 'P', limits_.sizes[static_cast<std::size_t>(w.index)]});
      }
      if ((landed || drops(without::fenced_poison)) && x.s.errors < limits_.errors) {
        state& failed = then(x);
        std::erase(failed.s.unfenced, w);
        ++failed.s.errors;
        add(failed.data, {w.generation, w.index, 'X', 0});
      }
    }
  }
  void change_generation(const state& x) {
    if (x.s.generation == limits_.generations) return;
    if (!x.s.unfenced.empty() && !drops(without::fenced_generation)) return;
    state& y = then(x);
    ++y.s.generation;
    y.s.next = 0;
    y.s.unfenced.clear();
    if (!drops(without::end_with_generation)) y.s.held = {};
    y.s.highest_revoked = 0;
    message m;
    m.what = message::kind::generation;
    m.generation = y.s.generation;
    add(y.control, m);
  }

  // ---- the receiver
  static posting* find(receiver& r, int index) {
    const auto at = std::find_if(r.posted.begin(), r.posted.end(), [&](const posting& p) { return p.index == index; });
    return at == r.posted.end() ? nullptr : &*at;
  }
  static bool has_ended(const receiver& r, int index) {
    return std::find(r.ended.begin(), r.ended.end(), index) != r.ended.end();
  }
  // The receive ends, and the user gets the buffer back.
  void end_matched(receiver& r, const posting& p) const {
    for (const auto& [id, index] : r.log) {
      if ((id < p.id) != (index < p.index)) throw broken{"order"};
    }
    add(r.log, {p.id, p.index});
    add(r.ended, p.index);
    std::erase_if(r.posted, [id = p.id](const posting& q) { return q.id == id; });
  }
  void leave(receiver& r, int id) const {
    const auto at = std::find_if(r.posted.begin(), r.posted.end(), [&](const posting& p) { return p.id == id; });
    const int index = at->index;
    r.posted.erase(at);
    if (drops(without::moving_up)) return;
    for (posting& p : r.posted) {
      if (p.index > index) --p.index;
    }
  }
  void note_begun(receiver& r, int count) const {
    r.begun = std::max(r.begun, count);
    r.given.begun(static_cast<std::uint64_t>(r.begun));
  }

  void land(state& y, const write& w) const {
    std::erase(y.writes, w);
    for (posting& p : y.r.posted) {
      if (p.id != w.posting) continue;
      if (limits_.sizes[static_cast<std::size_t>(w.index)] > p.capacity) throw broken{"beyond the capacity"};
      const int content = w.generation * 10 + w.index;
      if (p.content != -1 && p.content != content) throw broken{"two writers"};
      p.content = content;
      return;
    }
    if (y.r.dead && !drops(without::withdrawal)) return;  // the memory is withdrawn, so the put fails
    throw broken{"written after it was given back"};
  }

  void bring(state& y, const datum& d) const {
    receiver& r = y.r;
    if (r.dead || d.generation < r.generation || (d.generation == r.generation && has_ended(r, d.index))) return;
    if (d.generation > r.generation) return add(r.early, d);
    note_begun(r, d.index + 1);
    posting* const p = find(r, d.index);
    if (p == nullptr) return add(r.early, d);
    if (d.config == 'X' || d.size > p->capacity) return end_matched(r, *p);
    const int content = d.generation * 10 + d.index;
    if (d.config == 'D') {
      if (p->content != -1 && p->content != content) throw broken{"two writers"};
    } else if (p->content != content) {
      throw broken{"wrong or missing data"};
    }
    end_matched(r, *p);
  }

  void post(const state& x) {
    int index = 0;
    const auto taken = [&](int i) {
      return has_ended(x.r, i) ||
             std::any_of(x.r.posted.begin(), x.r.posted.end(), [&](const posting& p) { return p.index == i; });
    };
    while (taken(index)) ++index;
    if (index >= limits_.sends) return;
    for (const bool with_credit : {false, true}) {
      if (with_credit && !may_give(x.r)) continue;
      state& y = then(x);
      posting p;
      p.id = y.r.next_posting++;
      p.index = index;
      p.capacity = limits_.capacities[static_cast<std::size_t>(p.id) % limits_.capacities.size()];
      const bool unmatched = index >= y.r.begun;
      if (with_credit && unmatched) give(y, p);
      y.r.posted.push_back(p);
      std::vector<datum> now;
      for (const datum& d : y.r.early) {
        if (d.generation == y.r.generation && d.index == index) now.push_back(d);
      }
      std::erase_if(y.r.early, [&](const datum& d) { return d.generation == y.r.generation && d.index == index; });
      for (const datum& d : now) bring(y, d);
    }
  }
  bool may_give(const receiver& r) const { return r.given.may_give() || drops(without::pause); }
  void give(state& y, posting& p) const {
    message m;
    m.what = message::kind::credit;
    m.generation = y.r.generation;
    m.index = static_cast<std::uint64_t>(p.index);
    m.posting = p.id;
    m.capacity = p.capacity;
    // A mutant gives a credit that the bookkeeping forbids.
    m.number = y.r.given.may_give() && y.r.given.may_leave(m.index) ? y.r.given.give(m.index)
                                                                    : 50 + static_cast<std::uint64_t>(p.id);
    p.credit = m.number;
    add(y.control, m);
  }
  void give_again(const state& x, const posting& p) {
    if (p.credit != 0 || p.leaving || !x.r.given.may_give() ||
        !x.r.given.may_leave(static_cast<std::uint64_t>(p.index)))
      return;
    state& y = then(x);
    give(y, *find(y.r, p.index));
  }

  void time_out(const state& x, const posting& p) {
    state& y = then(x);
    ++y.r.timeouts;
    if (x.r.given.may_leave(static_cast<std::uint64_t>(p.index)) || drops(without::revoke)) return leave(y.r, p.id);
    message m;
    m.what = message::kind::revoke;
    m.generation = y.r.generation;
    m.number = y.r.given.revoke();
    if (drops(without::revoking_all)) m.number = std::min(m.number, p.credit);
    add(y.control, m);
    if (drops(without::wait_for_answer)) return leave(y.r, p.id);
    find(y.r, p.index)->leaving = true;
  }

  // ---- control messages
  void take(const state& x, const message& m) {
    switch (m.what) {
      case message::kind::credit: return take_credit(x, m);
      case message::kind::revoke: return answer(x, m);
      case message::kind::answer: return take_answer(x, m);
      case message::kind::generation: return join_generation(x, m);
    }
  }
  void take_credit(const state& x, const message& m) {
    if (m.generation != x.s.generation && !drops(without::end_with_generation)) return;
    held_credit c;
    c.index = m.index;
    c.number = m.number;
    c.address = static_cast<std::uint64_t>(m.posting);
    c.capacity = static_cast<std::uint64_t>(m.capacity);
    if (drops(without::numbers) && m.number <= x.s.highest_revoked) c.number += 20;
    state y = x;
    if (y.s.held.take(std::move(c), static_cast<std::uint64_t>(x.s.next))) successors_.push_back(std::move(y));
  }
  void answer(const state& x, const message& m) {
    if (m.generation != x.s.generation) return;
    state& y = then(x);
    y.s.held.revoke(m.number);
    y.s.highest_revoked = std::max(y.s.highest_revoked, m.number);
    message a;
    a.what = message::kind::answer;
    a.generation = m.generation;
    a.number = m.number;
    a.index = static_cast<std::uint64_t>(x.s.next);
    add(y.control, a);
  }
  void take_answer(const state& x, const message& m) {
    state y = x;
    const bool any = drops(without::echo) || drops(without::revoking_all);
    const std::uint64_t number = any && x.r.given.revoking() ? *x.r.given.revoking() : m.number;
    if (m.generation != x.r.generation || !y.r.given.answered(number)) return;
    note_begun(y.r, static_cast<int>(m.index));
    for (posting& p : y.r.posted) p.credit = 0;
    for (std::size_t i = y.r.posted.size(); i-- > 0;) {
      posting& p = y.r.posted[i];
      if (!p.leaving) continue;
      p.leaving = false;
      if (p.index >= y.r.begun) leave(y.r, p.id);
    }
    successors_.push_back(std::move(y));
  }
  void join_generation(const state& x, const message& m) {
    if (m.generation <= x.r.generation || x.r.dead) return;
    state& y = then(x);
    y.r = {};
    y.r.generation = m.generation;
    y.r.next_posting = x.r.next_posting;
    y.r.timeouts = x.r.timeouts;
    for (const datum& d : x.r.early) {
      if (d.generation >= m.generation) add(y.r.early, d);
    }
  }

  limits limits_;
  std::vector<state> successors_;
  std::size_t explored_ = 0;
};

std::string explore(limits l) {
  world w(std::move(l));
  std::string found = w.search();
  if (found == "safe") CHECK(w.explored() > 1000);  // guards against a search that explored almost nothing
  return found;
}

}  // namespace

TEST_CASE("credits are safe in every interleaving of time-outs, failing sends and late control messages") {
  CHECK(explore({.timeouts = 1, .errors = 1, .duplicates = 1}) == "safe");
  CHECK(explore({.timeouts = 2}) == "safe");
  CHECK(explore({.sends = 3, .timeouts = 1}) == "safe");
}

TEST_CASE("credits are safe with buffers of several sizes, with a new generation, and with a sender declared dead") {
  CHECK(explore({.errors = 1, .sizes = {2, 1}, .capacities = {1, 2}}) == "safe");
  CHECK(explore({.sends = 1, .errors = 1, .generations = 1}) == "safe");
  CHECK(explore({.dies = true}) == "safe");
}

TEST_CASE("credits are unsafe as soon as any one of their rules is missing") {
  const auto found = [](without rule, limits l = {}) {
    l.rule = rule;
    return explore(std::move(l));
  };
  CHECK(found(without::fence, {.timeouts = 0}) == "wrong or missing data");
  CHECK(found(without::fenced_poison, {.timeouts = 0, .errors = 1}) == "written after it was given back");
  CHECK(found(without::fenced_generation, {.sends = 1, .generations = 1}) == "written after it was given back");
  CHECK(found(without::revoke) == "written after it was given back");
  CHECK(found(without::wait_for_answer) == "written after it was given back");
  CHECK(found(without::revoking_all) != "safe");
  CHECK(found(without::numbers) != "safe");
  CHECK(found(without::echo, {.timeouts = 2}) != "safe");
  CHECK(found(without::pause) != "safe");
  CHECK(found(without::moving_up) == "order");
  CHECK(found(without::capacity, {.timeouts = 0, .sizes = {2, 1}, .capacities = {1, 2}}) == "beyond the capacity");
  CHECK(found(without::poison, {.timeouts = 0, .errors = 1}) == "stuck");
  CHECK(found(without::end_with_generation, {.sends = 1, .generations = 1}) != "safe");
  CHECK(found(without::withdrawal, {.dies = true}) == "written after it was given back");
}

TEST_CASE(
    "in every build, giving a credit during an unanswered revoke or for a receive that is no later one breaks S8") {
  const auto broken_by = [](credits_given& given, std::uint64_t index) {
    std::string found;
    const parley::runtime::breach_watch watch([&](const parley::runtime::breach& b) {
      CHECK(b.name == "S8");
      CHECK_FALSE(b.culprit);
      found = b.text;
    });
    try {
      given.give(index);
    } catch (const parley::runtime::failure& f) {
      CHECK(f.code() == parley::runtime::errc::invariant_broken);
    }
    return found;
  };
  credits_given given;
  CHECK(broken_by(given, 3).empty());
  CHECK(broken_by(given, 5).empty());
  const credits_given before = given;
  CHECK(broken_by(given, 5).find("(R3)") != std::string::npos);
  CHECK(broken_by(given, 4).find("(R3)") != std::string::npos);
  CHECK(given == before);
  const std::uint64_t number = given.revoke();
  CHECK(broken_by(given, 6).find("(R4)") != std::string::npos);
  CHECK(given.answered(number));
  CHECK(broken_by(given, 4).empty());
}
