#include <parley/role.hpp>

namespace parley::ops {

std::string_view name(role r) noexcept {
  switch (r) {
    case role::idle: return "idle";
    case role::sender: return "sender";
    case role::receiver: return "receiver";
    case role::leader: return "leader";
    case role::worker: return "worker";
  }
  return "?";
}

}  // namespace parley::ops
