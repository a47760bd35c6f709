#pragma once
/// `parley tune --untuned FILE...`: tunes what programs have listed with RECORD_UNTUNED, and keeps the results (parley/offline_tuning.hpp).
///
/// Status 0: each line has a result; 1: a line was left out, no results were kept, or the run failed; 2: a file cannot be read.
#include <parley/cli/tune.hpp>

#include <string>
#include <vector>

namespace parley::cli {

struct untuned_options {
  std::vector<std::string> files;
  std::string results_path;  ///< empty: PARLEY_RESULTS, or else the file of the kernels (tunableop_results.csv)
  bool no_results = false;
  bool on_gpu = false;
  output_format format = output_format::table;
};

int tune_untuned(const untuned_options& o);

}  // namespace parley::cli
