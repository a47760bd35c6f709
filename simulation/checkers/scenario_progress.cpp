#include <parley/simulation/checkers/excuses.hpp>
#include <parley/simulation/checkers/families.hpp>
#include <parley/simulation/programs/config_text.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace parley::simulation {

namespace {

constexpr time_ns slack_ns = 100'000'000;

std::string_view name_of(actors::search::stage s) noexcept {
  constexpr std::string_view names[] = {"waiting for offers, merge or warm-up", "trying", "collecting", "decided"};
  return names[static_cast<std::size_t>(s)];
}

struct searches_end final : checker {
  using checker::checker;
  void look() const {
    if (!book_.r.play->must_decide) return;
    for (const search_view& c : book_.r.searches) {
      if (c.where == actors::search::stage::decided || c.ended) continue;
      const auto at = book_.members.find({c.job, c.op, c.generation});
      // The record has no participant of this op; perhaps the rank that would show whether the search ended has died.
      if (at == book_.members.end()) continue;
      const op_spec* const op = book_.op_of(*at->second.front());
      if (op != nullptr && is_beside(*op, c.invocations)) continue;
      if (op != nullptr && c.search > 1 && !is_called_after(*op, c)) continue;
      const auto& members = book_.ranks_of(*at->second.front());
      if (!may_disagree(book_.r, members) && !any_ended(at->second)) {
        violated(c.title + ", " + c.key + ": after " + std::to_string(c.invocations) +
                 " invocations and all faults, the search is still " + std::string(name_of(c.where)) + ": " +
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
  // True if the op was called after the search began. A search that starts again after a while may start after the program's last call.
  bool is_called_after(const op_spec& op, const search_view& c) const {
    return std::any_of(book_.r.calls.begin(), book_.r.calls.end(), [&](const call_record& call) {
      return &book_.r.play->ops[call.op] == &op && call.job == c.job && call.began_ns > c.search_began_ns;
    });
  }
};

// The number of transfers that a call of an op makes one after the other; 0 if all of them are in flight at once.
std::uint64_t transfers_in_sequence(const op_spec& op) {
  const std::uint64_t ranks = op.members.size();
  constexpr std::uint64_t microbatches = 10;  // of one call (programs.cpp)
  switch (op.what) {
    case op_spec::kind::pipeline: return microbatches + ranks;
    case op_spec::kind::training: return 6 * ranks;  // forward and backward, for twice as many microbatches as ranks
    case op_spec::kind::attention: return ranks;
    case op_spec::kind::hierarchy: return 3;  // up, between and down
    default: return 0;                        // calls of a contextual op transfer nothing
  }
}

// The time that the configs themselves take in such a call.
time_ns work_of_call(const op_spec& op) {
  time_ns slowest = 0;
  for (const std::string& text : op.configs) {
    for (const std::uint64_t size : op.sizes) slowest = std::max(slowest, usual_time_of(text, size));
  }
  return static_cast<time_ns>(transfers_in_sequence(op)) * slowest;
}

// The longest time after which a call must end, in addition to `work_of_call` and `held_up`. Each transfer of an op has the op's timeout,
// but the first transfer that uses all of it ends the call; earlier transfers are late by their configs' time and by `held_up`. The leader
// of a group knows which member is missing, so its workers wait an eighth longer and its error comes first; here all calls may wait that
// long. Each of up to four exchanges of a hierarchy waits a quarter longer than the previous one. If control messages are lost or late,
// each transfer of a sequence may be late by the pauses before retries, and a `get` continues past its timeout until its reader has
// reported: each by up to a second, or by the timeout if that is less.
time_ns longest_wait(const call_record& c, const op_spec& op, const tape& faults) {
  constexpr time_ns most_late = 1'000'000'000;
  constexpr time_ns transfers = 20;
  time_ns longest = op.what == op_spec::kind::hierarchy ? c.timeout_ns + c.timeout_ns / 4 * 3 : c.timeout_ns;
  longest += longest / 8;
  const bool is_late = (faults.lose != 0 || faults.delay_control != 0) && transfers_in_sequence(op) != 0;
  return is_late ? longest + transfers * std::min(longest, most_late) : longest;
}

// The longest time by which faults may delay a call beyond its timeout: all mishaps, and the time in which a death goes unnoticed.
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

}  // namespace

void check_progress(const record_book& b, std::vector<violation>& found) {
  searches_end(b, found, "L1").look();
  searches_end(b, found, "L1").look_at_gates();
  calls_end(b, found, "L2").look();
}

}  // namespace parley::simulation
