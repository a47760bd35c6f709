#pragma once
/// The job that `parley tune` runs, as a JSON file describes it (examples/specs/README.md):
///
///     const spec job = read_spec("llama2-7b-pipeline.json", {.ranks = 4});
///     for (const op_spec& op : job.ops) …
///
/// A spec holds no code: configs are named, with parameters; roles are lists of ranks or expressions. Anything wrong
/// throws `text_error` with file, line and column, and with what to write instead.
#include <parley/cli/json_text.hpp>
#include <parley/cli/spec/op_spec.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace parley::cli {

struct spec {
  std::string name;
  rank_id ranks = 0;
  std::vector<op_spec> ops;
};

spec read_spec(const std::string& path, const spec_overrides& overrides);
spec parse_spec(std::string_view text, const std::string& file_name, const spec_overrides& overrides);

}  // namespace parley::cli
