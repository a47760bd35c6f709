#pragma once
/// A config of an op without headers: one implementation that every member runs, such as one algorithm of a collective of a
/// library, or one captured graph.
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
/// It must do the same on every member for the same call, because nothing that it sends can say what it is. It ends when `data` may be
/// reused, throws `failure` to give up (on one member alone only where it has taken part, or has aborted the communicator: else the others
/// meet its next call), and should end soon when its scope is cancelled: the op's deadline has passed or a member has died. It runs over
/// `call.communicator` alone: for a rehearsal that is another one, and `data` is scratch. One object serves all invocations, several at
/// once: no state.
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

/// What calls run over, in the user's own terms.
class communicator {
 public:
  communicator() = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  virtual ~communicator() = default;
  /// Somebody failed on it: whatever still waits on it has to end. Nothing is started on it afterwards.
  virtual void abort() noexcept {}
  virtual bool aborted() const noexcept { return false; }
  /// `launch()` puts a call that was captured into `stream`: behind those that were made on this member before, in whichever streams.
  virtual runtime::task<> in_turn(runtime::device_stream stream, const std::function<void()>& launch);
};

/// How communicators for rehearsals are made: anew, never split from the user's.
class communicator_source {
 public:
  communicator_source() = default;
  communicator_source(const communicator_source&) = delete;
  communicator_source& operator=(const communicator_source&) = delete;
  virtual ~communicator_source() = default;
  /// On the leader: an id that no other communicator has. At most 64 KiB.
  virtual std::vector<std::byte> make_id() = 0;
  /// Whether candidates may be rehearsed over them while the user's own calls go on, which costs those nothing; not for libraries
  /// such as NCCL, whose collectives wait for each other when devices begin them in different orders. If not, they are rehearsed
  /// before a call that all members agree on, when those before it have ended on each. The same on all members.
  virtual bool beside_calls() const noexcept { return false; }
  /// On every member, with the same id. Throws why it cannot.
  virtual runtime::task<std::shared_ptr<communicator>> connect(std::vector<std::byte> id) = 0;
};

struct symmetric_call {
  enum class stream : std::uint8_t { user, rehearsal };
  rank_id self = 0;
  std::span<const rank_id> members;
  std::uint64_t bytes = 0;       ///< the common number of bytes: what the config was chosen for
  std::uint64_t invocation = 0;  ///< of this size: the same on all members
  ops::communicator* communicator = nullptr;
  stream on = stream::user;
  bool replayed = false;  ///< a rehearsal of calls that are captured once and replayed: it shall be like them
};

class symmetric_config : public op_config {
 public:
  virtual runtime::task<> run(symmetric_call call, std::span<std::byte> data) const = 0;
  /// Whether its calls can run over it; an error says why not. Asked before anything is tried.
  virtual runtime::result<> works_over(const communicator* /*over*/) const { return {}; }
  /// Gets ready on this rank alone, once, before anything is tried: allocates, compiles. Throws why it cannot.
  virtual runtime::task<> warm() const { co_return; }
  /// Whether a device can replay it: `capture` puts it into a stream that is being captured, and each replay is then a call.
  virtual bool can_be_captured() const noexcept { return false; }
  /// What the address of a payload has to be a multiple of, beside the op's dtype. Others are refused before their call takes a place.
  virtual std::size_t alignment() const noexcept { return 1; }
  virtual runtime::task<> capture(symmetric_call call, std::span<std::byte> data, runtime::device_stream stream) const;

 protected:
  /// Throws `bad_argument` when the identity cannot be canonical.
  explicit symmetric_config(tuning::config_identity identity) : op_config(std::move(identity)) {}
};

using symmetric_config_ptr = std::shared_ptr<const symmetric_config>;

}  // namespace parley::ops
