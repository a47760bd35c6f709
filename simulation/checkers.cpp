#include <parley/simulation/checkers.hpp>

#include <parley/simulation/program_checkers.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <tuple>

namespace parley::simulation {

namespace {

using runtime::errc;
using runtime::flight_event;

constexpr std::uint8_t timed = 1;
constexpr std::uint8_t rehearsal = 4;
constexpr time_ns slack_ns = 100'000'000;
constexpr time_ns short_timeout_ns = 1'000'000'000;

std::string hex(std::uint64_t n) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += digits[n >> static_cast<unsigned>(shift) & 15U];
  return text;
}

// Of a job's op.
using generation_key = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;

bool is_rehearsal(const runtime::flight_record& one) noexcept { return (one.flags & rehearsal) != 0; }

// The flights of one tag of a generation, of all ranks, those of one invocation beside each other.
struct flown {
  generation_key generation;
  std::vector<const flight_view*> flights;

  /// `visit(flights)`, of each invocation.
  template <class Visit>
  void each_invocation(const Visit& visit) const {
    for (std::size_t first = 0, behind = 0; first < flights.size(); first = behind) {
      while (behind < flights.size() && number_of(flights[behind]) == number_of(flights[first])) ++behind;
      visit(std::span(flights).subspan(first, behind - first));
    }
  }
  static std::pair<std::uint64_t, bool> number_of(const flight_view* f) noexcept {
    return {f->record.invocation, is_rehearsal(f->record)};
  }
};

// What checkers share: records by what they belong to.
struct book {
  explicit book(const run_record& run) : r(run) {
    for (const op_spec& op : r.play->ops) ops.emplace(op.name, &op);
    for (const participant_view& p : r.participants) {
      participants.emplace(std::tuple(p.job, p.id, p.generation, p.rank), &p);
      members[{p.job, p.id, p.generation}].push_back(&p);
      declared.emplace(p.job, p.id, p.rank);
      if (p.leads) leaders.emplace(std::pair(p.job, p.op), &p);
      for (const auto& [digest, wire_class] : p.classes) classes.emplace(digest, wire_class);
    }
    sort_flights();
  }
  // Each rank has written them down in its order, one op after the other for a while.
  void sort_flights() {
    using stream = std::tuple<std::size_t, std::uint64_t, std::uint64_t, std::uint32_t>;
    std::map<stream, std::vector<const flight_view*>> streams;
    std::optional<stream> latest;
    std::vector<const flight_view*>* its = nullptr;
    rank_id rank = 0;
    owners.reserve(r.flights.size());
    for (const flight_view& f : r.flights) {
      const runtime::flight_record& one = f.record;
      const stream key(f.job, one.op, one.generation, one.tag);
      if (latest != key || rank != f.rank) {
        const auto owner = participants.find(std::tuple(f.job, one.op, one.generation, f.rank));
        owners.push_back(owner == participants.end() ? nullptr : owner->second);
        its = &streams[key];
        latest = key;
        rank = f.rank;
      } else {
        owners.push_back(owners.back());
      }
      its->push_back(&f);
    }
    for (auto& [key, flights] : streams) {
      std::stable_sort(flights.begin(), flights.end(), [](const flight_view* a, const flight_view* b) {
        return flown::number_of(a) < flown::number_of(b);
      });
      all_flown.push_back({{std::get<0>(key), std::get<1>(key), std::get<2>(key)}, std::move(flights)});
    }
  }
  /// `visit(generation, flights)`, of each invocation.
  template <class Visit>
  void each_invocation(const Visit& visit) const {
    for (const flown& f : all_flown)
      f.each_invocation([&](std::span<const flight_view* const> flights) { visit(f.generation, flights); });
  }
  /// Of one of the record's own; null: its rank had no such op, or not in that generation.
  const participant_view* find(const flight_view& f) const {
    return owners[static_cast<std::size_t>(&f - r.flights.data())];
  }
  const op_spec* find(std::string_view op) const {
    const auto at = ops.find(op);
    return at == ops.end() ? nullptr : at->second;
  }
  const std::string& class_of(std::uint64_t digest) const {
    const auto at = classes.find(digest);
    return at == classes.end() ? classes.emplace(digest, "unknown " + hex(digest)).first->second : at->second;
  }
  std::string where(const flight_view& f) const {
    const participant_view* const p = find(f);
    return (p == nullptr ? "op " + hex(f.record.op) : p->title) + ", on rank " + std::to_string(f.rank) + ", " +
           (is_rehearsal(f.record) ? "rehearsal " : "invocation ") + std::to_string(f.record.invocation);
  }
  const run_record& r;
  std::map<std::string_view, const op_spec*> ops;  // of the scenario, by name
  std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t, rank_id>, const participant_view*> participants;
  std::map<generation_key, std::vector<const participant_view*>> members;
  std::set<std::tuple<std::size_t, std::uint64_t, rank_id>> declared;  // ops, by job and rank
  std::map<std::pair<std::size_t, std::string>, const participant_view*>
      leaders;  // the first, by job and name of the op
  std::vector<flown> all_flown;
  std::vector<const participant_view*> owners;  // of the record's flights
  mutable std::map<std::uint64_t, std::string> classes;
};

class checker {
 public:
  checker(const book& b, std::vector<violation>& found, const char* invariant)
      : book_(b), found_(found), invariant_(invariant) {}

 protected:
  void violated(std::string text) const {
    if (found_.size() < 50) found_.push_back({invariant_, std::move(text)});
  }
  const book& book_;

 private:
  std::vector<violation>& found_;
  const char* invariant_;
};

bool ran_well(const flight_view& f) {
  return f.record.what == flight_event::sent || f.record.what == flight_event::received;
}
bool is_sender(const flight_view& f) {
  return f.record.what == flight_event::sent || f.record.what == flight_event::send_failed;
}

// Whether two of an op's members may hold each other dead though both live: a put's fence has failed between them.
bool parted(const run_record& r, const std::vector<rank_id>& members) {
  if (r.play->link.fence != link_model::fences::fail) return false;
  const auto takes_part = [&](rank_id m) { return std::find(members.begin(), members.end(), m) != members.end(); };
  return std::any_of(r.play->ops.begin(), r.play->ops.end(), [&](const op_spec& op) {
    const auto puts = [](const std::string& config) { return config.starts_with("put"); };
    return std::any_of(op.configs.begin(), op.configs.end(), puts) &&
           std::count_if(op.members.begin(), op.members.end(), takes_part) >= 2;
  });
}

// A leader that assigned an invocation twice would have run it twice.
struct one_assignment final : checker {
  using checker::checker;
  void look() const {
    book_.each_invocation([this](const generation_key&, std::span<const flight_view* const> flights) {
      for (std::size_t i = 0; i < flights.size(); ++i) {
        const flight_view& f = *flights[i];
        if (!is_sender(f) || f.record.digest == 0) continue;
        const auto before =
            std::find_if(flights.begin(), flights.begin() + static_cast<std::ptrdiff_t>(i),
                         [&](const flight_view* b) { return b->rank == f.rank && b->record.digest != 0; });
        if (*before != &f)
          violated(book_.where(f) + ": began twice, with " + book_.class_of((*before)->record.digest) + " and " +
                   book_.class_of(f.record.digest));
      }
    });
  }
};

struct one_wire_class final : checker {
  using checker::checker;
  void look() const {
    book_.each_invocation([this](const generation_key&, std::span<const flight_view* const> flights) {
      const flight_view* first = nullptr;
      for (const flight_view* f : flights) {
        if (f->record.digest == 0) continue;
        if (first == nullptr) first = f;
        if (f->record.digest != first->record.digest &&
            book_.class_of(f->record.digest) != book_.class_of(first->record.digest))
          violated(book_.where(*f) + ": ran " + book_.class_of(f->record.digest) + ", and rank " +
                   std::to_string(first->rank) + " ran " + book_.class_of(first->record.digest));
      }
    });
  }
};

struct only_warmed final : checker {
  using checker::checker;
  void look() const {
    for (const flight_view& f : book_.r.flights) {
      const std::uint64_t d = f.record.digest;
      const participant_view* const p = book_.find(f);
      if (d == 0 || p == nullptr || d == p->c0 || is_rehearsal(f.record) || !ran_well(f)) continue;
      const bool warmed =
          std::find(p->ready.begin(), p->ready.end(), d) != p->ready.end() ||
          std::any_of(p->instead.begin(), p->instead.end(), [&](const auto& i) { return i.second == d; });
      if (!warmed) violated(book_.where(f) + ": ran " + book_.class_of(d) + ", which this rank has not warmed");
    }
  }
};

struct inside_intersection final : checker {
  using checker::checker;
  void look() const {
    for (const campaign_view& c : book_.r.campaigns) {
      const auto at = book_.members.find({c.job, c.op, c.generation});
      if (at == book_.members.end() || c.where != actors::campaign::stage::decided) continue;
      for (const participant_view* p : at->second) {
        const auto same_wire = [&](std::uint64_t d) { return book_.class_of(d) == book_.class_of(c.digest); };
        if (c.digest == p->c0 || std::any_of(p->available.begin(), p->available.end(), same_wire)) continue;
        violated(c.title + ", " + c.key + ": " + c.winner + " was decided, which rank " + std::to_string(p->rank) +
                 " does not have");
      }
    }
    for (const flight_view& f : book_.r.flights) {
      const participant_view* const p = book_.find(f);
      if (p == nullptr || !is_sender(f) || f.record.digest == 0 || f.record.digest == p->c0) continue;
      if (is_rehearsal(f.record) || p->candidates.empty()) continue;
      if (std::find(p->candidates.begin(), p->candidates.end(), f.record.digest) == p->candidates.end() &&
          std::none_of(p->instead.begin(), p->instead.end(),
                       [&](const auto& i) { return i.second == f.record.digest; }))
        violated(book_.where(f) + ": ran " + book_.class_of(f.record.digest) + ", which is no candidate");
    }
  }
};

struct own_generation final : checker {
  using checker::checker;
  void look() const {
    for (const flight_view& f : book_.r.flights) {
      if (book_.find(f) != nullptr) continue;
      const bool declared = book_.declared.contains({f.job, f.record.op, f.rank});
      violated(book_.where(f) + (declared ? ": the op was never in generation " + hex(f.record.generation) + " there"
                                          : ": the op was never declared there"));
    }
  }
};

// What counts for a decision are trials that every participant ran to its end.
struct complete_rows final : checker {
  using checker::checker;
  void look() const {
    if (book_.r.flights_lost != 0) return;
    std::map<std::pair<generation_key, std::uint64_t>, std::uint32_t> complete;
    book_.each_invocation([&](const generation_key& generation, std::span<const flight_view* const> flights) {
      if (std::none_of(flights.begin(), flights.end(),
                       [](const flight_view* f) { return (f->record.flags & timed) != 0; }))
        return;
      std::set<rank_id> well;
      std::uint64_t digest = 0;
      for (const flight_view* f : flights) {
        digest = digest != 0 ? digest : f->record.digest;
        if (ran_well(*f)) well.insert(f->rank);
      }
      const auto at = book_.members.find(generation);
      if (at == book_.members.end()) return;
      const auto& members = at->second.front()->members;
      if (well.size() == members.size()) ++complete[{at->first, digest}];
    });
    // All keys of one op together have at most as many repetitions as there were complete trials.
    std::map<std::pair<generation_key, std::uint64_t>, std::uint32_t> counted;
    for (const participant_view& p : book_.r.participants) {
      if (!p.leads) continue;
      for (const actors::decision_record& d : p.decisions) {
        for (const actors::wire_evidence& e : d.evidence) {
          if (e.status == "measured") counted[{{p.job, p.id, p.generation}, e.digest}] += e.repetitions;
        }
      }
    }
    for (const auto& [key, n] : counted) {
      const auto at = complete.find(key);
      // Rehearsals of ops without headers leave no record on their ranks: the library that they ran over has counted them.
      const auto on_scratch = book_.r.rehearsed.find(key.second);
      const std::uint32_t there =
          (at == complete.end() ? 0 : at->second) + (on_scratch == book_.r.rehearsed.end() ? 0 : on_scratch->second);
      if (n > there)
        violated("op " + hex(std::get<1>(key.first)) + ": " + std::to_string(n) + " repetitions of " +
                 book_.class_of(key.second) + " were counted, and all participants ran only " + std::to_string(there));
    }
  }
};

struct campaigns_end final : checker {
  using checker::checker;
  void look() const {
    if (!book_.r.play->must_decide) return;
    for (const campaign_view& c : book_.r.campaigns) {
      if (c.where == actors::campaign::stage::decided || c.ended) continue;
      const auto at = book_.members.find({c.job, c.op, c.generation});
      // A participant that has died may take the answer with it.
      if (at != book_.members.end() && !deaths(book_.r) && !parted(book_.r, at->second.front()->members) &&
          !any_ended(at->second)) {
        violated(c.title + ", " + c.key + ": after " + std::to_string(c.invocations) +
                 " invocations and all faults, the campaign is still at stage " +
                 std::to_string(static_cast<int>(c.where)) + ": " + c.progress);
      }
    }
  }
  void look_at_gates() const {
    for (const lease_view& v : book_.r.leases) {
      if (!v.closed.empty() && !v.ended && !deaths(book_.r))
        violated(v.title + ": rank " + std::to_string(v.rank) + " is still held " + v.closed);
    }
  }
  static bool any_ended(const std::vector<const participant_view*>& members) {
    return std::any_of(members.begin(), members.end(), [](const participant_view* p) { return p->ended; });
  }
  static bool returns(const run_record& r) { return r.faults->has(mishap::kind::restart); }
  static bool deaths(const run_record& r) {
    return std::any_of(r.faults->mishaps.begin(), r.faults->mishaps.end(), [&](const mishap& m) {
      return m.what == mishap::kind::crash || (m.what == mishap::kind::pause && m.for_ns >= r.play->detection_ns);
    });
  }
};

// What may hold a call up beyond its timeout: what befell ranks and links, and the time in which a death goes unnoticed.
time_ns held_up(const run_record& r) {
  time_ns all = r.play->detection_ns + slack_ns;
  for (const mishap& m : r.faults->mishaps) all += m.for_ns;
  return all;
}

struct calls_end final : checker {
  using checker::checker;
  void look() const {
    if (book_.r.programs_left != 0 && !book_.r.play->ops.empty())
      violated(std::to_string(book_.r.programs_left) + " programs wait for ever");
    const time_ns held = held_up(book_.r);
    for (const call_record& c : book_.r.calls) {
      const op_spec& op = book_.r.play->ops[c.op];
      const time_ns parts = op.what == op_spec::kind::pipeline ? 20 : 1;
      if (c.ended_ns - c.began_ns > parts * (c.timeout_ns + c.timeout_ns / 8) + held)
        violated(op.name + ", on rank " + std::to_string(c.rank) + ": call " + std::to_string(c.number) + " took " +
                 std::to_string((c.ended_ns - c.began_ns) / 1'000'000) + " ms with a timeout of " +
                 std::to_string(c.timeout_ns / 1'000'000) + " ms");
    }
  }
};

// N1: where only control messages fare badly, an invocation of a stamped op takes no longer than its own data.
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
      if (c.code != errc::none) failed.insert({c.op, c.job});
    }
    for (auto& [op_and_job, calls] : met) {
      const op_spec& op = book_.r.play->ops[op_and_job.first];
      const bool stamped = op.what == op_spec::kind::pair || op.what == op_spec::kind::group;
      // Once one has failed the two sides no longer count alike.
      if (!stamped || failed.contains(op_and_job)) continue;
      std::stable_sort(calls.begin(), calls.end(),
                       [](const call_record* a, const call_record* b) { return a->number < b->number; });
      judge(op, op_and_job.second, calls);
    }
  }

 private:
  void judge(const op_spec& op, std::uint64_t job, std::span<const call_record* const> all) const {
    const auto from = leader_of(op, job);
    // A get ends at its sender when it is told so, by a control message.
    const bool gets =
        std::any_of(op.configs.begin(), op.configs.end(), [](const auto& c) { return c.starts_with("get"); });
    // A put ends at its receiver once it has landed.
    const time_ns longest = longest_data_ns + 4 * book_.r.play->link.landing_ns;
    time_ns waited_until = 0;  // for room, by the call before
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
      // Flow control is no agreement: where the wire shows that the window was full, and that its sender asked for room at once,
      // the invocation counts from when it had room.
      const time_ns room = from ? book_.r.windows->room_at(*from, number) : 0;
      const bool asked = room > led && (waited_until >= led || book_.r.windows->asked(*from, led, led + longest));
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
};

// Flow control, on the wire: the sender of an edge stamps nothing that its window has no room for.
struct inside_window final : checker {
  using checker::checker;
  void look() const {
    for (const window_book::early_stamp& e : book_.r.windows->overrun()) {
      const auto at = std::find_if(book_.r.participants.begin(), book_.r.participants.end(), [&](const auto& p) {
        return p.id == e.from.op && p.generation == e.from.generation && p.rank == e.from.rank && p.leads;
      });
      // The leader of a group that needs something of each member anyway keeps no window.
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
      // Where a trial has timed out, trials stop at one gate and go on at another one.
      const std::uint64_t most = 2 * l.searches + l.led.aborted + l.excluded + 2 * l.led.halted;
      if (v.gates_met > most)
        violated(v.title + ": rank " + std::to_string(v.rank) + " waited at " + std::to_string(v.gates_met) +
                 " gates for " + std::to_string(l.searches) + " searches");
    }
  }
};

// N4, for configs whose times are known. What the first trial of a candidate will cost nobody can know, so that these may cost
// more than was earned; any other one begins only when its own cost and that of all before it, first ones included, is earned.
struct within_budget final : checker {
  using checker::checker;
  void look() const {
    const tape& t = *book_.r.faults;
    if (t.has(mishap::kind::slow) || t.has(mishap::kind::pause) || t.has(mishap::kind::restart) ||
        book_.r.play->kernel.straggler_per_thousand != 0)
      return;
    for (const auto& [key, members] : book_.members) {
      const participant_view& p = *members.front();
      const op_spec* const spec = book_.find(p.op);
      if (spec == nullptr || spec->what != op_spec::kind::pair || spec->in_flight != 1) continue;
      judge(key, p, *spec);
    }
  }

 private:
  void judge(const generation_key& of, const participant_view& p, const op_spec& spec) const {
    std::map<std::string, std::string_view> texts;
    for (const std::string& text : spec.configs) {
      if (!text.starts_with("timed:")) return;
      texts["simulated_" + text.substr(6, text.find(':', 6) - 6)] = text;
    }
    std::map<std::uint64_t, const flight_view*> sent;  // in their order
    for (const flown& its : book_.all_flown) {
      if (its.generation != of) continue;
      for (const flight_view* f : its.flights) {
        if (f->rank == p.members.front() && !is_rehearsal(f->record)) sent.emplace(f->record.invocation, f);
      }
    }
    double spent = 0;
    double unforeseen = 0;
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
      if (first) unforeseen += costs;
      // Where data was late by chance the leader has measured that, too, and knows costs only roughly.
      const bool exact = book_.r.faults->delay_data == 0 && !book_.r.faults->has(mishap::kind::clog);
      if (spent <= rounding * earned + (first || !exact ? unforeseen : 0)) continue;
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
    if (book_.r.play->ops.empty()) return;  // a program, whose ops nobody has listed
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

struct one_decision final : checker {
  using checker::checker;
  void look() const {
    if (campaigns_end::deaths(book_.r)) return;
    for (const auto& [op, members] : book_.members) {
      if (campaigns_end::any_ended(members) || parted(book_.r, members.front()->members)) continue;
      std::map<std::string, std::pair<const participant_view*, const actors::decision_record*>> latest;
      std::map<std::string, std::size_t> knowing;
      for (const participant_view* p : members) {
        for (const actors::decision_record& d : p->decisions) {
          ++knowing[d.key];
          const auto [at, first] = latest.emplace(d.key, std::pair(p, &d));
          if (first || (at->second.second->version == d.version && at->second.second->digest == d.digest)) continue;
          violated(p->title + ", " + d.key + ": rank " + std::to_string(p->rank) + " knows " +
                   book_.class_of(d.digest) + " version " + std::to_string(d.version) + ", and rank " +
                   std::to_string(at->second.first->rank) + " knows " + book_.class_of(at->second.second->digest) +
                   " version " + std::to_string(at->second.second->version));
        }
      }
      for (const auto& [key, n] : knowing) {
        if (n != members.size())
          violated(members.front()->title + ", " + key + ": only " + std::to_string(n) + " of " +
                   std::to_string(members.size()) + " participants know the decision");
      }
    }
  }
};

// Only where nothing but the configs differs: no noise, no faults that take time, all configs timed.
struct fastest final : checker {
  using checker::checker;
  void look() const {
    const kernel_model& k = book_.r.play->kernel;
    if (k.noise_per_thousand + k.drift_per_second + k.straggler_per_thousand != 0) return;
    const tape& t = *book_.r.faults;
    if (t.delay_data != 0 || !t.mishaps.empty() || t.skewed) return;
    for (const campaign_view& c : book_.r.campaigns) {
      if (c.where != actors::campaign::stage::decided || c.source != actors::decision_source::trials) continue;
      const op_spec* const op = book_.find(std::string_view(c.title).substr(0, c.title.find(' ')));
      const auto is_timed = [](const std::string& text) { return text.starts_with("timed:"); };
      if (op == nullptr || op->in_flight != 1 || !std::all_of(op->configs.begin(), op->configs.end(), is_timed))
        continue;
      judge(c, *op);
    }
  }
  void judge(const campaign_view& c, const op_spec& op) const {
    // Times of candidates differ by more than the noise that a decision allows, for every size of the op.
    std::set<std::string> best;
    for (const std::uint64_t size : op.sizes) {
      const auto faster = [&](const std::string& a, const std::string& b) {
        return usual_time_of(a, size) < usual_time_of(b, size);
      };
      const std::string& text = *std::min_element(op.configs.begin(), op.configs.end(), faster);
      best.insert(text.substr(6, text.find(':', 6) - 6));
    }
    if (!best.contains(c.winner))
      violated(c.title + ", " + c.key + ": " + c.winner + " was decided, and " + *best.begin() +
               " is the fastest: " + c.why);
  }
};

struct explained_errors final : checker {
  using checker::checker;
  void look() const {
    const bool deaths = campaigns_end::deaths(book_.r);
    for (const call_record& c : book_.r.calls) {
      if (c.code == errc::none) continue;
      const op_spec& op = book_.r.play->ops[c.op];
      const std::string what = op.name + ", on rank " + std::to_string(c.rank) + ": call " + std::to_string(c.number) +
                               (c.sends ? " (send)" : "") + " failed with `" + c.text + "`";
      if (!explained(c, op, deaths || parted(book_.r, op.members)) && !by_return(c))
        violated(what + ", which no fault explains");
      if (c.text.find(op.name) == std::string::npos || c.text.find("rank") == std::string::npos)
        violated(what + ", which does not name op and rank");
      // A receive that nothing was matched to has no number: those behind it move up. Nor has a send that had no room.
      const bool unmatched = c.code == errc::timeout && op.what == op_spec::kind::pair &&
                             (!c.sends || c.text.find("has no room") != std::string::npos);
      if (c.code != errc::peer_failed && c.code != errc::fenced && !unmatched &&
          c.text.find("invocation") == std::string::npos)
        violated(what + ", which does not name the invocation");
    }
  }
  // An op goes on once everybody has heard of the new process, and rejoined where it has to.
  bool by_return(const call_record& c) const {
    if (!campaigns_end::returns(book_.r) || c.calm) return false;
    switch (c.code) {
      case errc::send_failed: return book_.r.play->ops[c.op].what != op_spec::kind::group;
      case errc::peer_restarted:
      case errc::peer_failed:
      case errc::config_failed: return true;
      default: return false;
    }
  }
  static bool has(const op_spec& op, std::string_view kind) {
    return std::any_of(op.configs.begin(), op.configs.end(), [&](const auto& text) { return text.starts_with(kind); });
  }
  static bool broken(const op_spec& op) {
    return has(op, "failing") || has(op, "corrupting") || has(op, "hanging") || has(op, "torn");
  }
  static bool explained(const call_record& c, const op_spec& op, bool deaths) {
    const bool late = op.timeout_ns < short_timeout_ns;
    switch (c.code) {
      case errc::peer_failed:
      case errc::fenced: return deaths;
      case errc::timeout: return deaths || late;
      case errc::buffer_too_small: return op.small_receives != 0;
      // Of a group one hears why its sender failed, or that it is gone.
      case errc::send_failed: return op.what != op_spec::kind::group && (deaths || late || broken(op));
      case errc::config_failed: return deaths || late || broken(op);
      default: return false;
    }
  }
};

// A config that failed in a real invocation is not assigned again for that key, but for what was under way.
struct quarantined final : checker {
  using checker::checker;
  void look() const {
    if (campaigns_end::deaths(book_.r)) return;
    std::map<std::tuple<std::size_t, std::uint64_t, rank_id, std::uint64_t>, std::uint64_t> failures;
    for (const call_record& c : book_.r.calls) {
      if (c.code == errc::config_failed) ++failures[{c.op, c.job, c.rank, c.returns}];
    }
    for (const auto& [key, n] : failures) {
      const op_spec& op = book_.r.play->ops[std::get<0>(key)];
      const std::uint64_t under_way = 2 * op.in_flight + 2;
      if (!parted(book_.r, op.members) && n > op.configs.size() * op.sizes.size() * under_way)
        violated(op.name + ", on rank " + std::to_string(std::get<2>(key)) + ": " + std::to_string(n) +
                 " calls failed because of their config");
    }
  }
};

// What was sent well is received by somebody, where both ends live and the receiver went on to the end.
struct delivered final : checker {
  using checker::checker;
  // Of a receive that had no room, or whose config fails, the sender knows nothing.
  static bool receives_all(const run_record& r, const op_spec& op) {
    return op.what == op_spec::kind::pair && op.small_receives == 0 && !explained_errors::broken(op) &&
           !parted(r, op.members);
  }
  void look() const {
    const run_record& r = book_.r;
    if (campaigns_end::deaths(r) || r.programs_left != 0) return;
    std::vector<bool> all_come;  // by op
    for (const op_spec& op : r.play->ops) all_come.push_back(receives_all(r, op));
    // The latest returns of its members, by op and job.
    boost::unordered_flat_map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> last;
    for (const call_record& c : r.calls) {
      std::uint64_t& latest = last[{c.op, c.job}];
      latest = std::max(latest, c.returns);
    }
    for (const call_record& c : r.calls) {
      const bool cut = r.play->cut_short && c.job != r.play->jobs;
      if (!all_come[c.op] || !c.sends || c.code != errc::none || cut) continue;
      if (c.returns != last[{c.op, c.job}]) continue;  // one of the two has gone since
      const auto at = r.received.find({c.op, c.job, c.returns});
      if (at != r.received.end() && c.number < at->second.size() && at->second[c.number]) continue;
      violated(r.play->ops[c.op].name + ": message " + std::to_string(c.number) +
               " was sent well and received by nobody");
    }
  }
};

// Whom the others hold dead can do nothing any more, until a new process takes its place; its calls say why.
struct fenced_ranks final : checker {
  using checker::checker;
  void look() const {
    for (const fenced_rank& f : book_.r.fenced) {
      for (const call_record& c : book_.r.calls) {
        if (c.job != f.job || c.rank != f.rank || c.began_ns <= f.at_ns || c.began_ns >= f.until_ns) continue;
        if (c.code != errc::fenced)
          violated(book_.r.play->ops[c.op].name + ": call " + std::to_string(c.number) + " of rank " +
                   std::to_string(c.rank) + ", which the others hold dead, ended with " +
                   std::string(runtime::name(c.code)));
      }
    }
  }
};

struct nothing_left final : checker {
  using checker::checker;
  void look() const {
    const run_record& r = book_.r;
    for (const std::string& file : r.files_left) violated(file + " is still there");
    if (campaigns_end::deaths(r)) return;
    for (const participant_view& p : r.participants) {
      if (p.owed != 0 && !parted(r, p.members))
        violated(p.title + ": " + std::to_string(p.owed) + " messages of rank " + std::to_string(p.rank) +
                 " were never acknowledged");
    }
    if (r.pending_left != 0) violated(std::to_string(r.pending_left) + " transfers never end");
    if (r.exposed_left != 0) violated(std::to_string(r.exposed_left) + " pieces of memory are still exposed");
    if (r.lost_reads != 0) violated(std::to_string(r.lost_reads) + " reads of memory that had been withdrawn");
  }
};

}  // namespace

std::vector<violation> check(const run_record& r) {
  const book b(r);
  std::vector<violation> found = r.at_once;
  if (r.puts_outside != 0)
    found.push_back({"S8", std::to_string(r.puts_outside) + " puts outside the memory that their key names"});
  one_assignment(b, found, "S1").look();
  one_wire_class(b, found, "S2").look();
  only_warmed(b, found, "S3").look();
  inside_intersection(b, found, "S4").look();
  own_generation(b, found, "S5").look();
  complete_rows(b, found, "S6").look();
  campaigns_end(b, found, "L1").look();
  campaigns_end(b, found, "L1").look_at_gates();
  calls_end(b, found, "L2").look();
  no_control_wait(b, found, "N1").look();
  inside_window(b, found, "window").look();
  few_gates(b, found, "N2").look();
  outsiders(b, found, "N3").look();
  within_budget(b, found, "N4").look();
  one_decision(b, found, "agreement").look();
  fastest(b, found, "oracle").look();
  explained_errors(b, found, "errors").look();
  quarantined(b, found, "quarantine").look();
  delivered(b, found, "delivery").look();
  fenced_ranks(b, found, "fencing").look();
  nothing_left(b, found, "leftovers").look();
  if (r.play->ops.empty()) check_program(r, found);  // nobody has listed its ops
  return found;
}

}  // namespace parley::simulation
