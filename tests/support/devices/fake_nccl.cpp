#include <parley/tests/support/devices/fake_nccl.hpp>

namespace parley::tests {

fake_nccl::~fake_nccl() = default;

}  // namespace parley::tests
