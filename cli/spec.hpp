#pragma once
/// The job that `parley tune` runs, as a JSON file describes it (examples/specs/README.md):
///
///     const spec job = read_spec("llama2-7b-pipeline.json", {.ranks = 4});
///     for (const op_spec& op : job.ops) …
///
/// A spec holds no code: configs are named, with parameters; roles are lists of ranks or expressions. Anything wrong
/// throws `text_error` with file, line and column, and with what to write instead.
#include <parley/cli/json_text.hpp>
#include <parley/config.hpp>
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::cli {

using runtime::rank_id;

enum class op_kind : std::uint8_t { pipeline, transfer };

struct op_spec {
  op_kind kind = op_kind::pipeline;
  std::string name;
  std::string dtype;
  std::vector<ops::config_ptr> configs;
  std::vector<rank_id> stages;                     ///< of a pipeline
  std::vector<std::pair<rank_id, rank_id>> edges;  ///< sender and receiver of each
  std::vector<std::uint64_t> sizes;                ///< of each microbatch or message, in order
};

struct spec {
  std::string name;
  rank_id ranks = 0;
  std::vector<op_spec> ops;
};

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

spec read_spec(const std::string& path, const spec_overrides& overrides);
spec parse_spec(std::string_view text, const std::string& file_name, const spec_overrides& overrides);

}  // namespace parley::cli
