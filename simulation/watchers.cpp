#include <parley/simulation/watchers.hpp>

#include <parley/actors/lease_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/frame.hpp>

#include <cstring>
#include <span>

namespace parley::simulation {

using runtime::link;

namespace {

std::span<const std::byte> payload_of(const parcel& p) noexcept {
  return p.replaced ? std::span<const std::byte>(p.instead) : std::span<const std::byte>(p.payload);
}

}  // namespace

void watchers::begin_job() {
  stamped_.clear();
  logs_.clear();
  promised_.clear();
}

void watchers::check(rank_id from, std::string_view invariant, bool holds, const std::string& text) {
  if (!holds) tell_(invariant, "rank " + std::to_string(from) + " " + text);
}

void watchers::on_data(const parcel& p) {
  actors::stamp s;
  if (!actors::read_stamp(p.header, s) || has(s.flags, actors::stamp_flags::poison)) return;
  auto& of_stream = stamped_[{s.op, s.generation, s.source, s.tag, has(s.flags, actors::stamp_flags::rehearsal)}];
  const auto at = of_stream.emplace_hint(of_stream.end(), s.invocation, s.digest);
  if (at->second != s.digest)
    check(p.from, "S1", false, "stamped invocation " + std::to_string(s.invocation) + " with two configs");
}

void watchers::on_log(const parcel& p, std::uint64_t op, std::uint64_t generation, std::uint32_t key,
                      std::uint64_t after, const std::vector<actors::lease_entry>& entries) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto [at, first] = logs_.emplace(std::tuple(op, generation, key, after + i), entries[i]);
    check(p.from, "S1", first || at->second == entries[i],
          "wrote entry " + std::to_string(after + i) + " of its log twice, and not the same");
  }
}

bool watchers::on_deliver(parcel& p) {
  if (p.on == link::channel::data) {
    on_data(p);
    return true;
  }
  runtime::frame_header h;
  if (p.header.size() != sizeof h) return true;
  std::memcpy(&h, p.header.data(), sizeof h);
  const std::uint64_t op = h.actor & ~std::uint64_t{3};
  if (h.type == actors::lease_prepare::message_type) {
    const auto m = runtime::decode<actors::lease_prepare>(payload_of(p));
    if (m) on_log(p, op, h.generation, m->key, m->after, m->entries);
  } else if (h.type == actors::lease_schedule::message_type) {
    const auto m = runtime::decode<actors::lease_schedule>(payload_of(p));
    if (m) on_log(p, op, h.generation, m->key, m->after, m->entries);
  } else if (h.type == actors::lease_reply::message_type) {
    const auto m = runtime::decode<actors::lease_reply>(payload_of(p));
    if (!m || m->what != actors::lease_reply::kind::promise) return true;
    const auto [at, first] = promised_.emplace(std::tuple(op, h.generation, m->key, m->campaign, p.from), m->from);
    check(p.from, "S7", first || at->second == m->from,
          "promised campaign " + std::to_string(m->campaign) + " twice, and not the same");
  }
  return true;
}

}  // namespace parley::simulation
