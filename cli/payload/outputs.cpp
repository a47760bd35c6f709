#include <parley/cli/payload/outputs.hpp>

#include <parley/cli/payload/payload.hpp>

#include <algorithm>

namespace parley::cli {

namespace {

// The gradient that the first stage gets back: forward through all stages, and backward through all stages except the first.
payload_ramp gradient_of(const ops::pipeline_schedule& s, std::uint64_t number) {
  payload_ramp r = ramp_of(number);
  for (std::uint32_t stage = 0; stage < s.stages; ++stage) r = r * factor_of_stage(stage);
  for (std::uint32_t stage = 1; stage < s.stages; ++stage) r = r * factor_of_stage(stage);
  return r;
}

payload_ramp sum_of(const op_spec& op, rank_id member, std::uint64_t i) {
  const auto has = [&](const std::vector<rank_id>& g) { return std::find(g.begin(), g.end(), member) != g.end(); };
  const auto group = std::find_if(op.groups.begin(), op.groups.end(), has);
  payload_ramp sum;
  if (group == op.groups.end()) return sum;
  for (const rank_id r : *group) sum = sum + ramp_of(payload_number(op, r, i));
  return sum;
}

}  // namespace

std::uint64_t payload_number(const op_spec& op, rank_id from, std::uint64_t i) noexcept {
  return op.kind == op_kind::p2p || op.kind == op_kind::collective ? i * most_ranks + from : i;
}

std::uint64_t expected_digest(const op_spec& op, rank_id from, std::uint64_t i) {
  const std::uint64_t bytes = op.sizes[i];
  const std::uint64_t number = payload_number(op, from, i);
  switch (op.kind) {
    case op_kind::halo: return 1;
    case op_kind::pipeline: return reference_digest(number, bytes, op.stages.size());
    case op_kind::training_pipeline: return reference_digest(gradient_of(op.schedule, number), bytes);
    case op_kind::collective:
      if (op.collects == ops::collective_kind::all_reduce) return reference_digest(sum_of(op, from, i), bytes);
      break;
    case op_kind::transfer:
    case op_kind::p2p: break;
  }
  return reference_digest(number, bytes, 0);
}

std::uint64_t outputs_of(const op_spec& op) noexcept {
  const std::uint64_t calls = op.sizes.size();
  switch (op.kind) {
    case op_kind::pipeline:
    case op_kind::training_pipeline: return calls;
    case op_kind::halo: return calls * op.grid.blocks();
    case op_kind::transfer:
    case op_kind::p2p: return calls * op.edges.size();
    case op_kind::collective: break;
  }
  std::uint64_t members = 0;
  for (const auto& group : op.groups) members += group.size();
  return calls * members;
}

}  // namespace parley::cli
