#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

std::string_view name(fault kind) noexcept {
  switch (kind) {
    case fault::malformed: return "malformed";
    case fault::empty: return "empty";
    case fault::duplicate: return "duplicate";
    case fault::digest_collision: return "digest_collision";
    case fault::too_many: return "too_many";
    case fault::default_mismatch: return "default_mismatch";
    case fault::role_conflict: return "role_conflict";
    case fault::validator_mismatch: return "validator_mismatch";
  }
  return "unknown";
}

}  // namespace parley::tuning
