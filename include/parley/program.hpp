#pragma once
/// Runs a user's program, unchanged, on virtual ranks: its real actors and ops on simulated links, clocks and disks.
///
///     int main(int argc, char** argv) { return parley::simulation::run(argc, argv, rank_main); }
///
///     ./program --sim 16 [--seed 7]              # 16 ranks in this process; without --sim it is parley::run
///     ./program --sim 16 --weather [--seeds 100] # with faults that each seed chooses: all kinds but deaths
///     ./program --sim 16 --control-weather       # only control messages are disturbed: no call may be slower for it
///     ./program --sim 16 --deaths [--seeds 100]  # in each run one rank dies, at any moment
///     ./program --sim 16 --links free            # messages take no time: only the program's own waits remain
///     ./program --sim 16 --latency 2000 --bandwidth 12.5 --ranks-per-host 8  # ns, and GB/s of each wire; `--sharing none`: each pair
///                                                # and each message has a wire of its own
///     ./program --sim 16 --seeds 100 --time-limit 60  # ends after 60 s of real time, with status 124, and says what each rank waits for
///     ./program --sim 16 --strict                # messages that no rank receives make the status 3, as does PARLEY_STRICT=1
///     ./program --sim 16 --mutant other-stamp    # with something broken on purpose (mutants.hpp): if the program gets there, a checker
///                                                # has to notice
///
/// Computations (`runtime::compute`, steps of a dataflow) run at once and take the time that their `modelled_ns` says. Everything else that
/// a rank does takes no time. If a coroutine computes, the program can say how long that takes: `self.where().spend(1_ms)`. A real rank
/// ignores this call. Each rank, or each host with `--ranks-per-host`, has one wire out and one wire in, and its messages wait for the
/// bandwidth of these wires (`usual_links`, network.hpp). `self.where().precise_now()` is the time, on virtual and on real ranks. Equal
/// seeds give equal runs.
///
/// Weather: messages are late and overtake each other, control messages are lost and arrive twice, connections are clogged or cut for a
/// while, ranks are stopped or slow, and coroutines of different ranks run in odd orders. A program must give the same results.
///
/// Deaths: no rank dies in the first run. In a second run one rank dies at some point in the middle. Every other rank must return, or end
/// with `peer_failed` that names the dead rank. That holds even for a rank that only noticed the end of other ranks, which ended because of
/// the death. All ranks must end within the time in which deaths are noticed.
///
/// Checkers that need no scenario watch each run: S1 to S8, L2, N1 to N4, window, agreement, oracle, errors, delivery, leftovers
/// (checkers.hpp, program_checkers.hpp). N1 compares a run with `--control-weather` to a run without it.
///
/// The status is the exit status of real ranks of the same program (parley/run.hpp). If several ranks fail, it is the status of the first
/// one:
///
/// - 0: nothing failed.
/// - 1: a rank failed, or a declaration was refused; the output says which and why. Also 1: an invariant was violated, ranks did not end as
///   described under Deaths, or a program waits for something that can never happen (a real program would wait for ever).
/// - 2: an option is wrong.
/// - 3: messages were not received, and `--strict` or the program makes this a failure. Otherwise it is a warning.
/// - 124: the `--time-limit` ended before the runs did.
/// - N: the program has called std::exit(N).
///
/// A rank that returns, or calls std::exit, is gone for other ranks that still call it, as on real ranks: their calls end with
/// `peer_failed`. A signal such as SIGSEGV or SIGINT, and `_exit`, end the process with all of its ranks. After a signal the seed is
/// printed first.
#include <parley/run.hpp>
#include <parley/simulation/world/run_record.hpp>
#include <parley/simulation/world/world.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace parley::simulation {

/// `own`: the program reads its own words from the command line (`own_words`). `none`: it does not, and `run` refuses every word that is
/// not an option of `run`, even without --sim.
enum class program_words : std::uint8_t { none, own };

int run(int argc, char** argv, ops::rank_function rank_main, program_words words = program_words::none,
        ops::undelivered_messages undelivered = ops::undelivered_messages::warn);
/// Returns the words of a command line that are not for `run`, in order: the program's own words.
std::vector<std::string> own_words(int argc, const char* const* argv);

/// The faults of one run in bad weather, chosen by the seed: all kinds except deaths, for `faulty_ns`.
tape rough_weather(rank_id ranks, std::uint64_t seed, time_ns faulty_ns = 2'000'000);

enum class befalls : std::uint8_t { nothing, weather, control_weather, death };
struct program_options {
  befalls what = befalls::nothing;
  std::string mutant{};  ///< see mutants.hpp; empty: none
  ops::undelivered_messages undelivered = ops::undelivered_messages::warn;
  std::function<void(const violation& v)> violated{};  ///< called for each violation, which is also printed
  /// Real time after which the run is ended with status 124, in whole seconds; 0: no limit. Inside `run`, the limit of `run` counts.
  std::chrono::nanoseconds time_limit{};
};

/// Like `run`, without a command line: for unit tests. Returns the status. Prints to standard error the virtual time of the run, the
/// checkers' findings, and the errors. The links are `o.link`; the links of a command line are `usual_links()`. Throws `bad_argument` for a
/// null function, and for impossible ranks or times.
int status_of_virtual(const world_options& o, ops::rank_function rank_main, const program_options& p = {});
/// True if `status_of_virtual` returns 0.
bool run_virtual(const world_options& o, ops::rank_function rank_main, const program_options& p = {});

}  // namespace parley::simulation
