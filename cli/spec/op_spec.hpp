#pragma once
/// One op of a spec: the data that its ranks send each other, how often, and with which configs.
#include <parley/cli/spec/halo_shape.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/identifiers.hpp>
#include <parley/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::cli {

using runtime::rank_id;

enum class op_kind : std::uint8_t { pipeline, transfer, p2p, halo, collective, training_pipeline };

struct op_spec {
  op_kind kind = op_kind::pipeline;
  std::string name;
  std::string dtype;
  std::vector<ops::config_ptr> configs;              ///< of messages
  std::vector<ops::group_config_ptr> group_configs;  ///< of a collective, which has no others
  std::vector<rank_id> stages;  ///< of both pipelines: the rank of each stage, or of each part of the schedule
  std::vector<std::pair<rank_id, rank_id>> edges;  ///< sender and receiver of each; none of a collective
  std::vector<std::uint64_t> sizes;  ///< of each microbatch, message, call or exchange, in order; those of a halo are 0
  ops::collective_kind collects = ops::collective_kind::all_reduce;
  std::vector<std::vector<rank_id>> groups;  ///< of a collective; the first rank of each leads
  std::uint64_t depth = 1;                   ///< of a collective
  halo_shape grid;                           ///< of a halo
  ops::pipeline_schedule schedule;           ///< of a training pipeline
};

/// True if `parley tune` can run the op on device memory. It can run every op on host memory.
bool runs_on_devices(op_kind kind) noexcept;
/// The word for this kind in a spec.
std::string_view name(op_kind kind) noexcept;
/// True if the two ranks exchange messages in that op.
bool meet(const op_spec& op, rank_id one, rank_id other);

/// The command line's overrides.
struct spec_overrides {
  std::optional<rank_id> ranks{};
  std::optional<std::uint64_t> microbatches{};  ///< of each op; if there are more, the list starts over
};

inline constexpr rank_id most_ranks = 256;
inline constexpr std::uint64_t most_invocations = 1'000'000;
// Limits of one list. Larger lists took minutes until anything was printed.
inline constexpr std::size_t most_entries = 1'000;
inline constexpr std::size_t most_ops = 1'000;
inline constexpr std::uint64_t largest_payload = std::uint64_t{1} << 32U;

}  // namespace parley::cli
