#pragma once
/// The checkers by topic; `check` calls them all.
#include <parley/simulation/checkers/record_book.hpp>

#include <vector>

namespace parley::simulation {

void check_safety(const record_book& b, std::vector<violation>& found);     ///< S1 to S6
void check_versions(const record_book& b, std::vector<violation>& found);   ///< agreement on decisions of one version
void check_decisions(const record_book& b, std::vector<violation>& found);  ///< agreement on the final decisions
void check_progress(const record_book& b, std::vector<violation>& found);   ///< L1, L2
void check_costs(const record_book& b, std::vector<violation>& found);      ///< N1 to N4, window
void check_choice(const record_book& b, std::vector<violation>& found);     ///< oracle
void check_endings(const record_book& b,
                   std::vector<violation>& found);  ///< errors, results, quarantine, delivery, fencing, leftovers

}  // namespace parley::simulation
