#pragma once
/// What one rank of `parley tune` does: its part of every op of the spec, all at once, until each has run its microbatches.
///
///     workload work(job_spec, self, {.on_step = [&] { … }});
///     runtime::run(loop, work.run());             // throws what ended it
///     work.outputs();                             // what came out on this rank, as hashes
///
/// Nothing here knows of tuning: ops are declared and called. The calls that fail, fail the whole rank.
#include <parley/cli/payload/payload_engine.hpp>
#include <parley/cli/spec.hpp>
#include <parley/rank.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace parley::cli {

struct workload_options {
  /// After each microbatch or message that has left or reached this rank, on the actor thread.
  std::function<void()> on_step;
  std::shared_ptr<payload_engine> engine{};  ///< who computes; null: the processor
};

/// Hashes of what ended here, one per microbatch or message.
struct outputs {
  std::string op;
  rank_id sender = 0;      ///< of a transfer
  std::size_t stages = 0;  ///< whose products are in it
  std::vector<std::uint64_t> digests;
};

class workload {
 public:
  workload(const spec& job, ops::rank& self, workload_options o);
  ~workload();
  workload(const workload&) = delete;
  workload& operator=(const workload&) = delete;

  runtime::task<> run();
  /// Ends `run` with `cancelled`, as soon as the transports let go.
  void stop() noexcept;
  std::vector<outputs> collected() const;
  std::uint64_t steps_done() const noexcept { return done_; }
  std::uint64_t steps_in_all() const noexcept { return all_; }

 private:
  class part;
  class pipeline_part;
  class sender_part;
  class receiver_part;
  void step();

  workload_options options_;
  std::vector<std::unique_ptr<part>> parts_;
  runtime::scope* working_ = nullptr;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
};

}  // namespace parley::cli
