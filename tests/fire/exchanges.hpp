#pragma once
/// The ops of more than two ranks (tests/support/cases/op_cases.hpp) on real ranks, and the steps at which a fault strikes: inside a call,
/// after some calls have succeeded. Each scenario has the name of its op.
///
/// | step | |
/// |---|---|
/// | `begun` | a call has begun, and no part of it has ended on this rank |
/// | `midst` | some messages of the call, or one level, have ended on this rank |
///
/// A rank that leaves prints whether a call brought wrong data, and whether memory outside its buffers was written.
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
