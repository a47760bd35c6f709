#pragma once
/// A flight recorder as text: one JSON document with a line per record, the oldest first, for people, `jq` and scripts.
///
///     flight_names names{.op = [&](std::uint64_t id) { return title_of(id); }, .config = …};
///     disk.replace("flight/parley-flight-2.json", flight_text(recorder, names, {.rank = 2, .why = "signal SIGUSR1"}));
///
/// Digests and ids whose name nobody knows are written as 16 hexadecimal digits. Making the text allocates and takes
/// milliseconds; recording does neither.
#include <parley/runtime/flight_recorder.hpp>
#include <parley/runtime/identifiers.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace parley::runtime {

/// An empty text: unknown.
struct flight_names {
  std::function<std::string(std::uint64_t op)> op;
  std::function<std::string(std::uint64_t digest)> config;
};

struct flight_header {
  rank_id rank = 0;
  time_ns now_ns = 0;  ///< by the clock of the records
  std::string_view why;
};

std::string flight_text(const flight_recorder& recorder, const flight_names& names, const flight_header& about);

}  // namespace parley::runtime
