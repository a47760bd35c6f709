#include <parley/simulation/checkers/excuses.hpp>
#include <parley/simulation/checkers/families.hpp>
#include <parley/simulation/programs/config_text.hpp>

#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

namespace parley::simulation {

namespace {

using runtime::errc;
using runtime::flight_event;

struct explained_errors final : checker {
  using checker::checker;
  void look() const {
    for (const call_record& c : book_.r.calls) {
      if (c.code() == errc::none) continue;
      const op_spec& op = book_.r.play->ops[c.op];
      const bool lost = may_lose_a_member(book_.r, op.members);
      const std::string what = op.name + ", on rank " + std::to_string(c.rank) + ": call " + std::to_string(c.number) +
                               (c.sends ? " (send)" : "") + " failed with `" + c.failed->what() + "`";
      const bool late = op.timeout_ns < short_timeout_ns || (book_.r.faults->early_timeouts != 0 && !c.calm);
      if (!explained(c, op, lost, late) && !by_return(c) && !(c.code() == errc::closed && is_closed_by_a_failure(c)))
        violated(what + ", which no fault explains");
      if (lost_to_nothing(book_.r, c.rank, *c.failed, c.ended_ns))
        violated(what + ", and nothing has befallen rank " + std::to_string(c.failed->began_with()->rank));
      // The error of a closed op names the rank on which the failure began. This rank's call never began, so it is not named.
      if (c.code() == errc::closed && is_closed_by_a_failure(c)) continue;
      const runtime::error_facts& about = c.failed->about();
      if (!is_of(op_of(about.op), op.name) || about.rank != c.rank)
        violated(what + ", which does not name op and rank");
      const bool names_it = about.begun ? about.invocation.has_value() : is_made_of_edges(op.what);
      if (!names_it) violated(what + ", which does not name the invocation");
    }
    look_at_begun();
  }
  // Each failed invocation in the flight recorders must be named by the error of a call.
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
      // A call of an op that is made of other ops reports only the first of their failures.
      const op_spec* const op = book_.find(p->op);
      if (op == nullptr || op->what == op_spec::kind::pipeline || is_program(op->what)) continue;
      // A transfer that never met its message has only the number that it would have got.
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
  // True if a restart explains the error: an op continues only once all members know the new process, and have rejoined if they must.
  bool by_return(const call_record& c) const {
    const op_spec& op = book_.r.play->ops[c.op];
    if (!returns(book_.r, op.members) || c.calm) return false;
    switch (c.code()) {
      case errc::send_failed: return op.what != op_spec::kind::group;
      case errc::peer_restarted:
      case errc::peer_failed:
      case errc::config_failed: return true;
      default: return false;
    }
  }
  // True if another call of the op failed, with another error, on the rank that this call's error names: after that no call may follow.
  bool is_closed_by_a_failure(const call_record& c) const {
    const std::string began = "op " + book_.r.play->ops[c.op].name + ": a call has failed on rank ";
    return std::any_of(book_.r.calls.begin(), book_.r.calls.end(), [&](const call_record& o) {
      return o.op == c.op && o.job == c.job && o.code() != errc::none && o.code() != errc::closed &&
             o.began_ns <= c.ended_ns &&
             c.failed->text().find(began + std::to_string(o.rank) + " (") != std::string::npos;
    });
  }
  static bool explained(const call_record& c, const op_spec& op, bool lost, bool late) {
    switch (c.code()) {
      case errc::peer_failed:
      case errc::fenced: return lost;
      // If an op cannot continue after a failure, its other members wait until they time out.
      case errc::timeout: return lost || late || (is_program(op.what) && is_broken(op));
      case errc::buffer_too_small: return op.small_receives != 0;
      // Members of a group learn why the sender failed, or that it is gone, so they never get this code.
      case errc::send_failed: return op.what != op_spec::kind::group && (lost || late || is_broken(op));
      case errc::config_failed: return lost || late || is_broken(op);
      // The failure happened in another group of the hierarchy, which runs another config.
      case errc::exception: return op.what == op_spec::kind::hierarchy && is_broken(op);
      default: return false;
    }
  }
};

// A decision from results files must have been found in an earlier job by processes of the same versions.
struct trusted_results final : checker {
  using checker::checker;
  void look() const {
    const auto& validators = book_.r.play->validators;
    const auto of = [&](std::size_t job, rank_id r) {
      return job < validators.size() && r < validators[job].size() ? validators[job][r] : std::string();
    };
    for (const search_view& c : book_.r.searches) {
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

// A config that failed in a real invocation is not assigned again for that key, except to invocations that were in flight.
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
      // The leader of a broadcast waits for no other rank: it may have stamped a whole window of calls before it hears of the first
      // failure.
      const std::uint64_t ahead = op.does == "broadcast" ? book_.r.play->window : 0;
      const std::uint64_t allowed = (2 * op.in_flight + 2 + ahead) * searches(op, std::get<1>(key));
      if (!may_lose_a_member(book_.r, op.members) && std::cmp_greater(n, op.configs.size() * op.sizes.size() * allowed))
        violated(op.name + ", on rank " + std::to_string(std::get<2>(key)) + ": " + std::to_string(n) +
                 " calls failed because of their config");
    }
  }
  // If all of the few control messages in flight are lost, no rank hears of a failure until the window has room again. The sender must ask
  // for that room, and perhaps ask again.
  const time_ns unheard_ns_ = book_.r.faults->control_window != 0 && book_.r.faults->lose != 0 ? 100'000'000 : 0;
  // True if a kernel that fails only from a later run on may have won. Once the op is settled, the program runs that kernel itself.
  static bool fails_once_settled(const op_spec& op) {
    return op.what == op_spec::kind::contextual &&
           std::any_of(op.configs.begin(), op.configs.end(), [](const std::string& text) {
             const kernel_spec k = kernel_from(text);
             return k.fails && k.after > 1;
           });
  }
  // The number of searches of an op. Each search that the program requests tries failed configs again.
  std::uint64_t searches(const op_spec& op, std::uint64_t job) const {
    std::uint64_t most = 1;
    if (op.retunes == 0) return most;
    for (const search_view& c : book_.r.searches) {
      const bool its = is_of(std::string_view(c.title).substr(0, c.title.find(' ')), op.name);
      if (c.job == job && its) most = std::max<std::uint64_t>(most, c.search);
    }
    return most;
  }
};

// A message that was sent successfully is received, if both ends live and the receiver continues to the end.
struct delivered final : checker {
  using checker::checker;
  // The sender does not know of a receive that had too little room, or whose config failed.
  static bool receives_all(const run_record& r, const op_spec& op) {
    return op.what == op_spec::kind::pair && op.small_receives == 0 && !is_broken(op) &&
           !may_lose_a_member(r, op.members);
  }
  void look() const {
    const run_record& r = book_.r;
    if (r.programs_left != 0) return;
    std::vector<bool> all_come;  // by op
    for (const op_spec& op : r.play->ops) all_come.push_back(receives_all(r, op));
    // The highest number of returns of an op's members, by op and job.
    boost::unordered_flat_map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> last;
    for (const call_record& c : r.calls) {
      std::uint64_t& latest = last[{c.op, c.job}];
      latest = std::max(latest, c.returns);
    }
    for (const call_record& c : r.calls) {
      const bool cut = r.play->cut_short && c.job != r.play->jobs;
      if (!all_come[c.op] || !c.sends || c.code() != errc::none || cut) continue;
      if (c.returns != last[{c.op, c.job}]) continue;  // one of the two has restarted since
      const auto at = r.received.find({c.op, c.job, c.returns});
      if (at != r.received.end() && c.number < at->second.size() && at->second[c.number]) continue;
      violated(r.play->ops[c.op].name + ": message " + std::to_string(c.number) +
               " was sent without an error, and no rank received it");
    }
  }
};

// If the others have declared a rank dead, all its calls fail with `fenced` until a new process takes its place.
struct fenced_ranks final : checker {
  using checker::checker;
  void look() const {
    for (const fenced_rank& f : book_.r.fenced) {
      for (const call_record& c : book_.r.calls) {
        if (c.job != f.job || c.rank != f.rank || c.began_ns <= f.at_ns || c.began_ns >= f.until_ns) continue;
        // A contextual call in which everything is decided does not need the other ranks.
        if (book_.r.play->ops[c.op].what == op_spec::kind::contextual && c.code() == errc::none) continue;
        if (c.code() != errc::fenced)
          violated(book_.r.play->ops[c.op].name + ": call " + std::to_string(c.number) + " of rank " +
                   std::to_string(c.rank) + ", which the others have declared dead, ended with " +
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
      if (p.owed != 0 && !has_left && !may_disagree(r, ranks))
        violated(p.title + ": " + std::to_string(p.owed) + " messages of rank " + std::to_string(p.rank) +
                 " were never acknowledged");
    }
    if (r.pending_left != 0) violated(std::to_string(r.pending_left) + " transfers never end");
    // A training pipeline keeps the buffers of its stages as long as it is declared. With these configs they are exposed to other ranks.
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

}  // namespace

void check_endings(const record_book& b, std::vector<violation>& found) {
  explained_errors(b, found, "errors").look();
  trusted_results(b, found, "results").look();
  quarantined(b, found, "quarantine").look();
  delivered(b, found, "delivery").look();
  fenced_ranks(b, found, "fencing").look();
  nothing_left(b, found, "leftovers").look();
}

}  // namespace parley::simulation
