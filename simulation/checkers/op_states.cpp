#include <parley/simulation/checkers/op_states.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/frame.hpp>

#include <cstring>

namespace parley::simulation {

using runtime::link;

namespace {

struct topic {
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  op_state leads_to = op_state::none;  // none: the message does not change the state
  bool stamped = false;
};

op_state after_control(std::uint16_t type) noexcept {
  using namespace actors;
  switch (type) {
    case merged::message_type: return op_state::warming;
    case lease_prepare::message_type: return op_state::preparing;
    case lease_schedule::message_type:
    case rehearse::message_type: return op_state::running;
    case report::message_type:
    case rehearsed::message_type: return op_state::collecting;
    case decide::message_type: return op_state::idle;
    default: return op_state::none;
  }
}

std::optional<topic> topic_of(const parcel& p) noexcept {
  using namespace actors;
  if (p.on == link::channel::data) {
    stamp s;
    if (!read_stamp(p.header, s)) return std::nullopt;
    const bool trial = has(s.flags, stamp_flags::timed) && !has(s.flags, stamp_flags::rehearsal);
    const op_state leads_to = !trial                             ? op_state::none
                              : has(s.flags, stamp_flags::flush) ? op_state::collecting
                                                                 : op_state::running;
    return topic{s.op & ~std::uint64_t{3}, s.generation, leads_to, true};
  }
  runtime::frame_header h;
  if (p.header.size() != sizeof h) return std::nullopt;
  std::memcpy(&h, p.header.data(), sizeof h);
  if (h.type == 0) return std::nullopt;  // a message between ranks, of no op
  if (h.type == taken::message_type) return topic{op_of_reader(h.actor, h.generation), h.generation};
  return topic{h.actor & ~std::uint64_t{3}, h.generation, after_control(h.type)};
}

}  // namespace

std::string_view name(op_state s) noexcept {
  constexpr std::string_view names[] = {"-",       "offering",   "warming", "preparing",
                                        "running", "collecting", "idle",    "ended"};
  return names[static_cast<std::size_t>(s)];
}

std::optional<std::uint64_t> op_of(const parcel& p) noexcept {
  const auto t = topic_of(p);
  return t ? std::optional(t->op) : std::nullopt;
}

op_state op_states::see(const parcel& p) {
  const auto t = topic_of(p);
  if (!t) return op_state::none;
  generations& g = ops_[t->op];
  if ((t->generation != g.latest || g.all.empty()) && g.all.insert(t->generation).second) {
    g.latest = t->generation;
    g.state = op_state::offering;
  }
  if (t->generation != g.latest) return op_state::ended;
  const op_state before = g.state;
  g.stamped = g.stamped || t->stamped;
  // Offers that arrive late are merged again, which does not change the state. If stamps say that a round is complete, reports do not
  // change the state either.
  const bool merged_again = t->leads_to == op_state::warming && before != op_state::offering;
  const bool reported = p.on == link::channel::control && t->leads_to == op_state::collecting &&
                        (g.stamped || before != op_state::running);
  if (t->leads_to != op_state::none && !merged_again && !reported) g.state = t->leads_to;
  return before;
}

}  // namespace parley::simulation
