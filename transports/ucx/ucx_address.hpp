#pragma once
/// The address of a worker as the ranks exchange it: UCX's own bytes, followed by the first bytes of their SHA-256.
/// UCX aborts the process if it is given bytes that are not an address, so each rank checks an address before use. Internal
/// to transports/.
///
///     auto mine = with_check(worker.address());                        // for the other ranks
///     if (has_valid_check(theirs)) auto bytes = for_ucx(theirs);       // for ucp_ep_create
#include <cstddef>
#include <span>
#include <vector>

namespace parley::transports {

std::vector<std::byte> with_check(std::vector<std::byte> address_of_ucx);

/// True if the address is complete and unchanged since `with_check`. A forged address can pass this check.
bool has_valid_check(std::span<const std::byte> address);

/// UCX's own bytes of an address that has a valid check. UCX reads an address without knowing its length, so zeros are
/// appended, which end an address that was cut short.
std::vector<std::byte> for_ucx(std::span<const std::byte> address);

}  // namespace parley::transports
