#pragma once
/// One run of a scenario with the faults of a tape: real ranks that make real calls, what came of each of them, and what the
/// checkers say.
///
///     outcome o = run(scenario, draw(scenario, seed), seed);
///     o.hash;                          // equal for equal (scenario, tape, seed), whatever compiled it
///     for (const violation& v : o.violations) print(v.invariant, v.text);
#include <parley/actors/lease_coordinator.hpp>
#include <parley/actors/participant.hpp>
#include <parley/simulation/scenario.hpp>
#include <parley/simulation/window_book.hpp>
#include <parley/simulation/world.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <span>
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

/// What a leader knew of one campaign.
struct campaign_view {
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
  actors::campaign::stage where = actors::campaign::stage::waiting;
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
  std::vector<campaign_view> campaigns;
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

struct outcome {
  std::uint64_t seed = 0;
  std::uint64_t hash = 0;
  std::uint64_t steps = 0;
  std::uint64_t calls = 0;
  std::uint64_t failed_calls = 0;
  std::uint64_t decided = 0;  ///< campaigns
  time_ns simulated_ns = 0;
  coverage messages;
  std::vector<violation> violations;
};

/// What a run is made with besides its scenario: a mutant, which breaks something on purpose, and where to write it down.
struct run_options {
  std::string mutant;
  std::ostream* trace = nullptr;  ///< gets every message and call, line by line
};

outcome run(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o = {});

/// The bytes of the n-th message from `from` of an op.
void fill(std::span<std::byte> bytes, std::uint64_t stream, std::uint64_t number) noexcept;
/// Which message that is, or -1 where it is none of that stream, whole.
std::int64_t recognise(std::span<const std::byte> bytes, std::uint64_t stream, std::uint64_t most) noexcept;

}  // namespace parley::simulation
