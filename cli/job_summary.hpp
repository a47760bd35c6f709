#pragma once
/// Turns the reports of a job's ranks into the one document that `parley tune --json` prints and that the table shows.
///
///     const joined_flights seen = join_flights(job_spec, records_of_each_rank);
///     seen.mismatches;                        // 0, or the program is wrong
///     json::object document = summarize(job_spec, reports);
///
/// A mismatch is an invocation or rehearsal that ranks ran with different configs, or that a rank ran twice. A record without
/// its counterpart, because a rank failed or died before it reported, is counted separately, as unpaired.
#include <parley/cli/spec/spec.hpp>
#include <parley/runtime/record/flight_recorder.hpp>

#include <boost/json/object.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::cli {

using flight_records = std::vector<runtime::flight_record>;

struct joined_flights {
  std::uint64_t invocations = 0;  ///< begun by their senders, rehearsals not counted
  std::uint64_t rehearsals = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t unpaired = 0;
  std::vector<std::string> examples;  ///< the first mismatches, in words
};

joined_flights join_flights(const spec& job, std::span<const flight_records> of_ranks);

/// Consecutive invocations of one kind: `c0`, `trials`, or a config that was decided on.
struct stream_run {
  std::string what;
  std::uint64_t count = 0;
};

/// The invocations of one key on an edge or group, in their order, from the records of its sender or leader; consecutive invocations of one
/// kind are one run. `id`: the declaration's id.
std::vector<stream_run> stream_of(const op_spec& op, std::uint64_t id, const std::string& key,
                                  const flight_records& of_sender, std::optional<std::uint64_t> until_agreement);
/// `c0 x12, trials x31, chunked(chunk_bytes=1048576 in_flight=4) x157`; long ones are shortened in their middle.
std::string to_string(const std::vector<stream_run>& runs);

/// The last report of each rank; nothing for a rank that sent none.
using rank_reports = std::vector<std::optional<boost::json::object>>;

flight_records records_in(const boost::json::object& report);

/// Also computes all outputs again in this process to compare them, which takes a moment.
boost::json::object summarize(const spec& job, const rank_reports& reports);

/// One line of JSON per flight record of all ranks, in the order in which they began.
std::string trace_lines(const spec& job, const rank_reports& reports);

}  // namespace parley::cli
