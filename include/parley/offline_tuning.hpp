#pragma once
/// Tunes what an earlier run of a program has listed, without the program: record, tune, use.
///
///     PARLEY_TUNABLEOP_ENABLED=1 PARLEY_TUNABLEOP_TUNING=0 PARLEY_TUNABLEOP_RECORD_UNTUNED=1 ./program     # writes tunableop_untuned0.csv
///     parley tune --untuned tunableop_untuned0.csv --results results.csv
///     PARLEY_TUNABLEOP_ENABLED=1 PARLEY_RESULTS=results.csv ./program                                       # tries nothing
///
/// In a program: `tune_in_file(self.kernels(), "tunableop_untuned0.csv")`, before the program makes a `gemm` of its own: both need its
/// names. It knows the multiplications of parley/gemm.hpp, or with a GPU those of parley/cuda_gemm.hpp, in files of parley or PyTorch.
/// Operands are random numbers in [-1, 1), alpha is 1 and beta 0. A line with a kernel of the program's own is left out: only the program
/// can call it.
#include <parley/tunable_context.hpp>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::transports {
class cublas_library;
class cuda_driver;
}  // namespace parley::transports

namespace parley::ops {

struct offline_report {
  std::size_t tuned = 0;              ///< have a result now
  std::size_t known = 0;              ///< had one before: a run that was interrupted goes on where it was
  std::vector<std::string> left_out;  ///< a sentence for each line that could not be tuned
};

/// Where products are tuned, if not on this machine's processors.
struct offline_gpu {
  transports::cuda_driver& driver;
  transports::cublas_library& cublas;
  int device = 0;
};

/// Called after each line with a sentence about it, which is empty if the line was left out.
using offline_progress = std::function<void(std::size_t done, std::size_t all, const std::string& what)>;

struct offline_options {
  offline_progress on_progress{};
  std::optional<offline_gpu> gpu{};  ///< nothing: products are tuned on the processors
  /// Several processes with a GPU each can share the lines: this one tunes every `of`-th line, from number `share` on.
  std::size_t share = 0;
  std::size_t of = 1;
};

/// Tunes each line `op,key` of `text`, which comes from a file `name`. Tunable ops and tuning are on meanwhile. Throws `bad_argument` if
/// the environment switches one of them off.
offline_report tune_lines(tunable_context& kernels, std::string_view text, const std::string& name,
                          const offline_options& o = {});
/// As `tune_lines`. `unavailable` or `io`: the file cannot be read, or the context has no disk.
runtime::result<offline_report> tune_in_file(tunable_context& kernels, const std::string& name,
                                             const offline_options& o = {});

}  // namespace parley::ops
