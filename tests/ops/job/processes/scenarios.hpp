#pragma once
/// Runs real ranks in processes of their own, over UCX. Each rank is this same program: the launcher starts it again with the name of
/// a scenario, and the test reads what the ranks print.
///
///     void too_small(job& here) { ... }                          // what each rank does
///     const scenario as_too_small{"too_small", too_small};       // by that name, among all scenarios of this program
///     TEST_CASE("...") {
///       const job_run run("too_small", 2);                       // two ranks that do it
///       CHECK_MESSAGE(run.fine(), run.all);
///     }
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/processes.hpp>

#include <parley/config.hpp>
#include <parley/rank.hpp>
#include <parley/run.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::processes {

using namespace parley::ops;
using namespace parley::runtime;

using folder = scratch_folder;

/// A program for ranks, which its constructor registers by name. A scenario at namespace scope is registered before the first test.
struct scenario {
  /// Each rank of the job runs `program`.
  scenario(const char* name, void (*program)(job&));
  /// Each process runs `process`, and exits with its result as status. For a process that does something before the job, or has
  /// options of its own. `process` is given the options that all processes have.
  scenario(const char* name, int (*process)(job_options&));
};

/// A job whose ranks are this program in the scenario `name`.
struct job_run : tests::job_run {
  job_run(const std::string& name, rank_id ranks, std::vector<std::pair<std::string, std::string>> environment = {})
      : tests::job_run("this program as one rank of a job", name, ranks, std::move(environment)) {}
};

// ---- for what ranks do

/// Ends this rank with an error unless `holds`. The error quotes `what`.
void expect(bool holds, const std::string& what);
/// Runs `what`. If a `failure` ends it, prints the error for the test as that of the "last call", and throws it on.
void run_to_its_error(job& here, task<> what);
task<> rest(executor& ex, time_ns span);

/// Rank 0 sends messages of these sizes to rank 1, which has room for `spare` more bytes each time.
task<> move_all(rank& self, transfer t, std::vector<std::size_t> sizes, std::size_t spare);
/// Messages of 200'000 bytes from rank 0 to rank 1, until a search is decided.
task<> move_until_decided(rank& self, transfer t);
/// Does that with an op of these configs, and prints the searches and the flights.
void tune_with(job& here, std::vector<config_ptr> at_sender, std::vector<config_ptr> at_receiver);
/// Three messages from rank 0 to rank 1.
task<> send_three(transfer t);
/// The options of an op that sends from rank 1 to rank 0, and rank 0's receive of one message.
transfer_options towards_rank_0();
task<> wait_for_a_message(transfer t);

/// Prints a line for each search, and one for the candidates of each op.
void say_searches(const rank& self);

// ---- for what the test sees

std::string text_of(const std::filesystem::path& path);

}  // namespace parley::tests::processes
