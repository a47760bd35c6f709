#pragma once
/// `parley results show|check|merge|diff FILE…`: reads results files, compares and merges them. explain.hpp has `explain` and `model`.
///
/// - `show`: prints them as tables or as one JSON document. Status 0, or 2 when one cannot be read.
/// - `check`: tells whether this machine and this version of the library would trust the files. Status 0: all of them. 1: a file is valid,
///   but not for this machine, version or world; prints the validators that differ. 2: a file, or a line of it, cannot be read; prints the
///   line as file:line.
/// - `merge -o OUT`: merges the entries of OUT, then of the files in their order. The first entry for a key wins; prints conflicts.
///   Status 2: the validators of the files differ; prints them, merges nothing, and OUT stays unchanged. Status 1: OUT could not be
///   written.
/// - `diff`: prints the validators and the entries that differ between two files, and times of one choice that differ by more than 10 %.
///   Status 0: all choices and validators are the same. 1: some differ. 2: a file cannot be read.
#include <parley/cli/tune.hpp>
#include <parley/identifiers.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::cli {

int show_results(const std::vector<std::string>& files, output_format format);
/// Without `world`, accepts files for any number of ranks.
int check_results(const std::vector<std::string>& files, std::optional<runtime::rank_id> world, output_format format);
int diff_results(const std::string& before, const std::string& after, output_format format);
int merge_results(const std::vector<std::string>& files, const std::string& out, output_format format);

}  // namespace parley::cli
