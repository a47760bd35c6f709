#include <parley/transports/ucx_memory.hpp>

#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::error;

ucx_memory::~ucx_memory() {
  for (const auto& [number, memory] : mapped_) ucp_mem_unmap(context_, memory);
}

runtime::result<runtime::exposed_memory> ucx_memory::expose(std::span<std::byte> memory) {
  const auto refused = [&](const char* what, ucs_status_t status) {
    return error{errc::unavailable, std::string("UCX could not ") + what + " of " + std::to_string(memory.size()) +
                                        " bytes: " + ucs_status_string(status) +
                                        "; look at the limit on locked memory (ulimit -l)"};
  };
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  ucp_mem_h mapped = nullptr;
  ucs_status_t status = ucp_mem_map(context_, &params, &mapped);
  if (status != UCS_OK) return refused("register memory", status);

  void* packed = nullptr;
  std::size_t length = 0;
  status = ucp_rkey_pack(context_, mapped, &packed, &length);
  if (status != UCS_OK || length > runtime::link::max_remote_key_bytes) {
    if (status == UCS_OK) ucp_rkey_buffer_release(packed);
    ucp_mem_unmap(context_, mapped);
    return refused("make a key for memory", status == UCS_OK ? UCS_ERR_EXCEEDS_LIMIT : status);
  }
  runtime::exposed_memory made;
  made.number = ++last_number_;
  made.bytes = memory;
  made.key.resize(length);
  std::memcpy(made.key.data(), packed, length);
  ucp_rkey_buffer_release(packed);
  mapped_.emplace(made.number, mapped);
  return made;
}

runtime::late_writes ucx_memory::withdraw(const runtime::exposed_memory& memory) {
  if (const auto known = mapped_.find(memory.number); known != mapped_.end()) {
    ucp_mem_unmap(context_, known->second);
    mapped_.erase(known);
  }
  return runtime::late_writes::may_land;
}

ucp_rkey* ucx_memory::unpack(runtime::rank_id peer, ucp_ep* endpoint, std::span<const std::byte> key) {
  const auto same = [&](const known_key& k) {
    return k.peer == peer && std::equal(k.packed.begin(), k.packed.end(), key.begin(), key.end());
  };
  if (const auto known = std::find_if(keys_.begin(), keys_.end(), same); known != keys_.end()) return known->unpacked;
  if (key.empty() || key.size() > runtime::link::max_remote_key_bytes) return nullptr;

  std::vector<std::byte> padded(key.begin(), key.end());
  padded.resize(2 * runtime::link::max_remote_key_bytes);
  ucp_rkey_h unpacked = nullptr;
  if (ucp_ep_rkey_unpack(endpoint, padded.data(), &unpacked) != UCS_OK) return nullptr;
  const auto of_peer = [peer](const known_key& k) { return k.peer == peer; };
  if (static_cast<std::size_t>(std::count_if(keys_.begin(), keys_.end(), of_peer)) >= most_keys_of_a_peer) {
    const auto oldest = std::find_if(keys_.begin(), keys_.end(), of_peer);
    ucp_rkey_destroy(oldest->unpacked);
    keys_.erase(oldest);
  }
  keys_.push_back({peer, {key.begin(), key.end()}, unpacked});
  return unpacked;
}

void ucx_memory::forget(runtime::rank_id peer) {
  std::erase_if(keys_, [peer](const known_key& k) {
    if (k.peer == peer) ucp_rkey_destroy(k.unpacked);
    return k.peer == peer;
  });
}

void ucx_memory::forget_all() {
  for (const known_key& k : keys_) ucp_rkey_destroy(k.unpacked);
  keys_.clear();
}

}  // namespace parley::transports
