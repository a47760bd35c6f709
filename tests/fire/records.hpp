#pragma once
/// What the ranks of a real job leave for the simulator's checkers: each that leaves, also with an error, prints a line; the test reads the
/// lines of all into one record. Who is killed leaves nothing.
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

/// How often a rank has run each config on scratch buffers, which leaves no record of its flight; by digest.
using rehearsals = std::map<std::uint64_t, std::uint32_t>;

inline constexpr std::string_view record_word = "record ";
std::string record_line(const parley::ops::rank& self, const std::optional<rehearsals>& rehearsed);

class left_records {
 public:
  /// Throws what is wrong with a line.
  explicit left_records(const std::vector<std::string>& lines);

  const parley::simulation::run_record& all() const noexcept { return record_; }
  std::vector<parley::simulation::violation> violations() const { return check_flights(record_); }
  /// Fails the test for each violation.
  void check() const;
  /// By how many more ranks than one invocations were recorded, all in all.
  std::size_t told_again() const;
  /// By how many more ranks than one decisions are known, all in all.
  std::size_t decided_again() const;

 private:
  parley::simulation::run_record record_;
};

}  // namespace fire
