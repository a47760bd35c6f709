#pragma once
/// Runs a scenario of real actors in every order in which its events can happen, depth first.
///
///     findings f = explorer([] { return std::make_unique<my_scenario>(); }, {}).run();
///     CHECK_MESSAGE(f.safe(), f.how());
///
/// A coroutine cannot be copied. Each order therefore starts a new run, which repeats the choices up to the point where the order
/// branches.
///
/// The search leaves out orders that differ only in how events of different ranks are interleaved. A rank has its own clock and its
/// own executor, and it learns of the others only by messages: its state is a function of its own events and their order. Two orders
/// that give each rank the same history end in the same state, so one of them is enough. This holds whatever an actor remembers.
///
/// A scenario that can hash its whole state (`state`, with `search_limits::by_state`) leaves out more: every order that leads to a
/// state that another order has reached.
#include <parley/identifiers.hpp>
#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace parley::tests {

using runtime::mix;
using runtime::rank_id;

/// Something that may happen next. An event at `nobody` changes only the network, and the order of such events does not matter.
struct event {
  static constexpr rank_id nobody = ~rank_id{0};
  std::uint64_t name = 0;  ///< identifies the event; the same in every run
  rank_id where = nobody;
  std::uint64_t beside = 0;  ///< what the event also changes in the network, 0: nothing
  std::uint32_t id = 0;      ///< private to the scenario: what to do
};

class scenario {
 public:
  virtual ~scenario() = default;
  /// All events that may happen now, in an order that is the same in every run.
  virtual std::vector<event> possible() = 0;
  virtual void happen(const event& e) = 0;
  virtual std::string describe(const event& e) = 0;
  /// Called when no event is possible any more: completes the run as a fair world would, then checks what must be true at the end.
  virtual void finish() = 0;
  /// A hash of everything that later events, `finish` and the checks depend on; only `search_limits::by_state` needs it.
  virtual std::uint64_t state() const { return 0; }
  /// The result of the run, in words that do not depend on the order; called after `finish`.
  virtual std::string outcome() const = 0;
  /// The first invariant that did not hold: its name and what happened.
  std::optional<std::string> broken;
  void breaks(const std::string& what) {
    if (!broken) broken = what;
  }
};

struct findings {
  std::size_t runs = 0;
  std::size_t states = 0;  ///< number of different states that were found
  std::set<std::string> outcomes;
  std::string broken;              ///< the invariant that broke, and what happened
  std::vector<std::string> steps;  ///< the events of the run in which it broke
  std::string order;               ///< the order of that run, for `PARLEY_ORDER`
  bool complete = true;            ///< false: the search stopped at `search_limits::states`
  bool safe() const noexcept { return complete && broken.empty(); }
  std::string how() const {
    std::string text = complete ? broken : "there are more states than " + std::to_string(states);
    for (const std::string& s : steps) text += "\n  " + s;
    return order.empty() ? text : text + "\nto repeat it: PARLEY_ORDER='" + order + "'";
  }
};

struct search_limits {
  std::size_t states = 5'000'000;
  bool every_interleaving = false;  ///< leaves no order out, to test that leaving out loses nothing
  bool by_state = false;            ///< treats equal states as one, whatever their histories
  bool quiet = false;               ///< one search of many: `explore` prints nothing about it
};

class explorer {
 public:
  using maker = std::function<std::unique_ptr<scenario>()>;
  explorer(maker m, search_limits l) : make_(std::move(m)), limits_(l) {}

  findings run() {
    do {
      ++found_.runs;
      go();
    } while (found_.broken.empty() && found_.complete && back());
    if (!found_.broken.empty()) retell();
    return std::move(found_);
  }
  /// Runs a single order, given as in `findings::order`.
  findings repeat(const std::string& order) {
    std::istringstream in(order);
    for (std::string number; std::getline(in, number, '.');) path_.push_back({{}, {}, std::stoul(number)});
    retell();
    return std::move(found_);
  }

 private:
  struct histories {
    std::vector<std::uint64_t> of;  // by rank
    std::uint64_t network = 0;
    void add(const event& e) {
      if (e.where != event::nobody) {
        if (e.where >= of.size()) of.resize(e.where + 1);
        of[e.where] = mix(of[e.where] ^ mix(e.name + 1)) + 1;
      }
      network += e.beside == 0 ? 0 : mix(e.beside);
    }
    std::uint64_t key() const {
      std::uint64_t k = mix(network + 1);
      for (const std::uint64_t h : of) k = mix(k ^ h) + 1;
      return k;
    }
  };
  struct choice {
    std::vector<event> from;
    histories before;
    std::size_t taken = 0;
  };

  // Whether choice `i` leads to a state that no other order has reached.
  bool is_new(const choice& c, std::size_t i) {
    if (limits_.by_state) return true;  // the state is known only after the event has happened
    if (limits_.every_interleaving) return ++found_.states != 0;
    histories after = c.before;
    after.add(c.from[i]);
    return visited_.insert(after.key()).second && ++found_.states != 0;
  }
  bool is_new_state(const scenario& s) { return visited_.insert(s.state()).second && ++found_.states != 0; }
  void go() {
    const auto s = make_();
    histories now;
    for (const choice& c : path_) {
      const auto may = s->possible();
      if (c.taken >= may.size() || may[c.taken].name != c.from[c.taken].name)
        return fail("a run does not repeat itself: something else is possible than before");
      s->happen(may[c.taken]);
      now.add(may[c.taken]);
    }
    while (!s->broken) {
      if (limits_.by_state && !is_new_state(*s)) return;
      choice c{s->possible(), now, 0};
      if (c.from.empty()) {
        s->finish();
        found_.outcomes.insert(s->outcome());
        break;
      }
      while (c.taken < c.from.size() && !is_new(c, c.taken)) ++c.taken;
      if (c.taken == c.from.size()) return;  // every choice here leads to a state that was seen before
      if (found_.states > limits_.states) {
        found_.complete = false;
        return;
      }
      const event e = c.from[c.taken];
      path_.push_back(std::move(c));
      s->happen(e);
      now.add(e);
    }
    if (s->broken) fail(*s->broken);
  }
  bool back() {
    for (; !path_.empty(); path_.pop_back()) {
      choice& last = path_.back();
      while (++last.taken < last.from.size()) {
        if (is_new(last, last.taken)) return true;
      }
    }
    return false;
  }
  void fail(const std::string& what) { found_.broken = what; }
  // Runs the path again and describes each of its events.
  void retell() {
    const auto s = make_();
    for (const choice& c : path_) {
      const auto may = s->possible();
      if (c.taken >= may.size()) break;
      found_.steps.push_back(s->describe(may[c.taken]));
      found_.order += (found_.order.empty() ? "" : ".") + std::to_string(c.taken);
      s->happen(may[c.taken]);
      if (s->broken) break;
    }
    if (!s->broken) s->finish();
    found_.outcomes.insert(s->outcome());
    if (s->broken) found_.broken = *s->broken;
  }

  maker make_;
  search_limits limits_;
  std::vector<choice> path_;
  std::unordered_set<std::uint64_t> visited_;
  findings found_;
};

/// Whether searches that take minutes were asked for: `PARLEY_SCOPE=deep`.
inline bool deep() {
  const char* const how = std::getenv("PARLEY_SCOPE");
  return how != nullptr && std::string_view(how) == "deep";
}

/// Searches and prints how many runs and states there were. With `PARLEY_ORDER=NAME:ORDER` it runs only that order of the search NAME, and
/// skips all other searches.
inline findings explore(const std::string& name, explorer::maker make, search_limits l = {}) {
  explorer s(std::move(make), l);
  const char* const asked = std::getenv("PARLEY_ORDER");
  const std::string order = asked == nullptr ? "" : asked;
  const bool repeats = order.starts_with(name + ":");
  findings f = repeats ? s.repeat(order.substr(name.size() + 1)) : order.empty() ? s.run() : findings();
  if (!f.order.empty()) f.order = name + ":" + f.order;
  std::string text = name + ": " + std::to_string(f.runs) + " runs, " + std::to_string(f.states) + " states, outcomes";
  for (const std::string& o : f.outcomes) text += " " + o;
  if (repeats) text += "\n" + f.how();
  if ((order.empty() && !l.quiet) || repeats) MESSAGE(text);
  return f;
}

/// Checks that no order breaks an invariant, and that the outcomes of all runs are exactly `predicted`.
inline void check_safe(const std::string& name, const explorer::maker& make, const std::set<std::string>& predicted) {
  const findings f = explore(name, make);
  CHECK_MESSAGE(f.safe(), f.how());
  if (f.runs != 0) CHECK(f.outcomes == predicted);
}
/// Checks that some order breaks `invariant`, and that repeating this order breaks it in the same way.
inline void check_broken(const std::string& name, const explorer::maker& make, const std::string& invariant) {
  const findings f = explore(name, make);
  if (f.runs == 0) return;
  CHECK_MESSAGE(f.broken.find(invariant) != std::string::npos, f.how());
  const findings again = explorer(make, {}).repeat(f.order.substr(name.size() + 1));
  CHECK(again.broken == f.broken);
}

}  // namespace parley::tests
