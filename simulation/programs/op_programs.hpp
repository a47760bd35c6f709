#pragma once
/// Ops that are made of others, as the programs of a scenario call them again and again, with what each call has to bring.
///
///     auto op = make_program(self, spec, times);      // declares it on this rank
///     co_await op->call({number, bytes, stream});     // on all members
///     if (!op->right()) …                             // what it has brought to this rank is not what the others gave
///
/// | kind | is |
/// |---|---|
/// | `batch` | each member sends to both of its neighbours in a ring, tagged, all at once |
/// | `halo` | a ring of blocks of two fields that exchange their rims; members are 0, 1, 2, … |
/// | `attention` | ring attention, compared with attention over the whole sequence |
/// | `training` | stages forward and backward, one microbatch after the other |
/// | `hierarchy` | sums in groups of two, and of their leaders; members are all ranks |
/// | `contextual` | a function with two kernels, whose configs are tuned where it runs |
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
  std::function<std::uint64_t(rank_id)> stream{};  ///< which messages of a rank's these are, see `fill`
};

class op_program {
 public:
  op_program() = default;
  op_program(const op_program&) = delete;
  op_program& operator=(const op_program&) = delete;
  virtual ~op_program() = default;
  virtual runtime::task<> call(program_call c) = 0;
  /// Of the latest call, which ended well.
  virtual bool right() const = 0;
  /// After a member has come back.
  virtual bool rejoin() = 0;
  /// It is not called any more: what it holds between calls is given back.
  virtual void rest() {}
  bool under_way = false;  ///< a call is
};

/// Whether a rank whose call has failed so makes the next one, as the members of the op still meet.
bool calls_again(op_spec::kind k, runtime::errc why) noexcept;
std::shared_ptr<op_program> make_program(ops::rank& self, const op_spec& op, kernel_times& times);

}  // namespace parley::simulation
