#pragma once
/// The ops of more than two ranks (tests/support/cases/op_cases.hpp) on real ones, and where a fault strikes them: in the midst of one of their
/// calls, once some have gone well. Scenarios bear the ops' names.
///
/// | step | |
/// |---|---|
/// | `begun` | a call is under way, of which nothing has ended on this rank |
/// | `midst` | of a call that is under way some messages, or one level, have ended on this rank |
///
/// Whoever is left says whether a call brought something wrong, and whether memory beside what it may write was written.
#include <parley/run.hpp>

namespace fire {

void batches(parley::ops::job& here);
void one_group(parley::ops::job& here);
void stages(parley::ops::job& here);
void rims(parley::ops::job& here);
void attention(parley::ops::job& here);
void two_levels(parley::ops::job& here);
void training(parley::ops::job& here);

}  // namespace fire
