#pragma once
#include <cstdint>

namespace parley::transports {

/// The processes that may reach a rendezvous without a key.
enum class exposure : std::uint8_t {
  loopback_without_key,  ///< anything wider than loopback needs a key
  insecure,  ///< the user explicitly wants a rendezvous without a key beyond loopback; not allowed with restarts
};

}  // namespace parley::transports
