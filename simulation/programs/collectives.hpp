#pragma once
/// A simulated library of collectives without headers: the i-th calls of all members on one communicator meet, even if they run different
/// configs. The library compares the calls that meet, so that a checker sees whether all members ran the same config for the same
/// invocation (S2).
///
///     collectives lib(stage, latency_ns, [](std::string text) { … });        // called for each mismatch
///     op.communicator = lib.join(lib.make(2, "gradients"), rank);                 // each member
///     op.rehearse = lib.source(rank, 2, false, "gradients");
///     op.configs = {collective_from("timed:ring:20000", times)};
///
/// If a member dies, the calls of the others hang until they abort or their op fails, as in a real library.
#include <parley/simulation/programs/kernels.hpp>
#include <parley/simulation/world/stage.hpp>
#include <parley/symmetric_config.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace parley::simulation {

class collectives {
 public:
  collectives(stage& line, time_ns latency_ns, std::function<void(std::string)> mismatch);
  ~collectives();

  /// Makes a communicator of so many members and returns its number. Mismatches on it are reported with the name of `op`.
  std::uint64_t make(std::size_t members, const std::string& op);
  std::shared_ptr<ops::communicator> join(std::uint64_t number, rank_id rank);
  std::shared_ptr<ops::communicator_source> source(rank_id rank, std::size_t members, bool beside_calls,
                                                   const std::string& op);
  /// Number of rehearsals in which all members met, by the digest of their config.
  const std::map<std::uint64_t, std::uint32_t>& rehearsed() const noexcept { return rehearsed_; }

  struct place;

 private:
  stage& line_;
  time_ns latency_ns_;
  std::function<void(std::string)> mismatch_;
  std::map<std::uint64_t, std::uint32_t> rehearsed_;
  std::vector<std::shared_ptr<place>> places_;
};

/// Makes a config from its text; throws `bad_argument` that names the text. Runs are counted from 0.
///
/// | text | does |
/// |---|---|
/// | `timed:NAME:NS[:PICOSECONDS_PER_BYTE]`, `drifting:…` | sums the data of all members, byte by byte |
/// | `failing:NAME:NS:RANK:AFTER` | throws on that rank from its AFTER-th run on; in a call of the user, only after taking part |
/// | `hanging:NAME:NS:RANK[:AFTER]` | never begins on that rank |
/// | `corrupting:NAME:NS:RANK[:AFTER]` | alters the result of that rank |
ops::symmetric_config_ptr collective_from(std::string_view text, kernel_times& times, std::uint32_t abi = 1);

}  // namespace parley::simulation
