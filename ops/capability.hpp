#pragma once
/// Which of an op's configs this rank can run, and why not the others.
///
///     leader_worker op{.name = "gradients", .configs = {nccl, cuda_graph, h100_optimized}};
///     op.capable = [](rank_id r) { return std::vector<bool>{true, true, r < 2}; };       // one answer per config
///
/// A user's constraints are applied here, too: what they forbid on this rank goes out with its offer (tuning/constraint.hpp).
///
/// Without such a function every config is asked itself (`available`). A function or config that throws cannot run, and the
/// reason is kept; the default always counts as available. An answer of the wrong length is a `bad_argument`.
#include <parley/actors/messages.hpp>
#include <parley/ops/op_config.hpp>
#include <parley/runtime/identifiers.hpp>
#include <parley/tuning/bits.hpp>
#include <parley/tuning/constraint.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

/// Asked on each rank for itself, once, when the op is declared.
using capability_function = std::function<std::vector<bool>(runtime::rank_id self)>;

/// The same function for an op that is made later, perhaps where nothing may be thrown: it is asked now.
capability_function asked_now(const capability_function& capable, runtime::rank_id self);

struct capabilities {
  tuning::bits available;
  std::vector<std::string> missing;  ///< `h100_optimized: …`, one sentence per config that is not available
};

/// `what` titles the error.
capabilities capabilities_of(std::string_view what, runtime::rank_id self, const std::vector<const op_config*>& configs,
                             const capability_function& capable);

template <class Config>
capabilities capabilities_of(std::string_view what, runtime::rank_id self,
                             const std::vector<std::shared_ptr<const Config>>& configs,
                             const capability_function& capable) {
  std::vector<const op_config*> plain;
  for (const auto& c : configs) plain.push_back(c.get());
  return capabilities_of(what, self, plain, capable);
}

/// What constraints forbid, of configs that demand this each.
std::vector<actors::wire_limit> limits_of(const std::vector<tuning::demands>& demanded,
                                          const tuning::constraints& user);

/// `demands_of(config)` says what one of them demands.
template <class Config, class Demands>
std::vector<actors::wire_limit> limits_of(const std::vector<std::shared_ptr<const Config>>& configs,
                                          const tuning::constraints& user, const Demands& demands_of) {
  if (!user.any()) return {};
  std::vector<tuning::demands> demanded;
  for (const auto& c : configs) demanded.push_back(demands_of(*c));
  return limits_of(demanded, user);
}

}  // namespace parley::ops
