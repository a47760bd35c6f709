#pragma once
/// Memory that network cards of peers write and read, and the keys of theirs. Internal to transports/; runtime/wire/link.hpp has
/// the contract.
///
///     ucx_memory memory(worker.context());
///     auto key = memory.expose(number, bytes);                   // goes to the peer, over the control plane
///     if (ucx_memory::reaches_directly(endpoint))                // otherwise: carried_memory.hpp
///       ucp_rkey_h theirs = memory.unpack(peer, endpoint, key);  // kept, so that a key that comes again costs a look-up
///     memory.forget(peer);                                       // once nothing uses its keys any more
///
/// A key is remote input: UCX reads it without knowing its length, so a cut one ends in zeros and a long one is refused.
/// Once memory is withdrawn the card refuses what comes late.
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

  /// Whether a card does it. Elsewhere UCX emulates puts and gets.
  static bool reaches_directly(ucp_ep* endpoint);

  /// Empty where UCX cannot register it.
  std::vector<std::byte> expose(std::uint64_t number, std::span<std::byte> memory);
  void withdraw(std::uint64_t number);
  /// Null when it is no key.
  ucp_rkey* unpack(runtime::rank_id peer, ucp_ep* endpoint, std::span<const std::byte> key);
  void forget(runtime::rank_id peer);
  /// All keys: before their worker ends.
  void forget_all();

 private:
  struct known_key {
    runtime::rank_id peer;
    std::vector<std::byte> packed;
    ucp_rkey* unpacked;
  };
  /// Past that the oldest key of the peer is thrown away: a peer cannot make this rank keep any number of them.
  static constexpr std::size_t most_keys_of_a_peer = 64;

  ucp_context* context_;
  std::unordered_map<std::uint64_t, ucp_mem*> mapped_;
  std::vector<known_key> keys_;
};

}  // namespace parley::transports
