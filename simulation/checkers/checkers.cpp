#include <parley/simulation/checkers/checkers.hpp>

#include <parley/simulation/checkers/families.hpp>
#include <parley/simulation/checkers/program_checkers.hpp>

#include <string>

namespace parley::simulation {

std::vector<violation> check_flights(const run_record& r) {
  std::vector<violation> found;
  const record_book b(r);
  check_safety(b, found);
  check_versions(b, found);
  return found;
}

std::vector<violation> check(const run_record& r) {
  const record_book b(r);
  std::vector<violation> found = r.at_once;
  // Ranks that declare different defaults name different configs until parley has compared their declarations.
  std::erase_if(found, [&](const violation& v) { return v.invariant == "S1" && v.op != 0 && b.is_misdeclared(v.op); });
  if (r.spoiled != 0)
    found.push_back(
        {"S8", std::to_string(r.spoiled) +
                   " buffers of ops were written outside their bounds, or after the ops had returned them"});
  if (r.puts_outside != 0)
    found.push_back({"S8", std::to_string(r.puts_outside) + " puts outside the memory that their key names"});
  check_safety(b, found);
  check_progress(b, found);
  check_costs(b, found);
  check_versions(b, found);
  check_decisions(b, found);
  check_choice(b, found);
  check_endings(b, found);
  if (r.play->ops.empty()) check_program(r, found);  // a program, whose ops are not listed
  return found;
}

}  // namespace parley::simulation
