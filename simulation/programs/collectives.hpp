#pragma once
/// A simulated library whose calls carry no header: the i-th call of each member on one communicator meets the i-th calls of the
/// others, whatever they run. It keeps book of every meeting, so that a checker sees whether all members ran the same config
/// for the same invocation (S2).
///
///     collectives lib(stage, latency_ns, [](std::string text) { … });        // told of what did not match
///     op.communicator = lib.join(lib.make(2, "gradients"), rank);                 // each member
///     op.rehearse = lib.source(rank, 2, false, "gradients");
///     op.configs = {collective_from("timed:ring:20000", times)};
///
/// A member that has died holds up the others until they abort, or their op fails: nothing ends by itself, as with a real one.
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

  /// A communicator of so many members; its number. What does not match is told with the name of the op that it is made for.
  std::uint64_t make(std::size_t members, const std::string& op);
  std::shared_ptr<ops::communicator> join(std::uint64_t number, rank_id rank);
  std::shared_ptr<ops::communicator_source> source(rank_id rank, std::size_t members, bool beside_calls,
                                                   const std::string& op);
  /// Rehearsals in which all members met, by the digest of what they ran.
  const std::map<std::uint64_t, std::uint32_t>& rehearsed() const noexcept { return rehearsed_; }

  struct place;

 private:
  stage& line_;
  time_ns latency_ns_;
  std::function<void(std::string)> mismatch_;
  std::map<std::uint64_t, std::uint32_t> rehearsed_;
  std::vector<std::shared_ptr<place>> places_;
};

/// `timed:` and `drifting:NAME:NS[:PICOSECONDS_PER_BYTE]`, which add up, byte by byte, what the members bring;
/// `failing:NAME:NS:RANK:AFTER`, which throws on that rank from its AFTER-th run on, in a call of the user's once it has taken part;
/// `hanging:NAME:NS:RANK[:AFTER]`, which never begins there;
/// `corrupting:NAME:NS:RANK[:AFTER]`, which alters what that rank gets. Throws `bad_argument` that names the text.
ops::symmetric_config_ptr collective_from(std::string_view text, kernel_times& times, std::uint32_t abi = 1);

}  // namespace parley::simulation
