#pragma once
/// Memory that UCX lets peers write and read, and the keys of theirs. Internal to transports/; runtime/link.hpp has the
/// contract.
///
///     ucx_memory memory(worker.context());
///     auto mine = memory.expose(bytes);                          // mine->key goes to the peer, over the control plane
///     ucp_rkey_h theirs = memory.unpack(peer, endpoint, key);    // kept, so that a key that comes again costs a look-up
///     memory.forget(peer);                                       // once nothing uses its keys any more
///
/// A key is remote input: UCX reads it without knowing its length, so a cut one ends in zeros and a long one is refused.
/// UCX cannot stop writes of a peer on the same host that is alive but has been given up: they go through its memory map,
/// which knows of no keys. So `withdraw` answers `may_land`.
#include <parley/runtime/link.hpp>

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

  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory);
  runtime::late_writes withdraw(const runtime::exposed_memory& memory);
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
  std::uint64_t last_number_ = 0;
  std::vector<known_key> keys_;
};

}  // namespace parley::transports
