#include <parley/cli/spec/op_spec.hpp>

#include <algorithm>

namespace parley::cli {

bool runs_on_devices(op_kind kind) noexcept { return kind == op_kind::pipeline || kind == op_kind::transfer; }

std::string_view name(op_kind kind) noexcept {
  switch (kind) {
    case op_kind::pipeline: return "pipeline";
    case op_kind::transfer: return "transfer";
    case op_kind::p2p: return "p2p";
    case op_kind::halo: return "halo";
    case op_kind::collective: return "collective";
    case op_kind::training_pipeline: break;
  }
  return "training_pipeline";
}

bool meet(const op_spec& op, rank_id one, rank_id other) {
  const auto joins = [&](const std::pair<rank_id, rank_id>& e) {
    return e == std::pair(one, other) || e == std::pair(other, one);
  };
  const auto has = [](const std::vector<rank_id>& group, rank_id r) {
    return std::find(group.begin(), group.end(), r) != group.end();
  };
  return std::any_of(op.edges.begin(), op.edges.end(), joins) ||
         std::any_of(op.groups.begin(), op.groups.end(), [&](const auto& g) { return has(g, one) && has(g, other); });
}

}  // namespace parley::cli
