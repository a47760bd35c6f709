#include <parley/transports/ucx/ucx_memory.hpp>

#include <ucp/api/ucp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace parley::transports {

ucx_memory::~ucx_memory() {
  for (const auto& [number, memory] : mapped_) ucp_mem_unmap(context_, memory);
}

bool ucx_memory::reaches_directly([[maybe_unused]] ucp_ep* endpoint) {
#if UCP_API_VERSION >= UCP_VERSION(1, 15)
  std::array<ucp_transport_entry_t, 16> lanes{};
  ucp_ep_attr_t asked{};
  asked.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  asked.transports.entries = lanes.data();
  asked.transports.num_entries = lanes.size();
  asked.transports.entry_size = sizeof lanes[0];
  if (ucp_ep_query(endpoint, &asked) != UCS_OK) return false;
  return std::any_of(lanes.begin(), lanes.begin() + asked.transports.num_entries,
                     [](const ucp_transport_entry_t& lane) {
                       const std::string_view name = lane.transport_name == nullptr ? "" : lane.transport_name;
                       return name.starts_with("rc") || name.starts_with("dc");
                     });
#else
  return false;  // older UCX does not report an endpoint's transports
#endif
}

std::vector<std::byte> ucx_memory::expose(std::uint64_t number, std::span<std::byte> memory) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  ucp_mem_h mapped = nullptr;
  if (ucp_mem_map(context_, &params, &mapped) != UCS_OK) return {};

  void* packed = nullptr;
  std::size_t length = 0;
  if (ucp_rkey_pack(context_, mapped, &packed, &length) != UCS_OK) {
    ucp_mem_unmap(context_, mapped);
    return {};
  }
  std::vector<std::byte> key(length);
  std::memcpy(key.data(), packed, length);
  ucp_rkey_buffer_release(packed);
  mapped_.emplace(number, mapped);
  return key;
}

void ucx_memory::withdraw(std::uint64_t number) {
  const auto known = mapped_.find(number);
  if (known == mapped_.end()) return;
  ucp_mem_unmap(context_, known->second);
  mapped_.erase(known);
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
