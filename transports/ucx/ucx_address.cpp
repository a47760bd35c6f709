#include <parley/transports/ucx/ucx_address.hpp>

#include <parley/transports/join/rendezvous_wire.hpp>

#include <algorithm>

namespace parley::transports {
namespace {

/// An address has a few hundred bytes. This limit and the zeros below keep a hostile address from making UCX read far past its end.
constexpr std::size_t max_address_bytes = 64 * 1024;
constexpr std::size_t check_bytes = 8;
constexpr std::size_t zeros_behind = 1024;

std::vector<std::byte> check_of(std::span<const std::byte> address_of_ucx) {
  const wire::digest digest = wire::sha256(address_of_ucx);
  return {digest.begin(), digest.begin() + check_bytes};
}

}  // namespace

std::vector<std::byte> with_check(std::vector<std::byte> address_of_ucx) {
  const std::vector<std::byte> check = check_of(address_of_ucx);
  address_of_ucx.insert(address_of_ucx.end(), check.begin(), check.end());
  return address_of_ucx;
}

bool has_valid_check(std::span<const std::byte> address) {
  if (address.size() <= check_bytes || address.size() > max_address_bytes) return false;
  return std::ranges::equal(address.last(check_bytes), check_of(address.first(address.size() - check_bytes)));
}

std::vector<std::byte> for_ucx(std::span<const std::byte> address) {
  std::vector<std::byte> bytes(address.begin(), address.end() - check_bytes);
  bytes.resize(address.size() + zeros_behind);
  return bytes;
}

}  // namespace parley::transports
