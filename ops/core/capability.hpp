#pragma once
/// Which of an op's configs this rank can run, and why not the others.
///
///     collective_options op{.name = "gradients", .configs = {nccl, cuda_graph, h100_optimized}};
///     op.can_run = [](rank_id r) { return std::vector<bool>{true, true, r < 2}; };       // one answer per config
///
/// A user's constraints are applied here, too: what they forbid on this rank goes out with its offer (tuning/constraint.hpp).
///
/// What a config requires of the machine (machine.hpp) has to be there in any case. Without such a function every config is asked itself
/// as well (`available`). A function or config that throws, whatever it is, cannot
/// run, and the reason is kept; the default always counts as available. An answer of the wrong length is a `bad_argument`, and so are one
/// that says that this rank cannot run the default, and a requirement that is no capability (`machine::is_capability`).
/// All are asked once, by the declaration: an op that is made later, by data that comes for it, runs no code of the user's.
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
  std::vector<std::string> missing;        ///< `h100_optimized: …`, a sentence per config that is not available
  std::vector<std::string> faults;         ///< what threw when it was asked, a sentence each: all ranks hear of it
  std::vector<actors::wire_limit> limits;  ///< what the user's constraints forbid
  std::vector<std::uint64_t> inexact;      ///< with constraints: digests of configs that say they are not exact
};

/// Takes away each config that `why_not(index)` says a reason of; one that throws cannot be asked, which is a reason, too.
void ask_each(capabilities& found, const std::vector<const op_config*>& configs, std::string_view question,
              const std::function<std::string(std::size_t index)>& why_not);

/// `what` titles the error; `on` is null where all is there that a config may require.
capabilities capabilities_of(std::string_view what, runtime::rank_id self, const machine* on,
                             const std::vector<const op_config*>& configs, const capability_function& capable);

/// Adds what constraints forbid. One that cannot say what it demands cannot run where the user allows less than anything.
void add_limits(capabilities& found, const std::vector<const op_config*>& configs, const tuning::constraints& user,
                const std::function<tuning::demands(std::size_t index)>& demands_of);

/// Both; `demands_of(config)` says what one of them demands.
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

/// Takes all away but the default, for one reason.
void leave_default(capabilities& found, const std::vector<const op_config*>& configs, const std::string& why);
template <class Config>
void leave_default(capabilities& found, const std::vector<std::shared_ptr<const Config>>& configs,
                   const std::string& why) {
  std::vector<const op_config*> plain;
  for (const auto& c : configs) plain.push_back(c.get());
  leave_default(found, plain, why);
}

}  // namespace parley::ops
