#pragma once
/// Real ranks in processes of their own, over UCX. This program is its own rank: the launcher starts it again with the name of
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

/// Known by its name once it is constructed: one of namespace scope is known before the first test.
struct scenario {
  /// Each rank of the job runs that program.
  scenario(const char* name, void (*program)(job&));
  /// Each process is this, of which the result is its status: for one that does something before the job, or has options of its own.
  /// It is given the options that all have.
  scenario(const char* name, int (*process)(job_options&));
};

/// A job whose ranks are this program in that scenario.
struct job_run : tests::job_run {
  job_run(const std::string& name, rank_id ranks, std::vector<std::pair<std::string, std::string>> environment = {})
      : tests::job_run("this program as one rank of a job", name, ranks, std::move(environment)) {}
};

// ---- for what ranks do

/// Ends this rank unless it holds.
void expect(bool holds, const std::string& what);
/// The test is told of the error that ends this rank.
void run_to_its_error(job& here, task<> what);
task<> rest(executor& ex, time_ns span);

/// Rank 0 sends messages of these sizes to rank 1, which has room for `spare` more bytes each time.
task<> move_all(rank& self, transfer t, std::vector<std::size_t> sizes, std::size_t spare);
/// Messages of 200'000 bytes from rank 0 to rank 1, until a campaign is decided.
task<> move_until_decided(rank& self, transfer t);
/// Does that with an op of these configs, and says what has come of it.
void tune_with(job& here, std::vector<config_ptr> at_sender, std::vector<config_ptr> at_receiver);
/// Three messages from rank 0 to rank 1.
task<> send_three(transfer t);
/// The op whose messages go from rank 1 to rank 0, and rank 0's receive of one.
transfer_options towards_rank_0();
task<> wait_for_a_message(transfer t);

/// A line for each campaign, and one for the candidates of each op.
void say_campaigns(const rank& self);

// ---- for what the test sees

std::string text_of(const std::filesystem::path& path);

}  // namespace parley::tests::processes
