#include <parley/ops/kernels/tunable_op.hpp>

namespace parley::ops {

void raise_status(const std::string& implementation, long status) {
  runtime::raise({runtime::errc::unavailable, implementation + " returned status " + std::to_string(status)});
}

}  // namespace parley::ops
