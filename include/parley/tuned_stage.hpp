#pragma once
/// A stage of a pipeline that can be computed in several ways. Which one is fastest its rank finds out by itself, on the very
/// microbatches, beside what the edges of the pipeline find out about their transfers.
///
///     tuned_stage mine(self, {.name = "layers", .ways = {{"plain", plain}, {"blocked", blocked}}});   // the first one is the default
///     co_await pipe.run(bytes, mine);                                                                  // a pipeline
///     decision d = mine.forward().decision(1_MiB);
///
///     tuned_stages mine(self, {.name = "layers", .ways = {{"plain", plain}, {"blocked", blocked}}});   // of a training_pipeline
///     co_await pipe.run(mine);                                        // `forward()` and `backward()` are decided each for itself
///
/// A way is a stage as the pipeline would take it, and all of them give the same: weights and gradients are shared by who writes them.
/// Each microbatch is computed once, by one of the ways; until a size is decided the default runs between trials, which are paid
/// from the budget of the op (role_op.hpp). A way is charged for what it computes, here or in `compute`, and not for what it waits
/// in calls of other ops, nor for a neighbour that is late. The way that has computed a microbatch is told `on_done`. The ways outlive the
/// stage, and the stage its rank's runs.
///
/// Failure: what a way throws ends the run of the pipeline; it never runs again for this size. Throws `bad_argument` where there are
/// no ways, the rank has an op by that name, or a way only enqueues (`waits_on_device`), which says nothing of the time that it takes: one
/// that computes on a device ends when that has. With NUMERICAL_CHECK only the default runs, as nothing is computed twice.
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
  std::string name;  ///< of its op on this rank, which is called NAME/forward
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
  pipeline_work* way_;            // that has computed it last
  std::uint64_t microbatch_ = 0;  // that is being computed: a pipeline runs one after the other
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
