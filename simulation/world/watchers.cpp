#include <parley/simulation/world/watchers.hpp>

#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/frame.hpp>

#include <algorithm>
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
  ways_.clear();
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
  const auto comes_before = [](const auto& known, std::uint32_t invocation) { return known.first < invocation; };
  auto at = of_stream.end();
  if (!of_stream.empty() && of_stream.back().first >= s.invocation)
    at = std::lower_bound(of_stream.begin(), of_stream.end(), s.invocation, comes_before);
  if (at == of_stream.end() || at->first != s.invocation) {
    of_stream.insert(at, {s.invocation, s.digest});
  } else if (at->second != s.digest)
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

void watchers::on_send(const parcel& p, const fate&) {
  runtime::frame_header h;
  if (p.on != link::channel::control || p.header.size() != sizeof h) return;
  std::memcpy(&h, p.header.data(), sizeof h);
  if (h.sequence == 0) return;  // it only reports accepted messages, and needs no room in the window
  way& its = ways_[{p.from, p.to}];
  if (its.session != h.session) its = {.session = h.session};  // one of the two ranks has restarted
  its.sent = static_cast<std::uint32_t>(h.sequence);
  // A sender that finds the window full sends one question, which has its own number.
  check(p.from, "queues", its.sent - its.accepted <= window_ + 1,
        "sent message " + std::to_string(its.sent) + " to rank " + std::to_string(p.to) + ", which had accepted " +
            std::to_string(its.accepted));
}

// Counts acceptances as the sender does: the count only moves forward, and never beyond the last message sent.
void watchers::on_accepted(const parcel& p, std::uint32_t accepted) {
  const auto at = ways_.find({p.to, p.from});
  if (at == ways_.end()) return;
  way& its = at->second;
  if (accepted - its.accepted <= its.sent - its.accepted) its.accepted = accepted;
}

bool watchers::on_deliver(parcel& p) {
  if (p.on == link::channel::data) {
    on_data(p);
    return true;
  }
  runtime::frame_header h;
  if (p.header.size() != sizeof h) return true;
  std::memcpy(&h, p.header.data(), sizeof h);
  on_accepted(p, h.accepted);
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
