#pragma once
#include <cstdint>

namespace parley::transports {

/// Who may reach a rendezvous that has no key.
enum class exposure : std::uint8_t {
  loopback_without_key,  ///< anything wider than loopback needs a key
  insecure,  ///< the user has said explicitly that a wide rendezvous without a key is wanted; not with restarts
};

}  // namespace parley::transports
