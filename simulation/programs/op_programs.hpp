#pragma once
/// Ops that are made of other ops: the programs of a scenario call them again and again, and check the result of each call.
///
///     auto op = make_program(self, spec, times);      // declares it on this rank
///     co_await op->call({number, bytes, stream});     // on all members
///     if (!op->right()) …                             // the result on this rank does not match the data of the others
///
/// | kind | is |
/// |---|---|
/// | `batch` | each member sends tagged messages to both of its neighbours in a ring, all at once |
/// | `halo` | blocks of two fields in a ring or a grid exchange their rims; members are 0, 1, 2, … |
/// | `attention` | ring attention, compared with attention over the whole sequence |
/// | `training` | a training pipeline: its stages compute microbatches forward and backward |
/// | `hierarchy` | a collective in groups of two, and among their leaders; members are all ranks |
/// | `contextual` | a function that runs two kernels, whose configs are tuned inside it |
///
/// Configs are those of pairs (config_text.hpp), of groups for a hierarchy, and for a contextual op `timed:` and
/// `failing:NAME:NS:RANK:AFTER`.
#include <parley/rank.hpp>
#include <parley/simulation/scenarios/scenario.hpp>

#include <cstdint>
#include <functional>
#include <memory>

namespace parley::simulation {

struct program_call {
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  std::function<std::uint64_t(rank_id)> stream{};  ///< the stream of a rank's messages, see `fill`
};

class op_program {
 public:
  op_program() = default;
  op_program(const op_program&) = delete;
  op_program& operator=(const op_program&) = delete;
  virtual ~op_program() = default;
  virtual runtime::task<> call(program_call c) = 0;
  /// Call it after a successful call: true if the call's result is right.
  virtual bool right() const = 0;
  /// Called after a member has restarted.
  virtual bool rejoin() = 0;
  /// Called after the last call: releases the memory that the op keeps between calls.
  virtual void rest() {}
  bool in_call = false;  ///< a call is in flight
};

/// True if a rank makes its next call after one that failed with `why`: the members of the op must still meet.
bool calls_again(op_spec::kind k, runtime::errc why) noexcept;
std::shared_ptr<op_program> make_program(ops::rank& self, const op_spec& op, kernel_times& times);

}  // namespace parley::simulation
