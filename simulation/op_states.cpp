#include <parley/simulation/op_states.hpp>

#include <parley/actors/lease_messages.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/frame.hpp>

#include <cstring>
#include <optional>

namespace parley::simulation {

using runtime::link;

struct op_states::topic {
  static std::optional<topic> of(const parcel& p) noexcept;
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  op_state leads_to = op_state::none;  // none: says nothing of that
};

namespace {

op_state after_control(std::uint16_t type) noexcept {
  using namespace actors;
  switch (type) {
    case merged::message_type: return op_state::warming;
    case lease_prepare::message_type: return op_state::preparing;
    case lease_schedule::message_type:
    case rehearse::message_type: return op_state::running;
    case decide::message_type: return op_state::idle;
    default: return op_state::none;
  }
}

}  // namespace

std::optional<op_states::topic> op_states::topic::of(const parcel& p) noexcept {
  using namespace actors;
  if (p.on == link::channel::data) {
    stamp s;
    if (!read_stamp(p.header, s)) return std::nullopt;
    const bool trial = has(s.flags, stamp_flags::timed) && !has(s.flags, stamp_flags::rehearsal);
    return topic{s.op & ~std::uint64_t{3}, s.generation, trial ? op_state::running : op_state::none};
  }
  runtime::frame_header h;
  if (p.header.size() != sizeof h) return std::nullopt;
  std::memcpy(&h, p.header.data(), sizeof h);
  if (h.type == 0) return std::nullopt;  // between ranks: of no op
  return topic{h.actor & ~std::uint64_t{3}, h.generation, after_control(h.type)};
}

std::string_view name(op_state s) noexcept {
  constexpr std::string_view names[] = {"-", "offering", "warming", "preparing", "running", "idle", "ended"};
  return names[static_cast<std::size_t>(s)];
}

op_state op_states::see(const parcel& p) {
  const auto t = topic::of(p);
  if (!t) return op_state::none;
  const op_state before = of(*t);
  generations& g = ops_[t->op];
  if (g.all.insert(t->generation).second) {
    g.latest = t->generation;
    g.state = op_state::offering;
  }
  if (t->generation != g.latest || t->leads_to == op_state::none) return before;
  // Offers that come late are merged again, which changes nothing of what has been found out.
  if (t->leads_to == op_state::warming && g.state != op_state::offering) return before;
  g.state = t->leads_to;
  return before;
}

op_state op_states::of(const topic& t) const {
  const auto at = ops_.find(t.op);
  if (at == ops_.end()) return op_state::offering;
  const generations& g = at->second;
  if (t.generation == g.latest) return g.state;
  return g.all.contains(t.generation) ? op_state::ended : op_state::offering;
}

}  // namespace parley::simulation
