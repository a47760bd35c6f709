#pragma once
/// A config of an op without headers: one implementation that every member runs, such as an algorithm of a library's collective, or a
/// captured graph.
///
///     class ring final : public symmetric_config {
///      public:
///       ring() : symmetric_config({.name = "ring", .wire_class = "ring"}) {}
///       task<> run(symmetric_call call, std::span<std::byte> data) const override {
///         auto& world = static_cast<my_communicator&>(*call.communicator);
///         co_await world.all_reduce_ring(data);
///       }
///     };
///
/// `run` must do the same on every member for the same call, because its messages do not say which config they belong to. `run` ends when
/// `data` may be reused. It throws `failure` to give up. If only one member gives up, its `run` must first have taken part in the call, or
/// have aborted the communicator; otherwise the call of the other members would be matched with its next call. `run` should end soon when
/// its scope is cancelled: the op's deadline has passed, or a member has died. It uses `call.communicator` alone; in a rehearsal that is
/// another communicator, and `data` is scratch. One object serves all invocations, several at once, so it must keep no state.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace parley::ops {

using runtime::rank_id;

/// The communicator that calls run over. The user defines it.
class communicator {
 public:
  communicator() = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  virtual ~communicator() = default;
  /// Called when a call over this communicator has failed: everything that still waits on the communicator must end. No call is started on
  /// the communicator after that.
  virtual void abort() noexcept {}
  virtual bool aborted() const noexcept { return false; }
  /// `launch()` puts a captured call into `stream`. The call runs after the calls that this member has made before, in any stream.
  virtual runtime::task<> in_turn(runtime::device_stream stream, const std::function<void()>& launch);
};

/// Makes communicators for rehearsals: new ones, never split from the user's.
class communicator_source {
 public:
  communicator_source() = default;
  communicator_source(const communicator_source&) = delete;
  communicator_source& operator=(const communicator_source&) = delete;
  virtual ~communicator_source() = default;
  /// Called on the leader: returns a new id, unique among communicators, of at most 64 KiB.
  virtual std::vector<std::byte> make_id() = 0;
  /// True if candidates may be rehearsed over these communicators at the same time as the user's own calls, at no cost to those calls.
  /// False for libraries such as NCCL: their collectives wait for each other if devices begin them in different orders. Then candidates are
  /// rehearsed before a call that all members agree on, when the calls before it have ended on each member. All members must return the
  /// same value.
  virtual bool beside_calls() const noexcept { return false; }
  /// Called on every member with the same id. Throws a `failure` with the reason if it cannot connect.
  virtual runtime::task<std::shared_ptr<communicator>> connect(std::vector<std::byte> id) = 0;
};

struct symmetric_call {
  enum class stream : std::uint8_t { user, rehearsal };
  rank_id self = 0;
  std::span<const rank_id> members;
  std::uint64_t bytes = 0;       ///< the common size of the call, for which the config was chosen
  std::uint64_t invocation = 0;  ///< counts calls of this size: the same on all members
  ops::communicator* communicator = nullptr;
  stream on = stream::user;
  bool replayed = false;  ///< this rehearsal is for calls that are captured and replayed: run in the same way
};

class symmetric_config : public op_config {
 public:
  virtual runtime::task<> run(symmetric_call call, std::span<std::byte> data) const = 0;
  /// Checks that its calls can run over `over`; the error says why not. Called by `default_first` (gpu_sum.hpp), not by the op.
  virtual runtime::result<> works_over(const communicator* /*over*/) const { return {}; }
  /// Gets ready on this rank alone, once, before anything is tried: allocates, compiles. Throws a `failure` with the reason if that is
  /// impossible.
  virtual runtime::task<> warm() const { co_return; }
  /// True if a device can replay this config: `capture` enqueues the call into a stream that is being captured, and each replay is then a
  /// call.
  virtual bool can_be_captured() const noexcept { return false; }
  /// The address of a payload must be a multiple of this and of the size of the op's dtype. Other payloads are refused before their call
  /// gets a number.
  virtual std::size_t alignment() const noexcept { return 1; }
  virtual runtime::task<> capture(symmetric_call call, std::span<std::byte> data, runtime::device_stream stream) const;

 protected:
  /// Throws `bad_argument` if the identity cannot be canonical.
  explicit symmetric_config(tuning::config_identity identity) : op_config(std::move(identity)) {}
};

using symmetric_config_ptr = std::shared_ptr<const symmetric_config>;

}  // namespace parley::ops
