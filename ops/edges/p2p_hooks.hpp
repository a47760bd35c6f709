#pragma once
/// Hooks into the operations of a batch (p2p.hpp), for ops that are built on messages.
#include <parley/error.hpp>
#include <parley/runtime/dataflow/flow_step.hpp>

#include <cstdint>

namespace parley::ops {

struct p2p_operation;

/// Hooks of an op that is built on messages, for work such as unpacking. Operations that have hooks keep them alive.
class p2p_hooks : public runtime::flow_counted<p2p_hooks> {
 public:
  virtual ~p2p_hooks() = default;
  /// A receive has received `bytes` bytes. Its work ends after this call. If this call throws, the work fails with that exception.
  virtual void after_receive(const p2p_operation& o, std::uint64_t bytes) = 0;
  /// The operation was cancelled or timed out after it had begun.
  virtual void on_given_up(const p2p_operation& o, const runtime::error& why) noexcept = 0;
  /// The operation ended before it had its place among the messages of its peer and tag, so the next one may take that place. `why` is
  /// `cancelled` if the operation or its flow was cancelled. Otherwise the operation timed out, or a step that it waited for has failed;
  /// the flow continues without it.
  virtual void on_left_out(const p2p_operation& o, const runtime::error& why) noexcept = 0;
};

}  // namespace parley::ops
