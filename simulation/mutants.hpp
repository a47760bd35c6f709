#pragma once
/// Broken variants of the protocol, to see that a checker notices. The product's own objects stay as they are: a mutant is a
/// rank whose fault shows on the wire, so it changes what that rank says or hears, or it is a switch of the simulated link.
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
  std::string_view scenario;                ///< in which it shows, a file name without its ending
  std::vector<std::string_view> caught_by;  ///< any of these checkers
};

std::span<const mutant_info> mutants();
const mutant_info* find_mutant(std::string_view name);

/// What a mutant does on the wire; null where it is a switch of the link (`no-fence`), of the programs or a setting of the ranks,
/// or where there is none. Throws `bad_argument` for a name that is not there.
std::unique_ptr<wire_tap> make_mutant(std::string_view name);
/// Those that are switches of the link or settings of the ranks.
void put_mutant(std::string_view name, world_options& into);

}  // namespace parley::simulation
