#pragma once
/// The address of a worker as the ranks exchange it: UCX's own bytes, and behind them the first ones of their SHA-256.
/// UCX ends a process that gives it bytes which are no address, so each rank checks first what it was given. Internal
/// to transports/.
///
///     auto mine = with_check(worker.address());                        // for the other ranks
///     if (has_valid_check(theirs)) auto bytes = for_ucx(theirs);       // for ucp_ep_create
#include <cstddef>
#include <span>
#include <vector>

namespace parley::transports {

std::vector<std::byte> with_check(std::vector<std::byte> address_of_ucx);

/// Whether nothing is missing and nothing has changed since `with_check`. Whoever forges an address can make this true.
bool has_valid_check(std::span<const std::byte> address);

/// UCX's own bytes of an address that has a valid check. UCX reads an address without knowing its length: zeros behind
/// it end one that was cut.
std::vector<std::byte> for_ucx(std::span<const std::byte> address);

}  // namespace parley::transports
