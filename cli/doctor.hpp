#pragma once
/// `parley doctor`: shows what this machine has, which planes work here, and why the others do not.
#include <parley/cli/tune.hpp>

namespace parley::cli {

/// Returns status 0 always: the command reports, and does not judge.
int doctor(output_format format);

}  // namespace parley::cli
