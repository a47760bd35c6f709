#include <parley/simulation/checkers/checkers.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchical.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/simulation/checkers/program_checkers.hpp>
#include <parley/simulation/programs/config_text.hpp>
#include <parley/symmetric.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>

namespace parley::simulation {

namespace {

using runtime::errc;
using runtime::flight_event;

constexpr std::uint8_t timed = 1;
constexpr std::uint8_t rehearsal = 4;
constexpr time_ns slack_ns = 100'000'000;

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

std::string_view name_of(actors::search::stage s) noexcept {
  constexpr std::string_view names[] = {"waiting for offers, merge or warm-up", "trying", "collecting", "decided"};
  return names[static_cast<std::size_t>(s)];
}

// What checkers share: records by what they belong to.
struct book {
  explicit book(const run_record& run) : r(run) {
    if (r.play != nullptr) {
      for (const op_spec& op : r.play->ops) ops.emplace(op.name, &op);
    }
    for (const participant_view& p : r.participants) {
      participants.emplace(std::tuple(p.job, p.id, p.generation, p.rank), &p);
      members[{p.job, p.id, p.generation}].push_back(&p);
      declared.emplace(p.job, p.id, p.rank);
      if (p.leads) leaders.emplace(std::pair(p.job, p.op), &p);
      for (const auto& [digest, wire_class] : p.classes) classes.emplace(digest, wire_class);
    }
    // A mixture that is no config's is of the wire class of all its parts.
    for (const participant_view& p : r.participants) {
      for (const auto& [mixture, own] : p.instead) classes.emplace(mixture, class_of(own));
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
  /// All ranks of the op that a participant is of: those of a pipeline's edge are more than its own.
  const std::vector<rank_id>& ranks_of(const participant_view& p) const {
    const op_spec* const op = op_of(p);
    return op == nullptr ? p.members : op->members;
  }
  const op_spec* op_of(const participant_view& p) const {
    for (const auto& [name, op] : ops) {
      if (is_of(p.op, name)) return op;
    }
    return nullptr;
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

// By which its campaign knows a call.
std::uint64_t bytes_of_call(const op_spec& op, std::uint64_t size) {
  return op.what == op_spec::kind::group && op.does == "gather" ? size * op.members.size() : size;
}

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

// Whether some of an op's members cannot read what others say: they never agree on anything.
bool deaf(const run_record& r, const std::vector<rank_id>& members) {
  const auto& other = r.play->other_version;
  const auto is_other = [&](rank_id m) { return std::find(other.begin(), other.end(), m) != other.end(); };
  return std::any_of(members.begin(), members.end(), is_other) &&
         !std::all_of(members.begin(), members.end(), is_other);
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
    book_.each_invocation([this](const generation_key& generation, std::span<const flight_view* const> flights) {
      const flight_view* first = nullptr;
      for (const flight_view* f : flights) {
        if (f->record.digest == 0) continue;
        // A call that fails as its op is declared otherwise elsewhere has its own default, and has run nothing.
        if (!ran_well(*f) && is_misdeclared(generation)) continue;
        if (first == nullptr) first = f;
        if (f->record.digest != first->record.digest &&
            book_.class_of(f->record.digest) != book_.class_of(first->record.digest))
          violated(book_.where(*f) + ": ran " + book_.class_of(f->record.digest) + ", and rank " +
                   std::to_string(first->rank) + " ran " + book_.class_of(first->record.digest));
      }
    });
  }

 private:
  // Whether members have declared defaults of different wire classes, which is refused as soon as they meet.
  bool is_misdeclared(const generation_key& generation) const {
    const auto at = book_.members.find(generation);
    if (at == book_.members.end()) return false;
    const std::vector<const participant_view*>& all = at->second;
    return std::any_of(all.begin(), all.end(), [&](const participant_view* p) {
      return book_.class_of(p->c0) != book_.class_of(all.front()->c0);
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
    if (book_.r.play != nullptr && !book_.r.play->results && book_.r.flights_lost.empty()) look_at_order();
  }

 private:
  // What was rehearsed was rehearsed before it ran, unless results files had said that it may run.
  void look_at_order() const {
    std::map<std::tuple<std::size_t, rank_id, std::uint64_t, std::uint64_t, std::uint64_t>, time_ns> rehearsed_ns;
    const auto key = [](const flight_view& f) {
      return std::make_tuple(f.job, f.rank, f.record.op, f.record.generation, f.record.digest);
    };
    for (const flight_view& f : book_.r.flights) {
      if (!is_rehearsal(f.record) || !ran_well(f)) continue;
      const auto [first, is_new] = rehearsed_ns.emplace(key(f), f.record.ended_ns);
      if (!is_new) first->second = std::min(first->second, f.record.ended_ns);
    }
    for (const flight_view& f : book_.r.flights) {
      const participant_view* const p = book_.find(f);
      if (is_rehearsal(f.record) || p == nullptr || f.record.digest == p->c0) continue;
      const auto first = rehearsed_ns.find(key(f));
      // A receive begins before anybody knows with which config.
      if (first != rehearsed_ns.end() && f.record.ended_ns < first->second)
        violated(book_.where(f) + ": ran " + book_.class_of(f.record.digest) + " before it was rehearsed there");
    }
  }
};

struct inside_intersection final : checker {
  using checker::checker;
  void look() const {
    for (const campaign_view& c : book_.r.campaigns) {
      const auto at = book_.members.find({c.job, c.op, c.generation});
      if (at == book_.members.end() || c.where != actors::search::stage::decided) continue;
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
      if (!all_recorded(key.first) || is_rehearsed_by_a_program(key.first)) continue;
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

 private:
  // A process that was killed has left nothing, and a recorder that was full lacks what came first.
  bool all_recorded(const generation_key& generation) const {
    const std::vector<const participant_view*>& seen = book_.members.at(generation);
    const auto has_all_of = [&](rank_id r) {
      return std::any_of(seen.begin(), seen.end(), [r](const participant_view* p) { return p->rank == r; }) &&
             !book_.r.flights_lost.contains({std::get<0>(generation), r});
    };
    const std::vector<rank_id>& members = seen.front()->members;
    return std::all_of(members.begin(), members.end(), has_all_of);
  }
  // What an op without headers rehearses over a library that a program has brought nobody has counted.
  bool is_rehearsed_by_a_program(const generation_key& generation) const {
    const std::string& op = book_.members.at(generation).front()->op;
    return book_.r.play != nullptr && book_.r.play->ops.empty() &&
           std::any_of(book_.r.leases.begin(), book_.r.leases.end(), [&](const lease_view& v) { return v.op == op; });
  }
};

struct campaigns_end final : checker {
  using checker::checker;
  void look() const {
    if (!book_.r.play->must_decide) return;
    for (const campaign_view& c : book_.r.campaigns) {
      if (c.where == actors::search::stage::decided || c.ended) continue;
      const auto at = book_.members.find({c.job, c.op, c.generation});
      // A participant that has died may take the answer with it.
      if (at == book_.members.end()) continue;
      const op_spec* const op = book_.op_of(*at->second.front());
      if (op != nullptr && is_beside(*op, c.invocations)) continue;
      if (op != nullptr && c.search > 1 && !is_called_after(*op, c)) continue;
      const auto& members = book_.ranks_of(*at->second.front());
      if (!deaths(book_.r, members) && !parted(book_.r, members) && !deaf(book_.r, members) && !any_ended(at->second)) {
        violated(c.title + ", " + c.key + ": after " + std::to_string(c.invocations) +
                 " invocations and all faults, the campaign is still " + std::string(name_of(c.where)) + ": " +
                 c.progress);
      }
    }
  }
  void look_at_gates() const {
    for (const lease_view& v : book_.r.leases) {
      const op_spec* const op = book_.find(v.op);
      const bool apart = op != nullptr && (deaths(book_.r, op->members) || deaf(book_.r, op->members));
      if (!v.closed.empty() && !v.ended && !apart)
        violated(v.title + ": rank " + std::to_string(v.rank) + " is still held " + v.closed);
    }
  }
  static bool any_ended(const std::vector<const participant_view*>& members) {
    return std::any_of(members.begin(), members.end(), [](const participant_view* p) { return p->ended; });
  }
  // What is tried again after a while may find that the program has made its last call.
  bool is_called_after(const op_spec& op, const campaign_view& c) const {
    return std::any_of(book_.r.calls.begin(), book_.r.calls.end(), [&](const call_record& call) {
      return &book_.r.play->ops[call.op] == &op && call.job == c.job && call.began_ns > c.search_began_ns;
    });
  }
  // Whether one of these ranks ends, and comes back.
  static bool returns(const run_record& r, const std::vector<rank_id>& members) {
    return befalls(r, members, [](const mishap& m) { return m.what == mishap::kind::restart; });
  }
  // Whether one of these ranks ends, or is taken for dead.
  static bool deaths(const run_record& r, const std::vector<rank_id>& members) {
    return befalls(r, members, [&](const mishap& m) { return m.is_death(r.play->detection_ns); });
  }

 private:
  template <class Is>
  static bool befalls(const run_record& r, const std::vector<rank_id>& members, const Is& is_such) {
    return std::any_of(r.faults->mishaps.begin(), r.faults->mishaps.end(), [&](const mishap& m) {
      return is_such(m) && std::find(members.begin(), members.end(), m.rank) != members.end();
    });
  }
};

// What a call of an op brings from rank to rank, one after the other; 0 where all of it is under way at once.
std::uint64_t transfers_in_sequence(const op_spec& op) {
  const std::uint64_t ranks = op.members.size();
  constexpr std::uint64_t microbatches = 10;  // of one call (programs.cpp)
  switch (op.what) {
    case op_spec::kind::pipeline: return microbatches + ranks;
    case op_spec::kind::training: return 6 * ranks;  // there and back, of twice as many microbatches as ranks
    case op_spec::kind::attention: return ranks;
    case op_spec::kind::hierarchy: return 3;  // up, between and down
    default: return 0;                        // those of a contextual op move nothing
  }
}

// What configs themselves take of such a call.
time_ns work_of_call(const op_spec& op) {
  time_ns slowest = 0;
  for (const std::string& text : op.configs) {
    for (const std::uint64_t size : op.sizes) slowest = std::max(slowest, usual_time_of(text, size));
  }
  return static_cast<time_ns>(transfers_in_sequence(op)) * slowest;
}

// Each transfer of an op has the op's timeout, but the first one that needs it all ends the call: those before it are late by what is in
// `held_up`, and by their configs' own time. The leader of a group knows who is missing, and its workers let it speak first, for an eighth
// of the time, which others have here, too. Each of up to four exchanges of a hierarchy waits a quarter longer than the one before. Where
// control messages are lost or late, transfers in sequence are all late by the pauses after which they are asked for again, and a `get` goes
// on past its time until its reader has been heard: for up to a second each, or its time if that is less.
time_ns longest_wait(const call_record& c, const op_spec& op, const tape& faults) {
  constexpr time_ns most_late = 1'000'000'000;
  constexpr time_ns transfers = 20;
  time_ns longest = op.what == op_spec::kind::hierarchy ? c.timeout_ns + c.timeout_ns / 4 * 3 : c.timeout_ns;
  longest += longest / 8;
  const bool is_late = (faults.lose != 0 || faults.delay_control != 0) && transfers_in_sequence(op) != 0;
  return is_late ? longest + transfers * std::min(longest, most_late) : longest;
}

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
    std::vector<time_ns> work;  // by op
    for (const op_spec& op : book_.r.play->ops) work.push_back(work_of_call(op));
    for (const call_record& c : book_.r.calls) {
      const op_spec& op = book_.r.play->ops[c.op];
      if (c.ended_ns - c.began_ns > longest_wait(c, op, *book_.r.faults) + work[c.op] + held)
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
      if (c.code() != errc::none) failed.insert({c.op, c.job});
    }
    for (auto& [op_and_job, calls] : met) {
      const op_spec& op = book_.r.play->ops[op_and_job.first];
      const bool stamped = op.what == op_spec::kind::pair || op.what == op_spec::kind::group;
      // Once one has failed the two sides no longer count alike, nor do they where messages of several streams overtake each other.
      if (!stamped || op.streams != 1 || failed.contains(op_and_job)) continue;
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
  // Where few control messages may be under way and some get lost, a question for room may have to wait itself.
  static constexpr std::uint64_t narrow = 16;
  const bool narrow_control_ = book_.r.play->control_window < narrow || book_.r.faults->control_window != 0;
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
// Costs are those beyond the default. While half of the default's measurements were disturbed, the leader does not know the default's
// time, and later trials may cost more, too: those of two rounds at most, because the third measurement outvotes the first.
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
  /// A timed invocation of the default, from the later of its ends' beginnings to the later of their ends.
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
    std::map<std::uint64_t, const flight_view*> sent;  // in their order
    std::map<std::uint64_t, measured_default> of_default;
    for (const flown& its : book_.all_flown) {
      if (its.generation != of) continue;
      for (const flight_view* f : its.flights) {
        // One that never began has the number of the next one.
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
      // Where data was late by chance the leader has measured that, too, and knows costs only roughly.
      const bool exact = book_.r.faults->delay_data == 0 && !book_.r.faults->has(mishap::kind::clog);
      // It knows each of them to the way of a message, and where control messages were late as well as it knows the other rank's clock.
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
    for (const auto& [op, members] : book_.members) {
      const auto& ranks = book_.ranks_of(*members.front());
      if (campaigns_end::any_ended(members) || campaigns_end::deaths(book_.r, ranks) || parted(book_.r, ranks) ||
          deaf(book_.r, ranks))
        continue;
      std::map<std::string, known> latest;
      std::map<std::string, std::size_t> knowing;
      const auto stayed = static_cast<std::size_t>(
          std::count_if(members.begin(), members.end(), [](const participant_view* p) { return !p->left; }));
      for (const participant_view* p : members) {
        // One that was gone before others had ended has not heard of what was decided later.
        if (p->left) continue;
        for (const actors::decision_record& d : p->decisions) {
          ++knowing[d.key];
          const auto [at, first] = latest.emplace(d.key, known(p, &d));
          if (!first && at->second.second->version != d.version) know_otherwise({p, &d}, at->second);
        }
      }
      for (const auto& [key, n] : knowing) {
        if (n != stayed)
          violated(members.front()->title + ", " + key + ": only " + std::to_string(n) + " of " +
                   std::to_string(stayed) + " participants know the decision");
      }
    }
  }
  // Those of one version are the same, whoever has died, left or is yet to hear of a later one.
  void look_at_versions() const {
    for (const auto& [op, members] : book_.members) {
      std::map<std::pair<std::string, std::uint32_t>, known> of_version;
      for (const participant_view* p : members) {
        for (const actors::decision_record& d : p->decisions) {
          const auto [at, first] = of_version.emplace(std::pair(d.key, d.version), known(p, &d));
          if (!first && at->second.second->digest != d.digest) know_otherwise({p, &d}, at->second);
        }
      }
    }
  }

 private:
  using known = std::pair<const participant_view*, const actors::decision_record*>;
  std::string words_of(const known& k) const {
    return "rank " + std::to_string(k.first->rank) + " knows " + book_.class_of(k.second->digest) + " version " +
           std::to_string(k.second->version);
  }
  void know_otherwise(const known& one, const known& other) const {
    violated(one.first->title + ", " + one.second->key + ": " + words_of(one) + ", and " + words_of(other));
  }
};

// Only where nothing but the configs differs: no faults that take time, and medians that stragglers cannot have changed.
struct fastest final : checker {
  using checker::checker;
  void look() const {
    const tape& t = *book_.r.faults;
    if (kernels_.straggler_per_thousand != 0) return;
    if (t.delay_data != 0 || !t.mishaps.empty() || t.skewed || t.early_timeouts != 0) return;
    for (const campaign_view& c : book_.r.campaigns) {
      if (c.where != actors::search::stage::decided || c.source != actors::decision_source::trials) continue;
      if (c.searches_again) continue;  // what it had decided has failed
      const op_spec* const op = book_.find(std::string_view(c.title).substr(0, c.title.find(' ')));
      if (op == nullptr || op->in_flight != 1 || is_program(op->what) ||
          !std::all_of(op->configs.begin(), op->configs.end(), is_simulated))
        continue;
      // Nobody waits for the workers of a gather: what they do before its leader begins is not charged, and nothing may be faster.
      if (op->does == "gather" && c.winner == words(op->configs.front()).text(1)) continue;
      judge(c, *op);
    }
  }

 private:
  static bool is(std::string_view text, std::initializer_list<std::string_view> kinds) {
    return std::any_of(kinds.begin(), kinds.end(), [&](std::string_view k) { return text.starts_with(k); });
  }
  static bool is_sound(std::string_view text) { return is(text, {"timed:", "drifting:"}); }
  static bool is_simulated(std::string_view text) {
    return is_sound(text) || is(text, {"on:", "abi:", "failing:", "hanging:", "corrupting:"});
  }
  static bool drifts(std::string_view text) { return is(text, {"drifting:"}); }
  // Of some size of its key the winner is among the fastest that all can run, for ever. One that has not failed yet may be faster.
  void judge(const campaign_view& c, const op_spec& op) const {
    std::string better;
    for (const std::uint64_t size : op.sizes) {
      if (!c.bucket.contains(bytes_of_call(op, size))) continue;
      const std::string* best = nullptr;
      const std::string* winner = nullptr;
      for (const std::string& text : op.configs) {
        const bool sound = is_sound(text);
        if (sound && (best == nullptr || time_of(text, size) < time_of(*best, size))) best = &text;
        const bool everywhere = sound || !is(text, {"on:", "abi:"});
        if (everywhere && words(text).text(1) == c.winner) winner = &text;
      }
      if (best == nullptr) return;
      if (winner != nullptr && time_of(*winner, size) <= time_of(*best, size) + slack_ns(op, *best, size)) return;
      if (winner != nullptr && was_as_slow_when_first_used(c, op, *winner, size)) return;
      better = words(*best).text(1);
    }
    if (!better.empty())
      violated(c.title + ", " + c.key + ": " + c.winner + " was decided, and " + better + " is the fastest: " + c.why);
  }
  time_ns time_of(const std::string& text, std::uint64_t size) const { return usual_time_of(text, size, kernels_); }
  // By how much the winner may be slower: what counts as noise, by the noise that there is, and where kernels drift what is too little
  // to search anew for.
  time_ns slack_ns(const op_spec& op, const std::string& best, std::uint64_t size) const {
    const bool drifting = kernels_.drift_per_second != 0 && std::any_of(op.configs.begin(), op.configs.end(), drifts);
    const auto thousandths =
        static_cast<time_ns>(within_noise + kernels_.noise_per_thousand) + (drifting ? unnoticed_drift : 0);
    return (time_of(best, size) + link_ns) * thousandths / 1000;
  }
  // The leader of an op without headers compares calls with calls before them, as its trials are made elsewhere: of what has drifted
  // before the first call with what was decided it sees nothing.
  bool was_as_slow_when_first_used(const campaign_view& c, const op_spec& op, std::string_view winner,
                                   std::uint64_t size) const {
    if (op.what != op_spec::kind::symmetric || !drifts(winner)) return false;
    time_ns first = runtime::never;
    for (const flown& its : book_.all_flown) {
      if (its.generation != generation_key{c.job, c.op, c.generation}) continue;
      for (const flight_view* f : its.flights) {
        const runtime::flight_record& one = f->record;
        const bool is_use = one.digest == c.digest && !is_rehearsal(one) && one.began_ns >= c.search_began_ns;
        if (is_use) first = std::min(first, one.began_ns);
      }
    }
    if (first == runtime::never) return true;  // no call had that winner
    const time_ns steady = usual_time_of(winner, size);
    return time_of(std::string(winner), size) * 1000 <=
           steady * (1000 + kernels_.drifted(first)) / 1000 * (1000 + unnoticed_drift);
  }
  static constexpr std::uint64_t within_noise = 40;
  static constexpr time_ns unnoticed_drift = 600;
  static constexpr time_ns link_ns = 20'000;
  const kernel_model kernels_ = kernels_of(*book_.r.play, *book_.r.faults);
};

struct explained_errors final : checker {
  using checker::checker;
  void look() const {
    for (const call_record& c : book_.r.calls) {
      if (c.code() == errc::none) continue;
      const op_spec& op = book_.r.play->ops[c.op];
      const bool deaths = campaigns_end::deaths(book_.r, op.members) || parted(book_.r, op.members);
      const std::string what = op.name + ", on rank " + std::to_string(c.rank) + ": call " + std::to_string(c.number) +
                               (c.sends ? " (send)" : "") + " failed with `" + c.failed->what() + "`";
      const bool late = op.timeout_ns < short_timeout_ns || (book_.r.faults->early_timeouts != 0 && !c.calm);
      if (!explained(c, op, deaths, late) && !by_return(c) && !(c.code() == errc::closed && is_closed_by_a_failure(c)))
        violated(what + ", which no fault explains");
      if (lost_to_nothing(book_.r, c.rank, *c.failed, c.ended_ns))
        violated(what + ", and nothing has befallen rank " + std::to_string(c.failed->began_with()->rank));
      // What has closed an op is told as it was on the rank that it began on; no call of this rank begins any more.
      if (c.code() == errc::closed && is_closed_by_a_failure(c)) continue;
      const runtime::error_facts& about = c.failed->about();
      if (!is_of(op_of(about.op), op.name) || about.rank != c.rank)
        violated(what + ", which does not name op and rank");
      const bool names_it = about.begun ? about.invocation.has_value() : is_made_of_edges(op.what);
      if (!names_it) violated(what + ", which does not name the invocation");
    }
    look_at_begun();
  }
  // Recorders have the calls that had begun, each with its number.
  void look_at_begun() const {
    std::set<std::tuple<std::string_view, std::uint64_t, rank_id, std::uint64_t>> named;
    for (const call_record& c : book_.r.calls) {
      if (c.code() == errc::none) continue;
      const runtime::error_facts& about = c.failed->about();
      if (about.invocation && about.begun)
        named.emplace(book_.r.play->ops[c.op].name, c.job, c.rank, *about.invocation);
    }
    for (const flight_view& f : book_.r.flights) {
      const bool failed = f.record.what == flight_event::send_failed || f.record.what == flight_event::receive_failed;
      const participant_view* const p = book_.find(f);
      if (!failed || is_rehearsal(f.record) || p == nullptr) continue;
      // A call of an op that is made of others tells only of the first of those that failed.
      const op_spec* const op = book_.find(p->op);
      if (op == nullptr || op->what == op_spec::kind::pipeline || is_program(op->what)) continue;
      // Of one that never met its message there is only the number that it would have got.
      if (f.record.digest == 0 && is_made_of_edges(op->what)) continue;
      if (!named.contains({p->op, f.job, f.rank, f.record.invocation}))
        violated(book_.where(f) + ": it had begun and failed, and no failed call names it");
    }
  }
  static bool is_made_of_edges(op_spec::kind k) {
    using kind = op_spec::kind;
    return k == kind::pair || k == kind::pipeline || k == kind::batch || k == kind::halo || k == kind::attention ||
           k == kind::training;
  }
  // An op goes on once everybody has heard of the new process, and rejoined where it has to.
  bool by_return(const call_record& c) const {
    const op_spec& op = book_.r.play->ops[c.op];
    if (!campaigns_end::returns(book_.r, op.members) || c.calm) return false;
    switch (c.code()) {
      case errc::send_failed: return op.what != op_spec::kind::group;
      case errc::peer_restarted:
      case errc::peer_failed:
      case errc::config_failed: return true;
      default: return false;
    }
  }
  // Of an op that no call follows after one that has failed with something else, on the rank that the text names.
  bool is_closed_by_a_failure(const call_record& c) const {
    const std::string began = "op " + book_.r.play->ops[c.op].name + ": a call has failed on rank ";
    return std::any_of(book_.r.calls.begin(), book_.r.calls.end(), [&](const call_record& o) {
      return o.op == c.op && o.job == c.job && o.code() != errc::none && o.code() != errc::closed &&
             o.began_ns <= c.ended_ns &&
             c.failed->text().find(began + std::to_string(o.rank) + " (") != std::string::npos;
    });
  }
  static bool has(const op_spec& op, std::string_view kind) {
    return std::any_of(op.configs.begin(), op.configs.end(), [&](const auto& text) { return text.starts_with(kind); });
  }
  static bool broken(const op_spec& op) {
    return has(op, "failing") || has(op, "corrupting") || has(op, "hanging") || has(op, "torn");
  }
  static bool explained(const call_record& c, const op_spec& op, bool deaths, bool late) {
    switch (c.code()) {
      case errc::peer_failed:
      case errc::fenced: return deaths;
      // Where an op cannot go on after a failure its other members wait in vain.
      case errc::timeout: return deaths || late || (is_program(op.what) && broken(op));
      case errc::buffer_too_small: return op.small_receives != 0;
      // Of a group one hears why its sender failed, or that it is gone.
      case errc::send_failed: return op.what != op_spec::kind::group && (deaths || late || broken(op));
      case errc::config_failed: return deaths || late || broken(op);
      // What failed in another group of it, whose config is not this one's.
      case errc::exception: return op.what == op_spec::kind::hierarchy && broken(op);
      default: return false;
    }
  }
};

// What results files brought about was found out by processes of the same versions, in an earlier job.
struct trusted_results final : checker {
  using checker::checker;
  void look() const {
    const auto& validators = book_.r.play->validators;
    const auto of = [&](std::size_t job, rank_id r) {
      return job < validators.size() && r < validators[job].size() ? validators[job][r] : std::string();
    };
    for (const campaign_view& c : book_.r.campaigns) {
      const auto at = book_.members.find({c.job, c.op, c.generation});
      if (c.source != actors::decision_source::results || at == book_.members.end()) continue;
      const auto& ranks = at->second.front()->members;
      bool seen = false;
      for (std::size_t earlier = 0; earlier + 1 < c.job; ++earlier)
        seen = seen ||
               std::all_of(ranks.begin(), ranks.end(), [&](rank_id r) { return of(earlier, r) == of(c.job - 1, r); });
      if (!seen)
        violated(c.title + ", " + c.key + ": " + c.winner +
                 " is remembered, and never before did all of its ranks have the versions that they have");
    }
  }
};

// A config that failed in a real invocation is not assigned again for that key, but for what was under way.
struct quarantined final : checker {
  using checker::checker;
  void look() const {
    std::map<std::tuple<std::size_t, std::uint64_t, rank_id, std::uint64_t>, std::vector<time_ns>> failures;
    for (const call_record& c : book_.r.calls) {
      if (c.code() == errc::config_failed) failures[{c.op, c.job, c.rank, c.returns}].push_back(c.began_ns);
    }
    for (const auto& [key, begun_ns] : failures) {
      const time_ns from = *std::min_element(begun_ns.begin(), begun_ns.end()) + unheard_ns_;
      const auto n = std::count_if(begun_ns.begin(), begun_ns.end(), [from](time_ns t) { return t >= from; });
      const op_spec& op = book_.r.play->ops[std::get<0>(key)];
      if (fails_once_settled(op)) continue;
      // The leader of a broadcast waits for nobody: it has stamped a window of calls when it hears of the first.
      const std::uint64_t ahead = op.does == "broadcast" ? book_.r.play->window : 0;
      const std::uint64_t under_way = (2 * op.in_flight + 2 + ahead) * searches(op, std::get<1>(key));
      if (!campaigns_end::deaths(book_.r, op.members) && !parted(book_.r, op.members) &&
          std::cmp_greater(n, op.configs.size() * op.sizes.size() * under_way))
        violated(op.name + ", on rank " + std::to_string(std::get<2>(key)) + ": " + std::to_string(n) +
                 " calls failed because of their config");
    }
  }
  // Where the few control messages that may be under way are all lost, nothing is said of a failure until there is room for more, which
  // is asked for, and may have to be asked for again.
  const time_ns unheard_ns_ = book_.r.faults->control_window != 0 && book_.r.faults->lose != 0 ? 100'000'000 : 0;
  // Its kernels are the program's own then, and one that fails from a later run on may have won.
  static bool fails_once_settled(const op_spec& op) {
    return op.what == op_spec::kind::contextual &&
           std::any_of(op.configs.begin(), op.configs.end(), [](const std::string& text) {
             const kernel_spec k = kernel_from(text);
             return k.fails && k.after > 1;
           });
  }
  // Each that is asked for gives what has failed another try.
  std::uint64_t searches(const op_spec& op, std::uint64_t job) const {
    std::uint64_t most = 1;
    if (op.retunes == 0) return most;
    for (const campaign_view& c : book_.r.campaigns) {
      const bool its = is_of(std::string_view(c.title).substr(0, c.title.find(' ')), op.name);
      if (c.job == job && its) most = std::max<std::uint64_t>(most, c.search);
    }
    return most;
  }
};

// What was sent well is received by somebody, where both ends live and the receiver went on to the end.
struct delivered final : checker {
  using checker::checker;
  // Of a receive that had no room, or whose config fails, the sender knows nothing.
  static bool receives_all(const run_record& r, const op_spec& op) {
    return op.what == op_spec::kind::pair && op.small_receives == 0 && !explained_errors::broken(op) &&
           !parted(r, op.members) && !campaigns_end::deaths(r, op.members);
  }
  void look() const {
    const run_record& r = book_.r;
    if (r.programs_left != 0) return;
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
      if (!all_come[c.op] || !c.sends || c.code() != errc::none || cut) continue;
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
        // What has nothing new to try needs nobody.
        if (book_.r.play->ops[c.op].what == op_spec::kind::contextual && c.code() == errc::none) continue;
        if (c.code() != errc::fenced)
          violated(book_.r.play->ops[c.op].name + ": call " + std::to_string(c.number) + " of rank " +
                   std::to_string(c.rank) + ", which the others hold dead, ended with " +
                   std::string(runtime::name(c.code())));
      }
    }
  }
};

struct nothing_left final : checker {
  using checker::checker;
  void look() const {
    const run_record& r = book_.r;
    for (const std::string& file : r.files_left) violated(file + " is still there");
    for (const participant_view& p : r.participants) {
      const std::vector<rank_id>& ranks = book_.ranks_of(p);
      const bool has_left = std::any_of(ranks.begin(), ranks.end(), [&](rank_id m) { return r.left_ns.contains(m); });
      if (p.owed != 0 && !has_left && !parted(r, ranks) && !deaf(r, ranks) && !campaigns_end::deaths(r, ranks))
        violated(p.title + ": " + std::to_string(p.owed) + " messages of rank " + std::to_string(p.rank) +
                 " were never acknowledged");
    }
    if (r.pending_left != 0) violated(std::to_string(r.pending_left) + " transfers never end");
    // Training pipelines keep what their stages get and give for as long as they are declared; where it is exposed to the others.
    const auto keeps = [](const op_spec& op) {
      return op.what == op_spec::kind::training &&
             std::any_of(op.configs.begin(), op.configs.end(), [](const std::string& text) {
               const std::string kind = words(text).text(0);
               return kind == "put" || kind == "get" || kind == "torn";
             });
    };
    if (r.exposed_left != 0 && std::none_of(r.play->ops.begin(), r.play->ops.end(), keeps))
      violated(std::to_string(r.exposed_left) + " pieces of memory are still exposed");
    if (r.frames_left != 0) violated(std::to_string(r.frames_left) + " coroutines were never destroyed");
    if (r.lost_reads != 0) violated(std::to_string(r.lost_reads) + " reads of memory that had been withdrawn");
  }
};

void look_at_flights(const book& b, std::vector<violation>& found) {
  one_assignment(b, found, "S1").look();
  one_wire_class(b, found, "S2").look();
  only_warmed(b, found, "S3").look();
  inside_intersection(b, found, "S4").look();
  own_generation(b, found, "S5").look();
  complete_rows(b, found, "S6").look();
}

}  // namespace

std::vector<violation> check_flights(const run_record& r) {
  std::vector<violation> found;
  const book b(r);
  look_at_flights(b, found);
  one_decision(b, found, "agreement").look_at_versions();
  return found;
}

std::vector<violation> check(const run_record& r) {
  const book b(r);
  std::vector<violation> found = r.at_once;
  if (r.spoiled != 0)
    found.push_back({"S8", "somebody has written beside " + std::to_string(r.spoiled) +
                               " buffers that ops had made, or into them once they were given back"});
  if (r.puts_outside != 0)
    found.push_back({"S8", std::to_string(r.puts_outside) + " puts outside the memory that their key names"});
  look_at_flights(b, found);
  campaigns_end(b, found, "L1").look();
  campaigns_end(b, found, "L1").look_at_gates();
  calls_end(b, found, "L2").look();
  no_control_wait(b, found, "N1").look();
  inside_window(b, found, "window").look();
  few_gates(b, found, "N2").look();
  outsiders(b, found, "N3").look();
  within_budget(b, found, "N4").look();
  one_decision(b, found, "agreement").look_at_versions();
  one_decision(b, found, "agreement").look();
  fastest(b, found, "oracle").look();
  explained_errors(b, found, "errors").look();
  trusted_results(b, found, "results").look();
  quarantined(b, found, "quarantine").look();
  delivered(b, found, "delivery").look();
  fenced_ranks(b, found, "fencing").look();
  nothing_left(b, found, "leftovers").look();
  if (r.play->ops.empty()) check_program(r, found);  // nobody has listed its ops
  return found;
}

}  // namespace parley::simulation
