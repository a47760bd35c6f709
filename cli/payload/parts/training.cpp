// Pipelines forward and backward. Each stage multiplies its input forward and its gradient backward, so that the gradient that the first
// stage gets back is known.
#include <parley/cli/payload/parts/part.hpp>
#include <parley/cli/payload/payload.hpp>
#include <parley/training_pipeline.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace parley::cli {

using runtime::task;

namespace {

class training_part final : public part, private ops::pipeline_stages {
 public:
  training_part(const part_terms& t, ops::training_pipeline pipe)
      : part(t.op, t.engine, t.on_step), pipe_(std::move(pipe)),
        is_first_(op_.stages[op_.schedule.rank_of(0)] == t.self.id()) {
    if (is_first_) output_from(t.self.id());
  }
  task<> run() override {
    ops::training_pipeline pipe = std::move(pipe_);  // its buffers end before the rank
    const std::uint64_t each = op_.schedule.microbatches;
    for (first_ = 0; first_ < op_.sizes.size(); first_ += each) {
      of_pass_.assign(each, 0);
      co_await pipe.run(*this);
      // Only the digests of complete passes, because a pass that failed has gaps.
      if (is_first_) {
        auto& all = came_out_.front().digests;
        all.insert(all.end(), of_pass_.begin(), of_pass_.end());
      }
      for (std::uint64_t i = 0; i < each; ++i) step_();
    }
  }

 private:
  std::uint64_t activation_bytes(std::uint32_t) const override { return op_.sizes.front(); }
  void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
               std::span<std::byte> out) override {
    if (stage == 0) {
      make_payload(first_ + microbatch, out);
    } else {
      std::copy(in.begin(), in.end(), out.begin());
    }
    multiply(out, factor_of_stage(stage));
  }
  // The last stage's gradient is its output.
  void backward(std::uint32_t stage, std::uint32_t microbatch, const ops::pipeline_memory& m) override {
    const bool is_last = stage + 1 == op_.schedule.stages;
    const std::span<const std::byte> gradient = is_last ? std::span<const std::byte>(m.out) : m.gradient_out;
    if (stage == 0) {
      of_pass_[microbatch] = digest_of(gradient);
      return;
    }
    std::copy(gradient.begin(), gradient.end(), m.gradient_in.begin());
    multiply(m.gradient_in, factor_of_stage(stage));
  }

  ops::training_pipeline pipe_;
  bool is_first_;
  std::uint64_t first_ = 0;             // microbatch of the pass
  std::vector<std::uint64_t> of_pass_;  // the digest of each microbatch's gradient
};

}  // namespace

part_list training_parts(const part_terms& t) {
  ops::training_pipeline_options declared;
  declared.name = t.op.name;
  declared.ranks = t.op.stages;
  declared.schedule = t.op.schedule;
  declared.configs = t.op.configs;
  declared.dtype = t.op.dtype;
  const ops::training_pipeline pipe(t.self, declared);
  part_list parts;
  if (std::find(t.op.stages.begin(), t.op.stages.end(), t.self.id()) != t.op.stages.end())
    parts.push_back(std::make_unique<training_part>(t, pipe));
  return parts;
}

}  // namespace parley::cli
