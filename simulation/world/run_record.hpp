#pragma once
/// All that one run leaves for the checkers (checkers.hpp): the calls of its programs, and what its ranks knew when they ended.
///
///     run_record record;
///     record.play = &scenario; record.faults = &tape;
///     observer watching(record, world, window);       // observer.hpp; programs.hpp writes down their calls
///     for (const violation& v : check(record)) …
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/simulation/checkers/window_book.hpp>
#include <parley/simulation/scenarios/scenario.hpp>
#include <parley/simulation/world/weather.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace parley::simulation {

/// An invariant that did not hold. `invariant` is the name of the checker: `S2`, `oracle`, …
struct violation {
  std::string invariant;
  std::string text;
};

/// One call that a program has made.
struct call_record {
  std::size_t op = 0;  ///< in the scenario
  std::uint64_t job = 0;
  std::uint64_t returns = 0;  ///< of the op's members, as its rank knew: calls of one generation have one number
  rank_id rank = 0;
  bool sends = false;
  bool calm = false;         ///< begun after all was healed
  std::uint64_t number = 0;  ///< of this program, this job
  time_ns began_ns = 0;
  time_ns ended_ns = 0;
  time_ns timeout_ns = 0;
  std::optional<runtime::error> failed{};
  runtime::errc code() const noexcept { return failed ? failed->code() : runtime::errc::none; }
};

/// The name of the op in a title such as `acts 0->1`, which may also be a name alone.
inline std::string_view op_of(std::string_view title) { return title.substr(0, title.rfind(' ')); }
/// Whether that is a part of the op, as `gradients/inside` is of `gradients`, or the op itself.
inline bool is_of(std::string_view part, std::string_view op) noexcept {
  return part.starts_with(op) && (part.size() == op.size() || part[op.size()] == '/');
}

/// What one participant of an op knew when its job ended, or its rank crashed.
struct participant_view {
  std::size_t job = 0;
  rank_id rank = 0;
  bool ended = false;  ///< its generation, before the job did
  bool left = false;   ///< its program had returned, and its process had gone, before others had ended
  std::string op;      ///< the name that the user gave
  std::string title;   ///< of the edge or group
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  std::uint64_t c0 = 0;
  bool leads = false;
  bool edge = false;  ///< of one sender and one receiver
  std::vector<rank_id> members;
  std::vector<std::uint64_t> candidates;
  std::vector<std::uint64_t> ready;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> instead;
  std::vector<std::string> ids;
  std::set<std::uint64_t> available;                           ///< what this rank can run
  std::vector<std::pair<std::uint64_t, std::string>> classes;  ///< wire classes of the configs that this rank knows
  std::vector<actors::decision_record> decisions;
  std::size_t owed = 0;  ///< messages that nobody has acknowledged when the job ends
};

/// What a leader knew of one search.
struct search_view {
  std::size_t job = 0;
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  bool ended = false;
  std::string title;
  std::string key;
  tuning::size_bucket bucket{};
  bool searches_again = false;  ///< by itself, later
  std::uint32_t search = 1;
  time_ns search_began_ns = 0;
  actors::search::stage where = actors::search::stage::waiting;
  std::uint64_t digest = 0;
  std::uint64_t invocations = 0;
  std::string winner;
  std::string why;       ///< and the evidence, in words
  std::string progress;  ///< how far its search has come, in words
  actors::decision_source source = actors::decision_source::trials;
  double cost_ns = 0;
};

/// What one member of an op without headers knew of its gates.
struct lease_view {
  std::size_t job = 0;
  rank_id rank = 0;
  std::string op;
  std::string title;
  std::uint64_t gates_met = 0;
  bool ended = false;  ///< its process, before the job did
  std::string closed;  ///< a gate that is still closed, in words
  bool leads = false;
  actors::lease_coordinator::counters led{};  ///< at the leader
  std::uint64_t searches = 0;                 ///< at the leader: of all keys
  std::uint64_t excluded = 0;
};

struct flight_view {
  std::size_t job = 0;
  rank_id rank = 0;
  runtime::flight_record record;
};

/// A call that ended with an error, as its rank told its caller.
struct failed_call {
  rank_id rank = 0;
  runtime::error why;
  time_ns at_ns = 0;
};

/// A rank that went on after the others had taken it for dead.
struct fenced_rank {
  std::uint64_t job = 0;
  rank_id rank = 0;
  time_ns at_ns = 0;
  time_ns until_ns = runtime::never;  ///< a new process has taken its place
};

/// All that a run leaves for the checkers.
struct run_record {
  const scenario* play = nullptr;
  const tape* faults = nullptr;
  std::vector<call_record> calls;
  std::vector<participant_view> participants;
  std::vector<search_view> searches;
  std::vector<flight_view> flights;
  std::map<std::pair<std::size_t, rank_id>, std::uint64_t>
      flights_lost;  ///< for which recorders had no room, by job and rank
  std::vector<lease_view> leases;
  /// Of pairs: whether message n has come, by op, job and returns.
  std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t>, std::vector<bool>> received;
  std::vector<fenced_rank> fenced;
  // Of programs (program_checkers.hpp).
  std::vector<failed_call> failed_calls;
  std::map<rank_id, time_ns> left_ns;    ///< when a rank whose program had returned was gone
  std::vector<std::string> undelivered;  ///< what ranks said when they left (`ops::left_over`)
  double budget = 0;                     ///< of wall time, for trials
  std::set<std::string> other_ops;       ///< that ranks had in the same program where nothing befell them, by name
  /// What calls of an op with so many bytes took at most where nothing befell them; empty where that is not known.
  std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> usual_ns;
  std::map<std::uint64_t, std::uint32_t> rehearsed;  ///< of ops without headers: complete ones, by digest
  std::vector<violation> at_once;                    ///< seen while it ran
  coverage messages;
  const window_book* windows = nullptr;                                        ///< of what was sent
  std::map<std::pair<rank_id, rank_id>, std::uint64_t> between;                ///< messages from one to another
  std::map<std::tuple<std::uint64_t, rank_id, rank_id>, std::uint64_t> of_op;  ///< those of one op
  std::size_t programs_left = 0;
  std::size_t pending_left = 0;
  std::size_t exposed_left = 0;
  std::size_t frames_left = 0;          ///< of coroutines, once all ranks have ended
  std::vector<std::string> files_left;  ///< on the disks of the ranks, besides their results files
  std::size_t spoiled = 0;              ///< buffers of ops beside which somebody has written
  std::uint64_t puts_outside = 0;
  std::uint64_t lost_reads = 0;
  time_ns ended_ns = 0;
  time_ns faulty_until_ns = 0;
};

/// Whether the error of a call on `where` began with a rank that is gone, as it says, though nothing had befallen that rank by then. A fence
/// that fails may make any rank count as dead, and a rank that the others hold dead sees these go.
bool lost_to_nothing(const run_record& r, rank_id where, const runtime::error& why, time_ns by_ns);

}  // namespace parley::simulation
