#pragma once
/// Broken variants of the protocol, to prove that a checker notices them. parley's own objects stay unchanged: a mutant changes the
/// messages that a rank sends or receives, or it is a switch of the simulated link, of the programs or of a rank's settings.
///
///     auto m = make_mutant("matching-by-arrival", …);     // a `wire_tap`
///     for (const mutant_info& m : mutants()) …            // its name, its scenario, and the checkers that may name it
#include <parley/simulation/world/weather.hpp>
#include <parley/simulation/world/world.hpp>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace parley::simulation {

struct mutant_info {
  std::string_view name;
  std::string_view does;
  std::string_view scenario;                ///< the scenario that reveals it: a file name without its ending
  std::vector<std::string_view> caught_by;  ///< one of these checkers must catch it
};

std::span<const mutant_info> mutants();
const mutant_info* find_mutant(std::string_view name);

/// Makes the tap by which a mutant changes messages. Null if the mutant is a switch of the link (`no-fence`) or of the programs or a
/// setting of the ranks, or if `name` is empty. Throws `bad_argument` for an unknown name.
std::unique_ptr<wire_tap> make_mutant(std::string_view name);
/// Applies a mutant that is a switch of the link or a setting of the ranks. Other names change nothing.
void put_mutant(std::string_view name, world_options& into);

}  // namespace parley::simulation
