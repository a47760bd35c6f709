#include <parley/simulation/checkers/families.hpp>
#include <parley/simulation/programs/config_text.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

namespace parley::simulation {

namespace {

using runtime::errc;

// N1: if faults hit only control messages, an invocation of a stamped op takes no longer than its own data.
struct no_control_wait final : checker {
  using checker::checker;
  void look() const {
    const tape& t = *book_.r.faults;
    const auto is_cut = [](const mishap& m) { return m.what == mishap::kind::cut; };
    if (t.delay_data != 0 || !std::all_of(t.mishaps.begin(), t.mishaps.end(), is_cut)) return;
    std::map<std::pair<std::size_t, std::uint64_t>, std::vector<const call_record*>> met;
    std::set<std::pair<std::size_t, std::uint64_t>> failed;
    for (const call_record& c : book_.r.calls) {
      met[{c.op, c.job}].push_back(&c);
      if (c.code() != errc::none) failed.insert({c.op, c.job});
    }
    for (auto& [op_and_job, calls] : met) {
      const op_spec& op = book_.r.play->ops[op_and_job.first];
      const bool stamped = op.what == op_spec::kind::pair || op.what == op_spec::kind::group;
      // After a failed call, or if messages of several streams overtake each other, the two sides no longer count calls alike.
      if (!stamped || op.streams != 1 || failed.contains(op_and_job)) continue;
      std::stable_sort(calls.begin(), calls.end(),
                       [](const call_record* a, const call_record* b) { return a->number < b->number; });
      judge(op, op_and_job.second, calls);
    }
  }

 private:
  void judge(const op_spec& op, std::uint64_t job, std::span<const call_record* const> all) const {
    const auto from = leader_of(op, job);
    // The sender of a get learns of its end by a control message.
    const bool gets =
        std::any_of(op.configs.begin(), op.configs.end(), [](const auto& c) { return c.starts_with("get"); });
    // A put ends at its receiver once it has landed.
    const time_ns longest = longest_data_ns + 4 * book_.r.play->link.landing_ns;
    time_ns waited_until = 0;  // when the earlier calls' waits for room ended
    while (!all.empty()) {
      const std::uint64_t number = all.front()->number;
      const auto calls = all.first(static_cast<std::size_t>(
          std::find_if(all.begin(), all.end(), [&](const auto* c) { return c->number != number; }) - all.begin()));
      all = all.subspan(calls.size());
      if (calls.size() != op.members.size()) continue;
      time_ns all_there = 0;
      time_ns led = 0;
      for (const call_record* c : calls) {
        all_there = std::max(all_there, c->began_ns);
        if (c->sends) led = c->began_ns;
      }
      // A wait for room is flow control, not a wait for agreement. If the wire shows that the window was full, and that the sender asked
      // for room at once, the invocation's time counts from the moment when there was room.
      const time_ns room = from ? book_.r.windows->room_at(*from, book_.r.play->first_invocation + number) : 0;
      const bool asked =
          room > led && (narrow_control_ || waited_until >= led || book_.r.windows->asked(*from, led, led + longest));
      if (asked) {
        waited_until = room;
        all_there = std::max(all_there, room);
      }
      for (const call_record* c : calls) {
        if ((c->sends && gets) || c->ended_ns - all_there <= longest) continue;
        violated(op.name + ", on rank " + std::to_string(c->rank) + ": call " + std::to_string(c->number) + " took " +
                 std::to_string((c->ended_ns - all_there) / 1000) +
                 " us after all had begun it, and data was never late");
      }
    }
  }
  std::optional<window_book::sender> leader_of(const op_spec& op, std::uint64_t job) const {
    const auto at = book_.leaders.find({job, op.name});
    if (at == book_.leaders.end()) return std::nullopt;
    return window_book::sender{at->second->id, at->second->generation, at->second->rank};
  }
  static constexpr time_ns longest_data_ns = 3'000'000;
  // If few control messages may be in flight and some get lost, a question for room may have to wait itself.
  static constexpr std::uint64_t narrow = 16;
  const bool narrow_control_ = book_.r.play->control_window < narrow || book_.r.faults->control_window != 0;
};

// Flow control on the wire: the sender of an edge stamps an invocation only when its window has room for it.
struct inside_window final : checker {
  using checker::checker;
  void look() const {
    for (const window_book::early_stamp& e : book_.r.windows->overrun()) {
      const auto at = std::find_if(book_.r.participants.begin(), book_.r.participants.end(), [&](const auto& p) {
        return p.id == e.from.op && p.generation == e.from.generation && p.rank == e.from.rank && p.leads;
      });
      // The leader of a group has no window if it receives something from each member in each call.
      if (at == book_.r.participants.end() || !at->edge) continue;
      violated(at->title + ", on rank " + std::to_string(e.from.rank) + ": invocation " + std::to_string(e.invocation) +
               " left for rank " + std::to_string(e.to) +
               (e.ahead_ns == runtime::never ? ", for which there was never room in the window"
                                             : std::to_string(e.ahead_ns / 1000) + " us before there was room for it"));
    }
  }
};

struct few_gates final : checker {
  using checker::checker;
  void look() const {
    std::map<std::pair<std::size_t, std::string>, const lease_view*> leaders;
    for (const lease_view& v : book_.r.leases) {
      if (v.leads) leaders[{v.job, v.title}] = &v;
    }
    for (const lease_view& v : book_.r.leases) {
      const auto at = leaders.find({v.job, v.title});
      if (at == leaders.end()) continue;
      const lease_view& l = *at->second;
      // After a trial has timed out, trials stop at one gate and continue at another one.
      const std::uint64_t most = 2 * l.searches + l.led.aborted + l.excluded + 2 * l.led.halted;
      if (v.gates_met > most)
        violated(v.title + ": rank " + std::to_string(v.rank) + " waited at " + std::to_string(v.gates_met) +
                 " gates for " + std::to_string(l.searches) + " searches");
    }
  }
};

// N4, for configs with known times. A trial costs its time beyond that of the default. The cost of a candidate's first trial is unknown in
// advance, so first trials may cost more than was earned. Any other trial begins only when its own cost and that of all earlier trials,
// first ones included, is earned. While half of the default's measurements were disturbed, the leader does not know the default's time, and
// later trials may also cost more: those of two rounds at most, because the third measurement outvotes the first.
struct within_budget final : checker {
  using checker::checker;
  void look() const {
    const tape& t = *book_.r.faults;
    if (t.has(mishap::kind::slow) || t.has(mishap::kind::pause) || t.has(mishap::kind::restart) ||
        kernels_of(*book_.r.play, t).straggler_per_thousand != 0)
      return;
    for (const auto& [key, members] : book_.members) {
      const participant_view& p = *members.front();
      const op_spec* const spec = book_.find(p.op);
      if (spec == nullptr || spec->what != op_spec::kind::pair || spec->in_flight != 1) continue;
      judge(key, p, *spec);
    }
  }

 private:
  /// A timed invocation of the default: begins when both ends have begun, and ends when both have ended.
  struct measured_default {
    time_ns began_ns = 0, ended_ns = 0, usual_ns = 0;
    void add(const runtime::flight_record& end, time_ns usual) {
      began_ns = std::max(began_ns, end.began_ns);
      ended_ns = std::max(ended_ns, end.ended_ns);
      usual_ns = usual;
    }
    bool disturbed() const { return ended_ns - began_ns > 2 * usual_ns; }
  };
  static bool default_is_unknown(const std::map<std::uint64_t, measured_default>& all, time_ns at_ns) {
    std::size_t known = 0, disturbed = 0;
    for (const auto& [invocation, one] : all) {
      if (one.ended_ns > at_ns) continue;
      ++known;
      if (one.disturbed()) ++disturbed;
    }
    return known != 0 && 2 * disturbed >= known;
  }
  void judge(const generation_key& of, const participant_view& p, const op_spec& spec) const {
    std::map<std::string, std::string_view> texts;
    for (const std::string& text : spec.configs) {
      if (!text.starts_with("timed:")) return;
      texts["simulated_" + text.substr(6, text.find(':', 6) - 6)] = text;
    }
    std::map<std::uint64_t, const flight_view*> sent;  // by invocation
    std::map<std::uint64_t, measured_default> of_default;
    for (const flown& its : book_.all_flown) {
      if (its.generation != of) continue;
      for (const flight_view* f : its.flights) {
        // A transfer that never began has the number of the next one.
        if (is_rehearsal(f->record) || f->record.digest == 0) continue;
        if (f->rank == p.members.front()) sent.emplace(f->record.invocation, f);
        if ((f->record.flags & timed) != 0 && f->record.digest == p.c0)
          of_default[f->record.invocation].add(f->record, usual_time_of(spec.configs.front(), f->record.bytes));
      }
    }
    double spent = 0;
    double unforeseen = 0;
    double trials = 0;
    const bool clocks_are_unsure = book_.r.faults->delay_control != 0;
    const auto unsure_ns = static_cast<double>(book_.r.play->link.latency_ns +
                                               (clocks_are_unsure ? book_.r.faults->longest_delay_ns / 2 : 0));
    std::set<std::pair<std::uint64_t, std::uint64_t>> tried;
    for (const auto& [invocation, f] : sent) {
      const runtime::flight_record& one = f->record;
      const auto text = texts.find(book_.class_of(one.digest));
      if ((one.flags & timed) == 0 || one.digest == p.c0 || text == texts.end()) continue;
      const double costs = std::max(
          static_cast<double>(usual_time_of(text->second, one.bytes) - usual_time_of(spec.configs.front(), one.bytes)),
          0.0);
      spent += costs;
      const double earned =
          book_.r.play->budget * static_cast<double>(one.began_ns - sent.begin()->second->record.began_ns);
      const bool first = tried.emplace(one.digest, one.bytes).second;
      if (first || default_is_unknown(of_default, one.began_ns)) unforeseen += costs;
      // If data was late by chance, the leader's measurements contain the delay, so the leader knows costs only roughly.
      const bool exact = book_.r.faults->delay_data == 0 && !book_.r.faults->has(mishap::kind::clog);
      // The leader's error in each cost is the latency of a message and, if control messages were late, its error about the other rank's
      // clock.
      ++trials;
      const double unsure = trials * unsure_ns;
      if (spent <= rounding * earned + unsure + (first || !exact ? unforeseen : 0)) continue;
      violated(book_.where(*f) + ": with this trial they have cost " + std::to_string(spent / 1e6) + " ms, and " +
               std::to_string(earned / 1e6) + " ms were earned");
      return;
    }
  }
  static constexpr double rounding = 1.001;
};

struct outsiders final : checker {
  using checker::checker;
  void look() const {
    std::map<std::uint64_t, const participant_view*> any;
    for (const participant_view& p : book_.r.participants) any.emplace(p.id, &p);
    for (const auto& [way, n] : book_.r.of_op) {
      const auto& [op, from, to] = way;
      const auto at = any.find(op);
      if (at == any.end()) continue;
      const auto& members = at->second->members;
      for (const rank_id r : {from, to}) {
        if (std::find(members.begin(), members.end(), r) == members.end())
          violated(at->second->title + ": rank " + std::to_string(r) + ", which is not in it, saw " +
                   std::to_string(n) + " of its messages");
      }
    }
    look_at_idle_ranks();
  }

 private:
  void look_at_idle_ranks() const {
    if (book_.r.play->ops.empty()) return;  // a program, whose ops are not listed
    std::set<rank_id> inside;
    for (const op_spec& op : book_.r.play->ops) inside.insert(op.members.begin(), op.members.end());
    for (const auto& [pair, n] : book_.r.between) {
      for (const rank_id r : {pair.first, pair.second}) {
        if (!inside.contains(r))
          violated("rank " + std::to_string(r) + " takes part in no op and saw " + std::to_string(n) + " messages");
      }
    }
  }
};

}  // namespace

void check_costs(const record_book& b, std::vector<violation>& found) {
  no_control_wait(b, found, "N1").look();
  inside_window(b, found, "window").look();
  few_gates(b, found, "N2").look();
  outsiders(b, found, "N3").look();
  within_budget(b, found, "N4").look();
}

}  // namespace parley::simulation
