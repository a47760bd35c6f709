#pragma once
/// Asks which of an op's configs this rank can run, and why it cannot run the others.
///
///     collective_options op{.name = "gradients", .configs = {nccl, cuda_graph, h100_optimized}};
///     op.can_run = [](rank_id r) { return std::vector<bool>{true, true, r < 2}; };       // one answer per config
///
/// A user's constraints are also applied here: the rank's offer lists the configs and limits that they forbid (tuning/constraint.hpp).
///
/// A config runs only where the machine has everything that the config requires (machine.hpp). Without a `can_run` function, each config is
/// also asked itself (`available`). If the function or a config throws anything, the config cannot run, and the reason is kept. These are
/// errors (`bad_argument`): this rank cannot run the default, by the function or by the config itself; the function returns the wrong
/// number of answers; a requirement is no capability (`machine::is_capability`).
/// The declaration asks all of this once. An op that is made later, when data arrives for it, runs no user code.
#include <parley/actors/agreement/messages.hpp>
#include <parley/identifiers.hpp>
#include <parley/machine.hpp>
#include <parley/ops/core/op_config.hpp>
#include <parley/tuning/bits.hpp>
#include <parley/tuning/constraint.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

struct capabilities {
  tuning::bits available;
  std::vector<std::string> missing;        ///< one sentence per config that is not available: `h100_optimized: …`
  std::vector<std::string> faults;         ///< one sentence per question that threw; sent to all ranks
  std::vector<actors::wire_limit> limits;  ///< set by the user's constraints
  std::vector<std::uint64_t> inexact;      ///< digests of configs that declare an error; empty without constraints
};

/// Removes each config for which `why_not(index)` returns a reason or throws.
void ask_each(capabilities& found, const std::vector<const op_config*>& configs, std::string_view question,
              const std::function<std::string(std::size_t index)>& why_not);

/// `what` begins the text of errors. `on` null: the machine has everything that a config may require.
capabilities capabilities_of(std::string_view what, runtime::rank_id self, const machine* on,
                             const std::vector<const op_config*>& configs, const capability_function& capable);

/// Adds the limits that the user's constraints set. If `demands_of` throws for a config, that config cannot run, because it is unknown
/// whether it meets the limits.
void add_limits(capabilities& found, const std::vector<const op_config*>& configs, const tuning::constraints& user,
                const std::function<tuning::demands(std::size_t index)>& demands_of);

/// Asks all configs and adds the limits. `demands_of(config)` returns a config's demands.
template <class Config, class Demands>
capabilities capabilities_of(std::string_view what, runtime::rank_id self, const machine* on,
                             const std::vector<std::shared_ptr<const Config>>& configs,
                             const capability_function& capable, const tuning::constraints& user,
                             const Demands& demands_of) {
  std::vector<const op_config*> plain;
  for (const auto& c : configs) plain.push_back(c.get());
  auto found = capabilities_of(what, self, on, plain, capable);
  if (user.any()) add_limits(found, plain, user, [&](std::size_t i) { return demands_of(*configs[i]); });
  return found;
}

/// Removes all configs except the default, for one reason.
void leave_default(capabilities& found, const std::vector<const op_config*>& configs, const std::string& why);
template <class Config>
void leave_default(capabilities& found, const std::vector<std::shared_ptr<const Config>>& configs,
                   const std::string& why) {
  std::vector<const op_config*> plain;
  for (const auto& c : configs) plain.push_back(c.get());
  leave_default(found, plain, why);
}

}  // namespace parley::ops
