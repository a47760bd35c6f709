#pragma once
/// A user's program on virtual ranks, unchanged: its real actors and ops on links, clocks and disks that are simulated.
///
///     int main(int argc, char** argv) { return parley::simulation::run(argc, argv, rank_main); }
///
///     ./program --sim 16 [--seed 7]              # 16 ranks in this process; without --sim it is parley::run
///     ./program --sim 16 --weather [--seeds 100] # with the faults that each seed chooses: all but deaths
///     ./program --sim 16 --control-weather       # only control messages fare badly: no call may be slower for it
///     ./program --sim 16 --deaths [--seeds 100]  # in each run one rank dies, anywhere
///     ./program --sim 16 --links free            # messages take no time: what is left are the program's own waits
///     ./program --sim 16 --latency 2000 --bandwidth 12.5 --ranks-per-host 8  # ns, and GB/s of each wire; `--sharing none`: a wire for
///                                                # each pair and each message, as many as there are
///     ./program --sim 16 --strict                # messages that nobody takes make the status 3, as PARLEY_STRICT=1 does of real ranks
///     ./program --sim 16 --mutant other-stamp    # with something broken on purpose (mutants.hpp): a checker has to notice
///
/// Computations (`runtime::compute`, steps of a dataflow) run at once and take the time that their `modelled_ns` says; everything
/// else that a rank does takes none, unless the program says so where it computes in a coroutine: `self.where().spend(1_ms)`, which a
/// real rank does not heed. Each rank, or with `--ranks-per-host` each host, has one wire out and one wire in, for whose
/// bandwidth its messages wait (`usual_links`, network.hpp). Weather: messages are late and overtake each other, control messages are
/// lost and come twice, ways are clogged or cut for a while, ranks are stopped or slow, and coroutines of different ranks run in odd
/// orders; a program must give the same results. Deaths: after a run without one, another in which a rank ends in the midst of it; every
/// other has to return, or to end with `peer_failed` naming who is gone, also where that was noticed only as others ended because of it,
/// in the time in which deaths are noticed. Equal seeds give equal runs. Time is `self.where().precise_now()`, in both worlds.
///
/// Each run is watched by the checkers that need no scenario: S1 to S8, L2, N1 to N4, window, agreement, oracle, errors, delivery, leftovers
/// (checkers.hpp, program_checkers.hpp). N1 speaks of a run with `--control-weather`, compared with one without.
///
/// The status is the one that real ranks of the same program end with (parley/run.hpp), of several that of the first rank that failed: 0;
/// 1 after printing which rank failed and why, or which declaration was refused; 3 where messages were not taken and `--strict` or the
/// program says that this counts, else a warning; N where the program has called std::exit(N). It is also 1 where an invariant was
/// violated, or where a program waits for what can never come, as a real one would for ever; and 2 where an option is wrong. A rank that
/// returns, or calls std::exit, while others still call it is gone for them as on real ranks: their calls end with `peer_failed`. Nothing
/// can catch `_exit` and signals, which end the process with all of its ranks.
#include <parley/run.hpp>
#include <parley/simulation/world/run_record.hpp>
#include <parley/simulation/world/world.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace parley::simulation {

/// Whether a program reads words of its own (`own_words`). Where it does not, `run` refuses every word that is none of its options, also
/// without --sim.
enum class program_words : std::uint8_t { none, own };

int run(int argc, char** argv, ops::rank_function rank_main, program_words words = program_words::none,
        ops::undelivered_messages undelivered = ops::undelivered_messages::warn);
/// What of a command line is not for `run`, in order: the program's own words.
std::vector<std::string> own_words(int argc, const char* const* argv);

/// What befalls a program in bad weather, by its seed: anything but deaths, for `faulty_ns`.
tape rough_weather(rank_id ranks, std::uint64_t seed, time_ns faulty_ns = 2'000'000);

enum class befalls : std::uint8_t { nothing, weather, control_weather, death };
struct program_options {
  befalls what = befalls::nothing;
  std::string mutant{};  ///< see mutants.hpp; empty: none
  ops::undelivered_messages undelivered = ops::undelivered_messages::warn;
  std::function<void(const violation& v)> violated{};  ///< told of each, besides standard error
};

/// The same without a command line. Returns the status; prints the virtual time that it took, what the checkers say, and what did not go
/// as it should, to standard error.
int status_of_virtual(const world_options& o, ops::rank_function rank_main, const program_options& p = {});
/// Whether that is 0.
bool run_virtual(const world_options& o, ops::rank_function rank_main, const program_options& p = {});

}  // namespace parley::simulation
