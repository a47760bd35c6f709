#pragma once
/// The work of one rank of `parley tune`: its part of every op of the spec, all at once, until each op has run its microbatches.
///
///     workload work(job_spec, self, {.on_step = [&] { … }});
///     runtime::run(loop, work.run());             // throws what ended it
///     work.collected();                           // what came out on this rank, as hashes
///
/// This code does not deal with tuning: it only declares and calls ops. If a call fails, the whole rank fails.
#include <parley/cli/payload/outputs.hpp>
#include <parley/cli/payload/parts/part.hpp>
#include <parley/cli/payload/payload_engine.hpp>
#include <parley/cli/spec/spec.hpp>
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
  /// Called on the actor thread after each microbatch or message that has left or reached this rank.
  std::function<void()> on_step;
  std::shared_ptr<payload_engine> engine{};  ///< computes the payloads; null: the processor does
};

class workload {
 public:
  workload(const spec& job, ops::rank& self, workload_options o);
  ~workload();
  workload(const workload&) = delete;
  workload& operator=(const workload&) = delete;

  runtime::task<> run();
  /// Ends `run` with `cancelled`, as soon as the transports have released the buffers.
  void stop() noexcept;
  std::vector<outputs> collected() const;
  std::uint64_t steps_done() const noexcept { return done_; }
  std::uint64_t steps_in_all() const noexcept { return all_; }

 private:
  void step();

  workload_options options_;
  part_list parts_;
  runtime::scope* working_ = nullptr;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
};

}  // namespace parley::cli
