#pragma once
/// The records that the ranks of a real job leave for the simulator's checkers. Each rank that leaves, even with an error, prints one line,
/// and the test merges the lines of all ranks into one record. A killed rank leaves none.
///
///     say(record_line(self, rehearsed));              // a rank
///
///     const left_records left(job.records());         // the test
///     left.check();                                   // S1 to S6 and agreement (simulation/checkers/checkers.hpp)
#include <parley/rank.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/world/run_record.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fire {

/// By digest: how often a rank has run each config on scratch buffers. Such runs leave no flight record.
using rehearsals = std::map<std::uint64_t, std::uint32_t>;

inline constexpr std::string_view record_word = "record ";
std::string record_line(const parley::ops::rank& self, const std::optional<rehearsals>& rehearsed);

class left_records {
 public:
  /// Throws if a line is malformed.
  explicit left_records(const std::vector<std::string>& lines);

  const parley::simulation::run_record& all() const noexcept { return record_; }
  std::vector<parley::simulation::violation> violations() const { return check_flights(record_); }
  /// Fails the test once for each violation.
  void check() const;
  /// Sum over all invocations of the number of ranks that recorded it, minus one.
  std::size_t told_again() const;
  /// Sum over all decisions of the number of ranks that know it, minus one.
  std::size_t decided_again() const;

 private:
  parley::simulation::run_record record_;
};

}  // namespace fire
