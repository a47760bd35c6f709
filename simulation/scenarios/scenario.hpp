#pragma once
/// A scenario describes a simulated job and the faults that may hit it. It is read from a JSON file (docs/simulation.md). A seed chooses
/// the faults of one run among these, as a tape.
///
///     scenario s = read_scenario(text);            // throws `malformed`, naming the field
///     tape t = draw(s, seed);                      // a random subset of the kinds of faults, at random rates
///
/// A run has two phases: faults are on, then everything is healed and must converge. A scenario that holds a `tape` is a saved
/// failure: every seed gets that tape.
#include <parley/simulation/programs/kernels.hpp>
#include <parley/simulation/world/weather.hpp>
#include <parley/tuning/planners/drift.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::simulation {

/// If a search needs more calls than its op has, this many are added at once.
inline constexpr std::uint64_t more_at_once = 40;

/// Calls with a shorter timeout than this may time out because of any fault.
inline constexpr time_ns short_timeout_ns = 1'000'000'000;

struct op_spec {
  enum class kind : std::uint8_t {
    pair,
    pipeline,
    group,
    symmetric,
    batch,  // from here on: op_programs.hpp
    halo,
    attention,
    training,
    hierarchy,
    contextual,
    last = contextual
  };
  kind what = kind::pair;
  std::string name;
  std::vector<rank_id> members;  ///< of a pair: sender and receiver; of others: the leader first
  std::vector<std::uint64_t> sizes{4096};
  std::vector<std::string> configs{"direct"};
  std::uint64_t calls = 40;  ///< of each rank, while faults may happen
  std::uint64_t calm = 100;  ///< of each rank, after all faults have ended
  std::uint64_t in_flight = 1;
  /// Number of tags of a pair. Among the messages that are sent at once, those of the last tag are received first, one at a time.
  std::uint64_t streams = 1;
  std::uint64_t depth = 1;  ///< of a group
  std::string does = "all_reduce";
  /// The ranks of a halo along each dimension; every other dimension wraps. Empty: a ring.
  std::vector<rank_id> grid{};
  bool corners = false;        ///< of a halo: exchanges with all neighbours, not only across faces
  bool mesh = false;           ///< of a halo: a ring whose rims are lists of indices
  bool rehearse = true;        ///< of an op without headers: trials run on scratch buffers; false: in leased calls
  bool between_calls = false;  ///< rehearsals run between calls, once all members have ended the calls before
  bool compare = false;        ///< results of trials are compared with those of the default
  bool registered = false;     ///< buffers are registered with the op
  bool everybody = true;       ///< ranks that are no members also declare it
  std::uint64_t small_receives = 0;  ///< of a thousand receives: have half the room that the largest message needs
  /// How many of a thousand calls, while faults may happen, come after another action of the rank. `retunes`: it requests another search
  /// (`rank::retune`). `leaves`: it settles as if it were about to leave, and then stays (`rank::settle`).
  std::uint64_t retunes = 0;
  std::uint64_t leaves = 0;
  time_ns timeout_ns = 30'000'000'000;
  time_ns pause_ns = 1'000'000;  ///< longest pause between calls
};
/// True if an op of this kind is made of other ops (op_programs.hpp).
constexpr bool is_program(op_spec::kind k) noexcept { return k >= op_spec::kind::batch; }
/// True if an op made of other ops has sent a size only a few times, for example when its ranks compared their terms. Further calls do not
/// send that size again.
bool is_beside(const op_spec& op, std::uint64_t invocations) noexcept;

/// The most that a seed may choose: thousandths of messages, and numbers of mishaps.
struct fault_limits {
  std::uint64_t lose = 0;
  std::uint64_t double_control = 0;
  std::uint64_t delay_control = 0;
  std::uint64_t delay_data = 0;
  std::uint64_t double_data = 0;
  std::uint64_t disk_fails = 0;
  std::uint64_t disk_room = 0;       ///< bytes for all files of a rank on a disk that is nearly full, until faults end
  std::uint64_t disk_locks = 0;      ///< of a thousand results files: locked by another process until faults end
  std::uint64_t disk_tears = 0;      ///< of a thousand crashes: a file that was replaced is cut
  std::uint64_t noise = 0;           ///< of simulated kernels, see kernel_model
  std::uint64_t drift = 0;           ///< of simulated kernels, per second
  std::uint64_t stragglers = 0;      ///< of simulated kernels
  std::uint64_t early_timeouts = 0;  ///< of a thousand calls, until faults end
  std::uint64_t clogs = 0;
  std::uint64_t cuts = 0;
  std::uint64_t pauses = 0;
  std::uint64_t slow = 0;
  std::uint64_t crashes = 0;
  std::uint64_t restarts = 0;
  std::uint64_t suspicions = 0;
  time_ns longest_delay_ns = 200'000;
  time_ns longest_mishap_ns = 50'000'000;
  bool orders = true;
  bool inside = true;  ///< orders also apply to tasks of a rank; not if a group's members must start calls in one order
  bool skew = false;
  bool points = true;  ///< smaller windows and margins, and retries that come too early
};

struct scenario {
  std::string name;
  rank_id ranks = 2;
  std::vector<op_spec> ops;
  link_model link{};
  kernel_model kernel{};
  fault_limits faults{};
  time_ns faulty_ns = 200'000'000;        ///< how long faults may happen
  time_ns calm_after_ns = 3'000'000'000;  ///< from their end to the calm calls; lost messages are repeated in it
  time_ns detection_ns = 100'000'000;
  std::uint64_t window = 64;  ///< unmatched messages of a stream
  std::uint64_t window_bytes = 4'194'304;
  std::uint32_t control_window = 64;   ///< control messages from one rank to another that were not accepted yet
  double budget = 1e9;                 ///< the fraction of wall time that trials may cost
  tuning::drift_options watch{};       ///< the drift watch over decided configs
  std::uint64_t first_invocation = 0;  ///< the number of each stream's first call
  std::uint64_t jobs = 1;  ///< successive jobs of the same ranks; each job begins with the disks of the previous one
  bool cut_short = false;  ///< all jobs but the last end early, with messages still in flight
  bool results = false;    ///< jobs read and write results files
  std::vector<std::vector<std::string>> validators;  ///< by job and rank: a version that its results depend on
  std::vector<rank_id> other_version;  ///< ranks that send control frames of another protocol version than the others
  bool must_decide = true;             ///< all searches must have ended when the run is over
  std::optional<tape> saved;
};

scenario read_scenario(std::string_view json);
std::string write_scenario(const scenario& s);

tape draw(const scenario& s, std::uint64_t seed);
/// The kernel model of a run: that of the scenario, with the faults of the tape.
kernel_model kernels_of(const scenario& s, const tape& t) noexcept;

}  // namespace parley::simulation
