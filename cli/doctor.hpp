#pragma once
/// `parley doctor`: what was found on this machine, which planes work here, and why others do not.
#include <parley/cli/tune.hpp>

namespace parley::cli {

/// Status 0: it looks and tells, it does not judge.
int doctor(output_format format);

}  // namespace parley::cli
