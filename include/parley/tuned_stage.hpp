#pragma once
/// A stage of a pipeline that can be computed in several ways. Each rank finds its fastest way on its own, on the program's microbatches,
/// while the edges of the pipeline tune their transfers.
///
///     tuned_stage mine(self, {.name = "layers", .ways = {{"plain", plain}, {"blocked", blocked}}});   // the first one is the default
///     co_await pipe.run(bytes, mine);                                                                  // a pipeline
///     decision d = mine.forward().decision(1_MiB);
///
///     tuned_stages mine(self, {.name = "layers", .ways = {{"plain", plain}, {"blocked", blocked}}});   // of a training_pipeline
///     co_await pipe.run(mine);                                        // `forward()` and `backward()` are decided each for itself
///
/// A way is a stage as the pipeline expects it. All ways must give the same results: the user must let them share weights and gradients.
/// Each microbatch is computed once, by one of the ways. Until a size is decided, the default runs between trials; trials are paid from the
/// op's budget (role_op.hpp). The time of a way includes its computations, also those in `compute`. It does not include its waits in calls
/// of other ops, or for a late neighbour. `on_done` is called on the way that has computed the microbatch. The ways must outlive the stage,
/// and the stage must outlive its rank's runs.
///
/// Failure: an exception of a way ends the run of the pipeline. If a way other than the default throws, it never runs again for this size
/// (role_op.hpp lists exceptions). The constructor throws `bad_argument` if there are no ways, if the rank has an op by that name, or if a
/// way only enqueues (`waits_on_device`), because its time cannot be measured. A way that computes on a device must end when the device has
/// finished. With NUMERICAL_CHECK only the default runs, because no microbatch is computed twice.
#include <parley/ops/kernels/role_op.hpp>
#include <parley/pipeline.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/tuning/constraint.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

class rank;

template <class Work>
struct stage_way {
  std::string id;  ///< `plain`, `blocked(rows=64)`
  Work& work;
  tuning::demands needs{};
};
template <class Work>
struct tuned_stage_options {
  std::string name;  ///< the rank's op is called NAME/forward or NAME/backward
  std::vector<stage_way<Work>> ways;
  tuning::constraints constraints{};
};

class tuned_stage final : public pipeline_work {
 public:
  tuned_stage(rank& self, const tuned_stage_options<pipeline_work>& o);
  tuned_stage(const tuned_stage&) = delete;
  tuned_stage& operator=(const tuned_stage&) = delete;

  runtime::task<> work(std::uint64_t microbatch, std::span<std::byte> activation) override;
  void on_done(std::uint64_t microbatch) override;
  const role_op& forward() const noexcept { return forward_; }

 private:
  pipeline_work* way_;            // the way that computed the latest microbatch
  std::uint64_t microbatch_ = 0;  // the microbatch that is being computed; a pipeline computes one at a time
  std::span<std::byte> activation_;
  role_op forward_;
};

class tuned_stages final : public training_work {
 public:
  tuned_stages(rank& self, const tuned_stage_options<training_work>& o);
  tuned_stages(const tuned_stages&) = delete;
  tuned_stages& operator=(const tuned_stages&) = delete;

  std::uint64_t activation_bytes(std::uint32_t stage) const override { return default_.activation_bytes(stage); }
  runtime::task<> work(pipeline_action a, pipeline_memory m) override;
  const role_op& forward() const noexcept { return forward_; }
  const role_op& backward() const noexcept { return backward_; }

 private:
  training_work& default_;
  pipeline_action action_{};
  pipeline_memory memory_{};
  role_op forward_;
  role_op backward_;
};

}  // namespace parley::ops
