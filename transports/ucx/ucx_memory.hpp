#pragma once
/// Memory of this rank that peers' network cards write and read, and the keys to the peers' memory. Internal to transports/;
/// runtime/wire/link.hpp has the contract.
///
///     ucx_memory memory(worker.context());
///     auto key = memory.expose(number, bytes);                   // send it to the peer, over the control plane
///     if (ucx_memory::reaches_directly(endpoint))                // otherwise: carried_memory.hpp
///       ucp_rkey_h theirs = memory.unpack(peer, endpoint, key);  // cached: unpacking a key again costs a look-up
///     memory.forget(peer);                                       // once nothing uses its keys any more
///
/// A key is remote input, and UCX reads it without knowing its length. `unpack` therefore pads a key with zeros, in case it was cut
/// short, and refuses one longer than `link::max_remote_key_bytes`. Once memory is withdrawn the card refuses late accesses.
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

struct ucp_context;
struct ucp_ep;
struct ucp_mem;
struct ucp_rkey;

namespace parley::transports {

class ucx_memory {
 public:
  explicit ucx_memory(ucp_context* context) noexcept : context_(context) {}
  ~ucx_memory();
  ucx_memory(const ucx_memory&) = delete;
  ucx_memory& operator=(const ucx_memory&) = delete;

  /// True if a network card does the puts and gets; otherwise UCX emulates them.
  static bool reaches_directly(ucp_ep* endpoint);

  /// Returns the key; empty if UCX cannot register the memory.
  std::vector<std::byte> expose(std::uint64_t number, std::span<std::byte> memory);
  void withdraw(std::uint64_t number);
  /// Null if UCX does not accept the key. The returned key stays valid until `forget`, or until newer keys of the peer displace it.
  ucp_rkey* unpack(runtime::rank_id peer, ucp_ep* endpoint, std::span<const std::byte> key);
  void forget(runtime::rank_id peer);
  /// Destroys all keys. Call it before the worker is destroyed.
  void forget_all();

 private:
  struct known_key {
    runtime::rank_id peer;
    std::vector<std::byte> packed;
    ucp_rkey* unpacked;
  };
  /// Beyond this number the peer's oldest key is destroyed, so that a peer cannot make this rank keep any number of keys.
  static constexpr std::size_t most_keys_of_a_peer = 64;

  ucp_context* context_;
  std::unordered_map<std::uint64_t, ucp_mem*> mapped_;
  std::vector<known_key> keys_;
};

}  // namespace parley::transports
