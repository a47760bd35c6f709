#include <parley/simulation/checkers/program_checkers.hpp>

#include <parley/simulation/checkers/record_book.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace parley::simulation {

namespace {

using runtime::errc;
using runtime::flight_event;

constexpr std::size_t most_of_a_kind = 20;

using op_generation = std::pair<std::uint64_t, std::uint64_t>;  // op, generation

// One invocation, as its members have recorded it.
struct invocation {
  std::vector<const flight_view*> by{};
  bool all_well(std::size_t members) const {
    return by.size() == members && std::all_of(by.begin(), by.end(), [](const flight_view* f) { return ran_well(*f); });
  }
  const flight_view* of(rank_id r) const {
    const auto at = std::find_if(by.begin(), by.end(), [r](const flight_view* f) { return f->rank == r; });
    return at == by.end() ? nullptr : *at;
  }
  time_ns all_there_ns() const {
    time_ns latest = 0;
    for (const flight_view* f : by) latest = std::max(latest, f->record.began_ns);
    return latest;
  }
  time_ns over_ns() const {
    time_ns latest = 0;
    for (const flight_view* f : by) latest = std::max(latest, f->record.ended_ns);
    return latest;
  }
  time_ns took_ns() const { return over_ns() - all_there_ns(); }
};

// One op in one generation: its members, and its invocations by tag and number.
struct op_runs {
  const participant_view* leader = nullptr;
  std::size_t participants = 0;
  bool ended = false;
  bool leased = false;
  std::map<std::pair<std::uint32_t, std::uint64_t>, invocation> invocations{};
};

bool is_failure(const flight_view& f) {
  return f.record.what == flight_event::send_failed || f.record.what == flight_event::receive_failed;
}

class program_book {
 public:
  explicit program_book(const run_record& run) : r(run) {
    for (const participant_view& p : r.participants) {
      op_runs& op = ops[{p.id, p.generation}];
      ++op.participants;
      op.ended = op.ended || p.ended;
      if (p.leads) op.leader = &p;
      op.leased = op.leased || std::any_of(r.leases.begin(), r.leases.end(),
                                           [&](const lease_view& v) { return v.title == p.title; });
    }
    for (const flight_view& f : r.flights) {
      const auto at = ops.find({f.record.op, f.record.generation});
      if (at == ops.end() || is_rehearsal(f.record)) continue;
      at->second.invocations[{f.record.tag, f.record.invocation}].by.push_back(&f);
    }
  }
  bool undisturbed() const { return r.faults->delay_data == 0 && r.faults->mishaps.empty(); }
  bool deaths() const { return r.faults->has(mishap::kind::crash); }
  /// True if all members of an op have complete records of it.
  bool whole(const op_runs& op) const {
    return r.flights_lost.empty() && op.leader != nullptr && op.leader->members.size() == op.participants && !op.ended;
  }

  const run_record& r;
  std::map<op_generation, op_runs> ops;
};

class found_by {
 public:
  found_by(std::vector<violation>& found, const char* invariant) : found_(found), invariant_(invariant) {}
  void violated(std::string text) {
    if (++count_ <= most_of_a_kind) found_.push_back({invariant_, std::move(text)});
  }

 private:
  std::vector<violation>& found_;
  const char* invariant_;
  std::size_t count_ = 0;
};

std::string where(const op_runs& op, std::pair<std::uint32_t, std::uint64_t> tag_and_number) {
  return op.leader->title + ", invocation " + std::to_string(tag_and_number.second) +
         (op.leased || tag_and_number.first == 0 ? "" : " of tag " + std::to_string(tag_and_number.first));
}

// If a member makes fewer calls than another one, some messages are never received, and parley must report them. A message was lost if
// the member's own calls do not explain why it was not received: a later call ran without it, or a call that waited for it failed long
// after it was sent.
class delivery_check {
 public:
  delivery_check(const program_book& book, std::vector<violation>& found) : book_(book), delivery_(found, "delivery") {}
  void look() {
    if (book_.deaths() || book_.r.programs_left != 0) return;
    for (const auto& [key, op] : book_.ops) {
      if (book_.whole(op)) judge(op);
    }
  }

 private:
  static constexpr time_ns longest_way_ns = 1'000'000'000;

  void judge(const op_runs& op) {
    std::map<std::pair<std::uint32_t, rank_id>, std::uint64_t> last;  // the latest invocation, by tag and member
    for (const auto& [at, one] : op.invocations) {
      for (const flight_view* f : one.by) last[{at.first, f->rank}] = at.second;
    }
    for (const auto& [at, one] : op.invocations) {
      std::set<rank_id> ranks;
      std::set<rank_id> received;
      for (const flight_view* f : one.by) {
        ranks.insert(f->rank);
        if (f->record.what == flight_event::received && !received.insert(f->rank).second)
          delivery_.violated(where(op, at) + ": was received twice by rank " + std::to_string(f->rank));
      }
      // A failed invocation was reported, and may have failed before the other members began it.
      if (std::any_of(one.by.begin(), one.by.end(), [](const flight_view* f) { return is_failure(*f); })) continue;
      for (const rank_id member : op.leader->members) {
        if (ranks.contains(member)) continue;
        const auto its_last = last.find({at.first, member});
        const bool went_on = its_last != last.end() && its_last->second > at.second;
        const std::string why = why_lost(op, at.first, one, member, went_on);
        if (!why.empty())
          delivery_.violated(where(op, at) + ": ended well on rank " + std::to_string(*ranks.begin()) + ", and rank " +
                             std::to_string(member) + " has no part in it" + why);
      }
    }
  }
  // The reason to count an invocation as lost; empty if the calls of `member`'s program explain it.
  std::string why_lost(const op_runs& op, std::uint32_t tag, const invocation& one, rank_id member,
                       bool went_on) const {
    if (went_on) return ", and has continued without it";
    const auto waited_for_it = [&](const failed_call& f) {
      const runtime::error_facts& about = f.why.about();
      return f.rank == member && f.why.code() == errc::timeout && about.op == op.leader->title &&
             (!op.leader->edge || about.tag == tag) && f.at_ns > one.over_ns() + longest_way_ns;
    };
    if (std::any_of(book_.r.failed_calls.begin(), book_.r.failed_calls.end(), waited_for_it))
      return ", and a call of it has waited there in vain";
    return is_told(op) ? "" : ", and no rank was told";
  }
  // True if the sender has reported its messages, or an error has ended the op for its members.
  bool is_told(const op_runs& op) const {
    const auto of_messages = [&](const std::string& line) { return line.starts_with(op.leader->title); };
    const auto of_op = [&](const failed_call& f) {
      const std::vector<rank_id>& members = op.leader->members;
      const std::string& whose = f.why.about().op;
      return f.why.code() != errc::timeout && std::find(members.begin(), members.end(), f.rank) != members.end() &&
             (whose == op.leader->title || whose == op.leader->op);
    };
    return std::any_of(book_.r.undelivered.begin(), book_.r.undelivered.end(), of_messages) ||
           std::any_of(book_.r.failed_calls.begin(), book_.r.failed_calls.end(), of_op);
  }

  const program_book& book_;
  found_by delivery_;
};

// True for errors that the program itself causes: a deadline, a buffer that is too small, a config or a declaration that fails.
bool is_its_own(errc code) {
  switch (code) {
    case errc::peer_failed:
    case errc::peer_restarted:
    case errc::fenced:
    case errc::config_mismatch:
    case errc::malformed:
    case errc::unauthenticated:
    case errc::protocol_version:
    case errc::invariant_broken: return false;
    default: return true;
  }
}

bool explained(const program_book& book, const runtime::error& why) {
  const errc code = why.code();
  const bool by_death = code == errc::peer_failed || code == errc::fenced || code == errc::peer_restarted;
  const runtime::root_cause* const first = why.began_with();
  const bool by_return = code == errc::peer_failed && first != nullptr && book.r.left_ns.contains(first->rank);
  return is_its_own(code) || (by_death && book.deaths()) || by_return;
}

void check_errors(const program_book& book, std::vector<violation>& found) {
  found_by errors(found, "errors");
  std::set<std::string> names = book.r.other_ops;
  for (const participant_view& p : book.r.participants) names.insert(p.op);
  for (const failed_call& f : book.r.failed_calls) {
    const std::string what = "on rank " + std::to_string(f.rank) + " a call failed with `" + f.why.what() + "`";
    if (!explained(book, f.why)) errors.violated(what + ", which no fault explains");
    if (lost_to_nothing(book.r, f.rank, f.why, runtime::never))
      errors.violated(what + ", and nothing has befallen rank " + std::to_string(f.why.began_with()->rank));
    const runtime::error_facts& about = f.why.about();
    // An exception of a role's function reaches the caller unchanged.
    if (f.why.code() == errc::exception && about.op.empty()) continue;
    // No other rank takes part in a transfer of a rank to itself, so no participant names its op, and its calls have no number.
    const bool to_itself = about.rank && about.rank == about.peer;
    const bool names_op = to_itself || names.contains(std::string(op_of(about.op)));
    if (!names_op || about.rank != f.rank) errors.violated(what + ", which does not name op and rank");
    // An error of an op as a whole names no call.
    const bool is_of_op = f.why.code() == errc::closed || f.why.code() == errc::declaration_mismatch ||
                          f.why.code() == errc::role_conflict || f.why.code() == errc::bad_argument;
    if (about.begun && !about.invocation && !to_itself && !is_of_op)
      errors.violated(what + ", which does not name the invocation");
  }
}

// True for ops with invocations that wait only for data. Ops without headers have gates, so they do not count. The sender of a get
// learns of its end by a control message, so `latency_of` uses the time of the receiver.
bool is_stamped(const op_runs& op) { return op.leader != nullptr && !op.leased && op.participants > 1; }

time_ns latency_of(const op_runs& op, const invocation& one) {
  if (!op.leader->edge) return one.took_ns();
  const flight_view* const received = one.of(op.leader->members.back());
  return received == nullptr ? 0 : received->record.ended_ns - one.all_there_ns();
}

template <class Visit>
void each_stamped(const program_book& book, Visit visit) {
  for (const auto& [key, op] : book.ops) {
    if (!is_stamped(op)) continue;
    for (const auto& [at, one] : op.invocations) {
      if (one.all_well(op.leader->members.size())) visit(key.first, op, at, one);
    }
  }
}

void check_control_waits(const program_book& book, std::vector<violation>& found) {
  found_by waits(found, "N1");
  if (book.r.usual_ns.empty()) return;
  constexpr time_ns besides_ns = 3'000'000;
  each_stamped(book, [&](std::uint64_t id, const op_runs& op, auto at, const invocation& one) {
    const auto usual = book.r.usual_ns.find({id, one.by.front()->record.bytes});
    if (usual == book.r.usual_ns.end()) return;
    const time_ns took = latency_of(op, one);
    if (took > 2 * usual->second + besides_ns)
      waits.violated(where(op, at) + ": took " + std::to_string(took / 1000) +
                     " us after all had begun it, without bad luck of control messages at most " +
                     std::to_string(usual->second / 1000) + " us");
  });
}

// N4 as in costs.cpp, with the times that both ends recorded, for undisturbed programs in which calls of an op do not overlap. Ops with
// a tuning phase are not judged.
class budget_check {
 public:
  budget_check(const program_book& book, std::vector<violation>& found) : book_(book), budget_(found, "N4") {}
  void look() {
    if (!book_.undisturbed()) return;
    for (const auto& [key, op] : book_.ops) {
      if (book_.whole(op) && op.leader->edge) judge(op);
    }
  }

 private:
  static constexpr std::uint32_t tuning_tag = 0xffffffffU;
  static constexpr double rounding = 1.25;

  void judge(const op_runs& op) {
    std::multimap<time_ns, std::pair<std::pair<std::uint32_t, std::uint64_t>, const invocation*>> in_order;
    std::map<std::uint64_t, time_ns> usual;  // longest time of the default, by bytes
    for (const auto& [at, one] : op.invocations) {
      if (at.first == tuning_tag || !one.all_well(2)) return;
      in_order.emplace(one.all_there_ns(), std::pair(at, &one));
      const auto& record = one.by.front()->record;
      if (record.digest != op.leader->c0) continue;
      const auto [known, first] = usual.emplace(record.bytes, one.took_ns());
      if (!first) known->second = std::max(known->second, one.took_ns());
    }
    double spent = 0;
    double unforeseen = 0;
    std::map<std::pair<std::uint64_t, std::uint64_t>, double> tried;  // cost of the latest trial, by config and bytes
    time_ns over_ns = 0;
    for (auto at = in_order.begin(); at != in_order.end(); ++at) {
      const auto& [began_ns, one] = *at;
      const auto next = std::next(at);
      const bool overlaps = began_ns < over_ns || (next != in_order.end() && next->first < one.second->over_ns());
      if (overlaps) return;  // a call may have waited for a wire that another call used
      over_ns = one.second->over_ns();
      const auto& record = one.second->by.front()->record;
      const auto known = usual.find(record.bytes);
      if ((record.flags & timed) == 0 || record.digest == op.leader->c0 || known == usual.end()) continue;
      const double costs = static_cast<double>(std::max<time_ns>(one.second->took_ns() - known->second, 0));
      spent += costs;
      const auto [before, first] = tried.try_emplace({record.digest, record.bytes}, costs);
      if (first) unforeseen += costs;
      // If a config has become slower, the leader could not know by how much.
      const double slower = std::max(costs - std::exchange(before->second, costs), 0.0);
      const double earned = book_.r.budget * static_cast<double>(began_ns - in_order.begin()->first);
      if (spent <= rounding * earned + (first ? unforeseen : slower)) continue;
      budget_.violated(where(op, one.first) + ": with this trial they have cost " + std::to_string(spent / 1e6) +
                       " ms, and " + std::to_string(earned / 1e6) + " ms were earned");
      return;
    }
  }

  const program_book& book_;
  found_by budget_;
};

// A decision by trials must be the fastest config that was tried, by the medians of the times that both ends recorded. Judges edges whose
// calls do not overlap and have one size, in undisturbed programs.
void check_decisions(const program_book& book, std::vector<violation>& found) {
  found_by oracle(found, "oracle");
  if (!book.undisturbed()) return;
  constexpr double within_noise = 1.1;
  constexpr double at_least_ns = 2'000;
  for (const search_view& c : book.r.searches) {
    const auto known = book.ops.find({c.op, c.generation});
    if (known == book.ops.end() || c.where != actors::search::stage::decided) continue;
    const op_runs& op = known->second;
    if (c.source != actors::decision_source::trials || !book.whole(op) || !op.leader->edge) continue;
    std::map<std::uint64_t, std::vector<time_ns>> took;  // by config, in the search that decided
    std::multimap<time_ns, time_ns> spans;
    std::set<std::uint64_t> sizes;
    for (const auto& [at, one] : op.invocations) {
      const auto& record = one.by.front()->record;
      sizes.insert(record.bytes);
      spans.emplace(one.all_there_ns(), one.over_ns());
      const bool counts = (record.flags & timed) != 0 && one.all_there_ns() >= c.search_began_ns;
      if (counts && one.all_well(2)) took[record.digest].push_back(one.took_ns());
    }
    time_ns over_ns = 0;
    bool overlap = false;
    for (const auto& [began_ns, ended_ns] : spans) overlap = overlap || began_ns < std::exchange(over_ns, ended_ns);
    if (overlap || sizes.size() != 1 || !took.contains(c.digest)) continue;
    const auto median = [](std::vector<time_ns>& all) {
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
      std::nth_element(all.begin(), middle, all.end());
      return static_cast<double>(*middle);
    };
    const double chosen = median(took[c.digest]);
    for (auto& [digest, times] : took) {
      if (const double other = median(times); chosen > within_noise * other + at_least_ns)
        oracle.violated(c.title + ", " + c.key + ": " + c.winner + " was decided, which took " +
                        std::to_string(chosen) + " ns in its trials, and another candidate " + std::to_string(other) +
                        " ns");
    }
  }
}

}  // namespace

std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> usual_times(const run_record& r) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> all;
  each_stamped(program_book(r), [&](std::uint64_t id, const op_runs& op, auto, const invocation& one) {
    time_ns& longest = all[{id, one.by.front()->record.bytes}];
    longest = std::max(longest, latency_of(op, one));
  });
  return all;
}

void check_program(const run_record& r, std::vector<violation>& found) {
  const program_book book(r);
  if (r.programs_left != 0) found.push_back({"L2", std::to_string(r.programs_left) + " programs wait for ever"});
  delivery_check(book, found).look();
  check_errors(book, found);
  check_control_waits(book, found);
  budget_check(book, found).look();
  check_decisions(book, found);
}

}  // namespace parley::simulation
