#pragma once
/// An op whose implementations send no header of parley, such as the collectives of a library. All members call it together, and all
/// members run the same config for the same call. The config changes while the program runs; the members agree on it by leases
/// (actors/leases/lease.hpp).
///
///     symmetric all_reduce(self, {.name = "gradients",
///                                 .configs = {library_default(), ring(), tree()},
///                                 .communicator = mine,
///                                 .rehearse = make_communicators});
///     co_await all_reduce.run(gradients);
///
/// Candidates are rehearsed on scratch buffers, over a separate communicator, while the program continues with the default. If such
/// communicators may not run at the same time as the program's calls (`communicator_source::beside_calls`), candidates are rehearsed before
/// one call. Without a `communicator_source`, candidates are tried on the calls themselves. When a winner is known, all members switch to
/// it at one invocation. From then on the op sends no control messages.
///
/// With NUMERICAL_CHECK (`constraints::compare_trials`) on the leader, each candidate is first rehearsed on known numbers. If its result
/// differs from the default's on one member by more than that member's tolerance, the candidate is excluded on all members. For this check
/// the op must name its `dtype` and have a `communicator_source`. If either is missing on a member with NUMERICAL_CHECK, only the default
/// runs, and a warning says so.
///
/// All members make the same calls in the same order with the same number of bytes. Members that hold different amounts all pass one common
/// number. Every member's rank must make progress between calls, in `poll` or in any wait: there it replies to the leader's requests for
/// promises. A rank that does not reply may delay the others at a gate.
///
/// A call throws `failure` that names op, rank and invocation: `timeout`, `peer_failed`, `config_failed` (the next call runs the default),
/// `config_mismatch`, `declaration_mismatch`, `closed` if the generation has ended, or `peer_restarted` if a member has come back as a new
/// process. After `peer_restarted` every other member calls `rejoin`, and all members count from 0 again. A `timeout` at a gate says which
/// members have not answered. Such a call has not begun and has no number yet, so make it again: the next call of this member is matched
/// with the call that the other members are making.
#include <parley/actors/declaration.hpp>
#include <parley/agreement.hpp>
#include <parley/ops/core/op_ref.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/symmetric_config.hpp>
#include <parley/task.hpp>
#include <parley/tuning/constraint.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

using runtime::time_ns;

class rank;
class symmetric_end;

struct symmetric_options {
  std::string name;
  std::vector<rank_id> ranks{};  ///< empty: all ranks; the first one leads
  std::vector<symmetric_config_ptr> configs{};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where buffers and the scratch of rehearsals lie; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::shared_ptr<ops::communicator> communicator{};            ///< calls run over it; the caller makes it
  std::shared_ptr<communicator_source> rehearse{};              ///< null: candidates are tried on calls
  std::string dtype{};
  bool replayed = false;  ///< `replayed_calls` makes the calls; only configs that can be captured are candidates
};

/// Makes the calls of an op, instead of `symmetric_config::run`.
class symmetric_caller {
 public:
  /// Gets ready for a call with this config. The time of `prepare` is not charged to the config.
  virtual runtime::task<> prepare(symmetric_call call, const symmetric_config& config) = 0;
  virtual runtime::task<> call(symmetric_call call, const symmetric_config& config) = 0;

 protected:
  ~symmetric_caller() = default;
};

struct symmetric_call_options {
  std::uint64_t bytes = 0;  ///< the common number, if members hold different amounts; 0: the size of the buffer
  std::chrono::nanoseconds timeout{};  ///< 0: the op's
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class symmetric {
 public:
  /// A handle of no op: this rank counts as idle.
  symmetric() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  symmetric(rank& self, symmetric_options op);
  template <std::ranges::contiguous_range B>
  runtime::task<> run(B&& data, symmetric_call_options call = {}) {
    return run_bytes(std::as_writable_bytes(std::span(data)), call);
  }
  /// Call it after `closed` or `peer_restarted`: enters the new generation, with the communicator `over`. Returns false if no new
  /// generation has begun.
  bool rejoin(std::shared_ptr<communicator> over);
  /// The agreement of the members, and requests about it (agreement.hpp); `bytes` is the size of a call. These functions throw
  /// `bad_argument` on a rank that is no member.
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }
  /// True if this rank is no member.
  bool idle() const noexcept { return !place_; }
  symmetric_end& end() const { return end_or_raise(); }

 private:
  symmetric_end& end_or_raise() const;
  runtime::task<> run_bytes(std::span<std::byte> data, symmetric_call_options call) const;
  std::string name_;
  runtime::rank_id self_ = 0;
  op_ref<symmetric_end> place_;
};

}  // namespace parley::ops
