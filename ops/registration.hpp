#pragma once
/// Thin layers over the ops, with the names of the designs that these come from and with what was wrong in them put right.
///
///     auto t = register_paired_op_autotuning(self, "send", "receive", {{"direct", send_it, receive_it}, …}, role);
///     auto f = register_asymmetric_autotuning(self, "stage", {{"stage0", forward}, {"stage1", backward}},
///                                             {{"stage0", "tiled", tiled_forward}}, role);
///     auto g = register_heterogeneous_autotuning(self, op, {nccl, cuda_graph, h100_optimized}, capability_check);
///
/// - A pair is made by `config_id`, never by the place in a list; an id that one role lacks is left out and said so, it never
///   scores 0. Both ends derive their chunks from the agreed config and the byte count.
/// - Configs without ids, listed per role, are choices that each rank makes for itself. The operation that is registered for a
///   role is its default, c0.
/// - Where ranks have different configs, they run a mixture of one wire class, and that mixture is what is measured.
///
/// Role functions that make no pairs are a `role_conflict`; what cannot work is a `bad_argument`, both when registering.
#include <parley/actors/assignment.hpp>
#include <parley/ops/capability.hpp>
#include <parley/ops/leader_worker.hpp>
#include <parley/ops/paired_transfer.hpp>
#include <parley/runtime/task.hpp>
#include <parley/tuning/config.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

class rank;
using role_function = std::function<std::string(rank_id)>;

// ---- paired -----------------------------------------------------------------------------------------------------------

/// One config of a paired op, or one role's half of it: entries with equal ids are put together, wherever they are listed.
struct paired_entry {
  std::string config_id;  ///< its text form: `fast`, `cut(chunk_bytes=4096)`
  send_function send = nullptr;
  receive_function receive = nullptr;
};

struct registered_pair {
  transfer op;
  std::vector<std::string> left_out;  ///< `chunked: the receiver has no implementation of it`
};

/// The roles are `send_op` for who sends, `recv_op` for who receives, also `sender` and `receiver`; all others are idle. The
/// first entry that both roles have is c0.
registered_pair register_paired_op_autotuning(rank& self, const std::string& send_op, const std::string& recv_op,
                                              const std::vector<paired_entry>& paired_configs,
                                              const role_function& role_fn);

// ---- per role ---------------------------------------------------------------------------------------------------------

using operation_function = std::function<runtime::task<>(std::span<std::byte>)>;

struct role_operation {
  std::string role;
  operation_function run;
};
struct role_config {
  std::string role;
  std::string name;
  operation_function run;
};

/// What `register_asymmetric_autotuning` gives back: the operation of this rank's role, which tunes itself for each size.
class role_op {
 public:
  /// Runs the default, a candidate, or the best. An exception comes out as it is; a candidate that throws never runs again
  /// for this size. What it waits in calls of other ops is not charged to it (runtime/work_meter.hpp).
  runtime::task<> run(std::span<std::byte> data);
  bool idle() const noexcept { return state_ == nullptr; }
  /// Null before the first run of that size.
  const actors::campaign* campaign(std::uint64_t bytes) const noexcept;
  const std::string& role() const noexcept;

 private:
  friend role_op register_asymmetric_autotuning(rank&, const std::string&, const std::vector<role_operation>&,
                                                const std::vector<role_config>&, const role_function&);
  struct state;
  std::shared_ptr<state> state_;
};

/// A rank whose role has no operation may only be `idle`. Nothing is agreed, so nothing is sent.
role_op register_asymmetric_autotuning(rank& self, const std::string& name,
                                       const std::vector<role_operation>& operations,
                                       const std::vector<role_config>& configs, const role_function& role_fn);

// ---- mixed machines ---------------------------------------------------------------------------------------------------

/// `capability_check` answers for each of `configs`, in their order; the first one is c0 and needs no answer of its own.
transfer register_heterogeneous_autotuning(rank& self, paired_transfer op, std::vector<config_ptr> configs,
                                           capability_function capability_check);
rank_group register_heterogeneous_autotuning(rank& self, leader_worker op, std::vector<group_config_ptr> configs,
                                             capability_function capability_check);

}  // namespace parley::ops
