#pragma once
/// `parley results explain KEY FILE…` and `parley results model FILE…`: print the evidence of decisions, which jobs keep beside their
/// results files (ops/job/evidence_file.hpp). A FILE is a results file or its evidence file.
///
/// - `explain`: why the ranks chose what they run, who took part, each candidate's times, rank by rank, and what was left out and why. KEY
///   is `op,parameters` as in the results file, or a part of it. Status 0. 1: there is no decision for such a key. 2: a file cannot be read.
/// - `model`: how good the expected times were: how many measured times lay in their range, and the errors. Status 0, or 2.
#include <parley/cli/tune.hpp>

#include <string>
#include <vector>

namespace parley::cli {

int explain_results(const std::string& key, const std::vector<std::string>& files, output_format format);
int score_model(const std::vector<std::string>& files, output_format format);

}  // namespace parley::cli
