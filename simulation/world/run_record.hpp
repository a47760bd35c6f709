#pragma once
/// The record of one run, which the checkers (checkers.hpp) read: the calls of its programs, and the state of its ranks when they ended.
///
///     run_record record;
///     record.play = &scenario; record.faults = &tape;
///     observer watching(record, world, window);       // observer.hpp; programs.hpp records the calls
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
  std::uint64_t op = 0;  ///< of an invariant that parley itself saw broken
};

/// One call that a program has made.
struct call_record {
  std::size_t op = 0;  ///< index in the scenario
  std::uint64_t job = 0;
  std::uint64_t returns = 0;  ///< restarts of the op's members that the rank knew of: equal within one generation
  rank_id rank = 0;
  bool sends = false;
  bool calm = false;         ///< begun in the calm phase, after all faults
  std::uint64_t number = 0;  ///< counted by this program in this job
  time_ns began_ns = 0;
  time_ns ended_ns = 0;
  time_ns timeout_ns = 0;
  std::optional<runtime::error> failed{};
  runtime::errc code() const noexcept { return failed ? failed->code() : runtime::errc::none; }
};

/// The op's name in a title such as `acts 0->1`, or in a title that is a name alone.
inline std::string_view op_of(std::string_view title) { return title.substr(0, title.rfind(' ')); }
/// True if `part` is the op itself or a part of it, as `gradients/inside` is of `gradients`.
inline bool is_of(std::string_view part, std::string_view op) noexcept {
  return part.starts_with(op) && (part.size() == op.size() || part[op.size()] == '/');
}

/// The state of one participant of an op when its job ended or its rank crashed.
struct participant_view {
  std::size_t job = 0;
  rank_id rank = 0;
  bool ended = false;  ///< its generation ended before the job did
  bool left = false;   ///< its program had returned, and its process had ended, before others did
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
  std::set<std::uint64_t> available;                           ///< configs that this rank can run
  std::vector<std::pair<std::uint64_t, std::string>> classes;  ///< wire classes of the configs that this rank knows
  std::vector<actors::decision_record> decisions;
  std::size_t owed = 0;  ///< messages still unacknowledged when the job ended
};

/// The leader's state of one search.
struct search_view {
  std::size_t job = 0;
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  bool ended = false;
  std::string title;
  std::string key;
  tuning::size_bucket bucket{};
  bool searches_again = false;  ///< by itself, after a while
  std::uint32_t search = 1;
  time_ns search_began_ns = 0;
  actors::search::stage where = actors::search::stage::waiting;
  std::uint64_t digest = 0;
  std::uint64_t invocations = 0;
  std::string winner;
  std::string why;       ///< the reason and the evidence, in words
  std::string progress;  ///< how far its search has come, in words
  actors::decision_source source = actors::decision_source::trials;
  double cost_ns = 0;
};

/// The gates of one member of an op without headers, as that member knew them.
struct lease_view {
  std::size_t job = 0;
  rank_id rank = 0;
  std::string op;
  std::string title;
  std::uint64_t gates_met = 0;
  bool ended = false;  ///< its process ended before the job did
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

/// A call that ended with an error, as its caller got it.
struct failed_call {
  rank_id rank = 0;
  runtime::error why;
  time_ns at_ns = 0;
};

/// A rank that continued after the others had declared it dead.
struct fenced_rank {
  std::uint64_t job = 0;
  rank_id rank = 0;
  time_ns at_ns = 0;
  time_ns until_ns = runtime::never;  ///< when a new process took its place
};

struct run_record {
  const scenario* play = nullptr;
  const tape* faults = nullptr;
  std::vector<call_record> calls;
  std::vector<participant_view> participants;
  std::vector<search_view> searches;
  std::vector<flight_view> flights;
  std::map<std::pair<std::size_t, rank_id>, std::uint64_t>
      flights_lost;  ///< flights for which the recorder had no room, by job and rank
  std::vector<lease_view> leases;
  /// For pairs: whether message n was received, by op, job and returns.
  std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t>, std::vector<bool>> received;
  std::vector<fenced_rank> fenced;
  // For programs only (program_checkers.hpp).
  std::vector<failed_call> failed_calls;
  std::map<rank_id, time_ns> left_ns;    ///< when the process of a rank ended after its program had returned
  std::vector<std::string> undelivered;  ///< reports of ranks that left (`ops::left_over`)
  double budget = 0;                     ///< the fraction of wall time that trials may cost
  std::set<std::string> other_ops;       ///< names of the ops that ranks declared in an undisturbed run of the program
  /// The longest time of an op's calls with so many bytes in an undisturbed run, by op and bytes; empty if unknown.
  std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> usual_ns;
  std::map<std::uint64_t, std::uint32_t> rehearsed;  ///< complete rehearsals of ops without headers, by digest
  std::vector<violation> at_once;                    ///< violations seen during the run
  coverage messages;
  const window_book* windows = nullptr;                                        ///< of the messages sent
  std::map<std::pair<rank_id, rank_id>, std::uint64_t> between;                ///< messages, by sender and receiver
  std::map<std::tuple<std::uint64_t, rank_id, rank_id>, std::uint64_t> of_op;  ///< messages, by op, sender and receiver
  std::size_t programs_left = 0;
  std::size_t pending_left = 0;
  std::size_t exposed_left = 0;
  std::size_t frames_left = 0;          ///< coroutine frames left once all ranks have ended
  std::vector<std::string> files_left;  ///< files on the ranks' disks other than their results files
  std::size_t spoiled = 0;              ///< blocks of ops with stray writes (guarded_memory.hpp)
  std::uint64_t puts_outside = 0;
  std::uint64_t lost_reads = 0;
  time_ns ended_ns = 0;
  time_ns faulty_until_ns = 0;
};

/// True if a call on `where` failed with an error that calls a rank gone, although no fault had hit that rank by `by_ns`. False if fences
/// may fail, because a failed fence makes any rank count as dead. Also false if `where` was lost, because it then loses the others.
bool lost_to_nothing(const run_record& r, rank_id where, const runtime::error& why, time_ns by_ns);

}  // namespace parley::simulation
