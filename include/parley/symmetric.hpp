#pragma once
/// An op whose implementations carry no header of ours: all members call it together, each runs the same config for the same
/// call, and which one that is changes while the program runs, agreed on by leases (actors/leases/lease.hpp).
///
///     symmetric all_reduce(self, {.name = "gradients",
///                                 .configs = {library_default(), ring(), tree()},
///                                 .communicator = mine,
///                                 .rehearse = make_communicators});
///     co_await all_reduce.run(gradients);
///
/// Candidates are rehearsed: on scratch buffers, over a communicator of their own, while the program goes on with the
/// default; or before one call, where such communicators may not run beside each other (`communicator_source::beside_calls`).
/// Without a `communicator_source` they are tried on the calls themselves. When a winner is known, all members
/// switch to it at one invocation, and from then on the op costs no message.
///
/// With NUMERICAL_CHECK (`constraints::compare_trials`) each candidate is rehearsed on known numbers first, and one whose result is
/// not the default's within the leader's tolerance is out, on all members. For that the op has to name its `dtype` and to have a
/// `communicator_source`; on a member without them only the default runs, and its warning says so.
///
/// All members make the same calls in the same order with the same number of bytes; where they hold different amounts, they
/// all name one common number. Their ranks have to make progress between calls, as `poll` or any wait does: a promise is
/// answered there, and a rank that cannot answer may hold up others at a gate.
///
/// A call throws `failure` that names op, rank and invocation: `timeout`, `peer_failed`, `config_failed` (the default is next),
/// `config_mismatch`, `declaration_mismatch`, `closed` when the generation has ended, `peer_restarted` when a member has come back as a
/// new process: then every other member calls `rejoin`, and all count from 0 again. A `timeout` at a gate says who has not answered; the call has not begun then and has no number yet, so make
/// it again: the others are in it, and whatever this member calls next is what meets them.
#include <parley/actors/declaration.hpp>
#include <parley/agreement.hpp>
#include <parley/ops/core/op_place.hpp>
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
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where buffers lie, and the scratch of rehearsals; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::shared_ptr<ops::communicator> communicator{};  ///< what calls run over; made by the caller, who had to anyway
  std::shared_ptr<communicator_source> rehearse{};    ///< null: trials on real invocations
  std::string dtype{};
  bool replayed = false;  ///< calls are made by `replayed_calls`: what cannot be captured is no candidate
};

/// Makes calls of an op otherwise than by `symmetric_config::run`.
class symmetric_caller {
 public:
  /// Gets ready to call it with this config, which is not charged with that.
  virtual runtime::task<> prepare(symmetric_call call, const symmetric_config& config) = 0;
  virtual runtime::task<> call(symmetric_call call, const symmetric_config& config) = 0;

 protected:
  ~symmetric_caller() = default;
};

struct symmetric_call_options {
  std::uint64_t bytes = 0;  ///< the common number, where members hold different amounts; 0: the size of the buffer
  std::chrono::nanoseconds timeout{};  ///< 0: the op's
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class symmetric {
 public:
  /// Of no op: this rank is idle in it.
  symmetric() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  symmetric(rank& self, symmetric_options op);
  template <std::ranges::contiguous_range B>
  runtime::task<> run(B&& data, symmetric_call_options call = {}) {
    return run_bytes(std::as_writable_bytes(std::span(data)), call);
  }
  /// After `closed` or `peer_restarted`: over `over`, in the generation that has begun meanwhile. False when none has.
  bool rejoin(std::shared_ptr<communicator> over);
  /// What the members have agreed on, and wishes about it (agreement.hpp), for calls of so many bytes. Throw `bad_argument` on a rank that
  /// is no member.
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }
  /// Whether this rank is no member.
  bool idle() const noexcept { return !place_; }
  symmetric_end& end() const { return end_or_raise(); }

 private:
  symmetric_end& end_or_raise() const;
  runtime::task<> run_bytes(std::span<std::byte> data, symmetric_call_options call) const;
  std::string name_;
  runtime::rank_id self_ = 0;
  op_place<symmetric_end> place_;
};

}  // namespace parley::ops
