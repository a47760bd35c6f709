#pragma once
/// `parley results show|check|merge FILE…`: reads results files, and merges them.
///
/// - `show`: prints them as tables or as one JSON document. Status 0, or 2 when one cannot be read.
/// - `check`: would this machine and this version of the library trust them? 0: all of them. 1: one is fine but not for this machine,
///   version or world; the validators that differ are named. 2: one, or a line of one, cannot be read; the line is named as file:line.
/// - `merge -o OUT`: entries of OUT, then of the files in their order. The first entry for a key wins, and conflicts are reported. If
///   the validators of the files differ, they are named, nothing is merged, and OUT stays as it is: status 2. Status 1: OUT could
///   not be written.
#include <parley/cli/tune.hpp>
#include <parley/identifiers.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::cli {

int show_results(const std::vector<std::string>& files, output_format format);
/// Without `world`, files for any number of ranks are fine.
int check_results(const std::vector<std::string>& files, std::optional<runtime::rank_id> world, output_format format);
int merge_results(const std::vector<std::string>& files, const std::string& out, output_format format);

}  // namespace parley::cli
