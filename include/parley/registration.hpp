#pragma once
/// Thin layers over the ops, with the names of earlier designs. They correct mistakes of these designs:
///
///     auto t = register_paired_op_autotuning(self, "send", "receive", {{"direct", send_it, receive_it}, …}, role);
///     auto f = register_asymmetric_autotuning(self, "stage", {{"stage0", forward}, {"stage1", backward}},
///                                             {{"stage0", "tiled", tiled_forward}}, role);
///     auto c = register_coordinated_autotuning(self, "step", …the same lists…);     // the roles choose together
///     auto g = register_heterogeneous_autotuning(self, op, {nccl, cuda_graph, h100_optimized}, capability_check);
///
/// - The two halves of a pair are matched by `config_id`, never by their places in a list. An id that one role lacks is left out and
///   reported; it never scores 0. Both ends derive their chunks from the agreed config and the byte count.
/// - Configs without ids, listed per role, are choices that each rank makes for itself, or that all make together (coordinated). The
///   operation that is registered for a role is the role's default, c0.
/// - If ranks have different configs, they run a mixture of one wire class, and that mixture is measured. The first mixture has the first
///   config of each rank's list. A later one has the config with which each rank was fastest.
///
/// Failure, all when registering: `role_conflict` if role functions make no pairs, or if a role has two operations; `no_common_config` if
/// no entry of a pair has both halves; else `bad_argument`.
#include <parley/collective.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/kernels/role_op.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>
#include <parley/tuning/constraint.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace parley::ops {

class rank;
using role_function = std::function<std::string(rank_id)>;

// ---- paired -----------------------------------------------------------------------------------------------------------

/// One config of a paired op, or one role's half of it. Entries with equal ids are merged, at any place in the list.
struct paired_entry {
  /// Text form of the id: `fast`, `cut(chunk_bytes=4096)`. Its functions find the parameters in `out.config()` and `in.config()`.
  std::string config_id;
  send_function send = nullptr;
  receive_function receive = nullptr;
};

struct registered_pair {
  transfer op;
  std::vector<std::string> left_out;  ///< `chunked: the receiver has no implementation of it`
};

/// `role_fn` returns `send_op` or `sender` for a rank that sends, `recv_op` or `receiver` for a rank that receives; any other role is
/// idle. The first entry that both roles have is c0.
registered_pair register_paired_op_autotuning(rank& self, const std::string& send_op, const std::string& recv_op,
                                              const std::vector<paired_entry>& paired_configs,
                                              const role_function& role_fn);

// ---- per role ---------------------------------------------------------------------------------------------------------

struct role_operation {
  std::string role;
  operation_function run;
  std::string fits{};  ///< see `role_config`
};
struct role_config {
  std::string role;
  std::string
      name;  ///< `tiled`, `tiled(rows=64)`: name in decisions and results; the operation itself is named `operation`
  operation_function run;
  tuning::demands needs{};  ///< its demands, which are compared with the op's `allowed`
  /// For coordinated roles: functions with different words never run together, such as the two sides of an exchange in other formats.
  std::string fits{};
};

/// A rank whose role has no operation must have the role `idle`. Nothing is agreed, so nothing is sent; see role_op.hpp.
role_op register_asymmetric_autotuning(rank& self, const std::string& name,
                                       const std::vector<role_operation>& operations,
                                       const std::vector<role_config>& configs, const role_function& role_fn,
                                       const tuning::constraints& allowed = {});

/// The most combinations of the roles' functions that are tried.
inline constexpr std::size_t most_combinations = 128;

/// Like `register_asymmetric_autotuning`, but the roles choose together. Each combination of one function per role is a config of one
/// symmetric op: `together(consume=tiled produce=operation)`. A call on all ranks that are not idle is one invocation. Its time on the
/// slowest rank counts, and ranks of one role run one function. If functions of different roles only work together, such as the two sides of
/// an exchange, give those that fit the same word in `fits`: only such combinations are tried. A function that never waits must let its rank
/// make progress now and then, because the ranks agree meanwhile (`symmetric`).
///
/// All ranks pass the same lists in the same order, but `run` may be empty for roles that the rank does not have. Candidates are tried on
/// the calls themselves. Also throws `bad_argument` if there are more than `most_combinations`.
symmetric register_coordinated_autotuning(rank& self, const std::string& name,
                                          const std::vector<role_operation>& operations,
                                          const std::vector<role_config>& configs, const role_function& role_fn,
                                          const tuning::constraints& allowed = {});

// ---- mixed machines ---------------------------------------------------------------------------------------------------

/// `capability_check` returns for each of `configs`, in their order, whether the rank can run it. The first config is c0 and must be true.
transfer register_heterogeneous_autotuning(rank& self, transfer_options op, std::vector<config_ptr> configs,
                                           capability_function capability_check);
collective register_heterogeneous_autotuning(rank& self, collective_options op, std::vector<group_config_ptr> configs,
                                             capability_function capability_check);
symmetric register_heterogeneous_autotuning(rank& self, symmetric_options op, std::vector<symmetric_config_ptr> configs,
                                            capability_function capability_check);

}  // namespace parley::ops
