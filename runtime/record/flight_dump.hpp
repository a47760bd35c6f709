#pragma once
/// Writes a flight recorder as text: one JSON document with a line per record, the oldest first, for people, `jq` and scripts.
///
///     flight_names names{.op = [&](std::uint64_t id) { return title_of(id); }, .config = …};
///     disk.replace("flight/parley-flight-2.json", flight_text(recorder, names, {.rank = 2, .why = "signal SIGUSR1"}));
///
/// Digests and ids without a known name are written as 16 hexadecimal digits. Making the text allocates and takes
/// milliseconds; recording does neither.
#include <parley/identifiers.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/record/waiting_call.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::runtime {

/// Both return an empty text for an unknown number.
struct flight_names {
  std::function<std::string(std::uint64_t op)> op;
  std::function<std::string(std::uint64_t digest)> config;
};

struct flight_header {
  rank_id rank = 0;
  time_ns now_ns = 0;  ///< by the clock of the records
  std::string_view why;
};

/// The text is one JSON object: rank, why, now_ns, records_lost, waiting, untaken, decisions, records. `decisions` are JSON objects.
std::string flight_text(const flight_recorder& recorder, const flight_names& names, const flight_header& about,
                        const std::vector<std::string>& decisions = {}, const waiting_list& now = {});

}  // namespace parley::runtime
