#pragma once
/// `parley doctor`: shows what this machine has, which planes work here, and why the others do not.
#include <parley/cli/tune.hpp>

namespace parley::cli {

/// Always returns status 0, because the command only reports.
int doctor(output_format format);

}  // namespace parley::cli
