#include <parley/simulation/world/weather.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/inquiries.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/letters/pieces.hpp>
#include <parley/actors/rounds/neighbour_messages.hpp>
#include <parley/actors/rounds/round_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/ops/job/death_notices.hpp>
#include <parley/runtime/wire/frame.hpp>

#include <algorithm>
#include <cstring>

namespace parley::simulation {

using runtime::link;

std::string_view name(mishap::kind k) noexcept {
  constexpr std::string_view names[] = {"clog", "cut", "pause", "slow", "crash", "restart", "suspect"};
  return names[static_cast<std::size_t>(k)];
}

bool tape::has(mishap::kind k) const noexcept {
  return std::any_of(mishaps.begin(), mishaps.end(), [&](const mishap& m) { return m.what == k; });
}

bool mishap::is_death(time_ns detection_ns) const noexcept {
  return what == kind::crash || what == kind::suspect || (what == kind::pause && for_ns >= detection_ns);
}

bool tape::has_lost(rank_id r, time_ns by_ns, time_ns detection_ns) const noexcept {
  return std::any_of(mishaps.begin(), mishaps.end(), [&](const mishap& m) {
    const bool loses = m.what == mishap::kind::restart || m.is_death(detection_ns);
    return loses && m.rank == r && (m.after != 0 || m.at_ns <= by_ns);
  });
}

message_counts& message_counts::operator+=(const message_counts& o) noexcept {
  sent += o.sent;
  lost += o.lost;
  doubled += o.doubled;
  reordered += o.reordered;
  delayed += o.delayed;
  return *this;
}

void add(coverage& to, const coverage& more) {
  for (const auto& [type, by_state] : more) {
    for (std::size_t s = 0; s < by_state.size(); ++s) to[type][s] += by_state[s];
  }
}

std::string_view type_of(const parcel& p) noexcept {
  using namespace actors;
  if (p.on == link::channel::data) {
    stamp s;
    if (!read_stamp(p.header, s)) return "foreign data";
    if (has(s.flags, stamp_flags::poison)) return "poison";
    if (has(s.flags, stamp_flags::landed)) return "data landed";
    if (has(s.flags, stamp_flags::to_be_got)) return "data to be got";
    if (has(s.flags, stamp_flags::rehearsal)) return "rehearsal data";
    return p.payload.size() == p.payload_bytes ? "data" : "data kept at sender";
  }
  runtime::frame_header h;
  if (p.header.size() != sizeof h) return "foreign control";
  std::memcpy(&h, p.header.data(), sizeof h);
  switch (h.type) {
    case 0: return h.sequence == 0 ? "accepted" : "accepted?";
    case ack::message_type: return "ack";
    case offer::message_type: return "offer";
    case merged::message_type: return "merged";
    case op_reject::message_type: return "op_reject";
    case warm::message_type: return "warm";
    case warmed::message_type: return "warmed";
    case report::message_type: return "report";
    case decide::message_type: return "decide";
    case matched::message_type: return "matched";
    case matched_streams::message_type: return "matched_streams";
    case credit::message_type: return "credit";
    case revoke::message_type: return "revoke";
    case revoked::message_type: return "revoked";
    case exposed::message_type: return "exposed";
    case known::message_type: return "known";
    case taken::message_type: return "taken";
    case nack::message_type: return "nack";
    case gen_end::message_type: return "gen_end";
    case peer_question::message_type: return "peer_question";
    case piece::message_type: return "piece";
    case tuning_request::message_type: return "tuning_request";
    case peer_answer::message_type: return "peer_answer";
    case lease_prepare::message_type: return "lease_prepare";
    case lease_schedule::message_type: return "lease_schedule";
    case lease_reply::message_type: return "lease_reply";
    case lease_waiting::message_type: return "lease_waiting";
    case rehearse::message_type: return "rehearse";
    case rehearsed::message_type: return "rehearsed";
    case lease_end::message_type: return "lease_end";
    case lease_ended::message_type: return "lease_ended";
    case lease_leaving::message_type: return "lease_leaving";
    case lease_let_go::message_type: return "lease_let_go";
    case round_said::message_type: return "round_said";
    case round_outcome::message_type: return "round_outcome";
    case round_question::message_type: return "round_question";
    case neighbour_question::message_type: return "neighbour_question";
    case neighbour_refusal::message_type: return "neighbour_refusal";
    case neighbour_failure::message_type: return "neighbour_failure";
    case ops::death_notice::message_type: return "death_notice";
    default: return nameless_type;
  }
}

weather::way& weather::way_of(rank_id from, rank_id to) {
  const std::uint64_t number = std::uint64_t{from} * ranks_ + to;
  const auto at = ways_.find(number);
  if (at != ways_.end()) return at->second;
  return ways_.emplace(number, way(dice(seed_, purpose::fate, number))).first->second;
}

message_counts& weather::counts_of(const parcel& p, op_state when) {
  const char* const type = type_of(p).data();
  auto at = static_cast<std::size_t>(std::find(types_.begin(), types_.end(), type) - types_.begin());
  if (at == types_.size()) {
    types_.push_back(type);
    seen_.emplace_back();
  }
  return seen_[at][static_cast<std::size_t>(when)];
}

coverage weather::seen() const {
  coverage all;
  for (std::size_t i = 0; i < types_.size(); ++i) {
    for (std::size_t s = 0; s < op_state_count; ++s) all[types_[i]][s] += seen_[i][s];
  }
  return all;
}

fate weather::judge(const parcel& p) {
  const op_state when = states_.see(p);
  message_counts& counts = counts_of(p, when);
  ++counts.sent;
  fate f;
  f.mark = static_cast<std::uint8_t>(when);
  if (!calm_) {
    const bool control = p.on == link::channel::control;
    // Every number is drawn every time, so that leaving one fault out does not change another.
    dice& luck = way_of(p.from, p.to).luck;
    const std::uint64_t lose = luck.below(1000);
    const std::uint64_t twice = luck.below(1000);
    const std::uint64_t late = luck.below(1000);
    const auto extra = static_cast<time_ns>(luck.below(static_cast<std::uint64_t>(tape_.longest_delay_ns) + 1));
    const auto copy_extra = static_cast<time_ns>(luck.below(static_cast<std::uint64_t>(tape_.longest_delay_ns) + 1));
    f.lost = control && lose < tape_.lose;
    f.doubled = twice < (control ? tape_.double_control : tape_.double_data);
    f.copy_extra_ns = copy_extra;
    if (late < (control ? tape_.delay_control : tape_.delay_data)) f.extra_ns = extra;
    const time_ns now = line_->now() - began_ns_;
    for (const mishap& m : tape_.mishaps) {
      if (m.rank != p.from || m.to != p.to || now < m.at_ns || now >= m.at_ns + m.for_ns) continue;
      if (m.what == mishap::kind::clog) {
        const time_ns left = m.at_ns + m.for_ns - now;
        f.extra_ns += left;
        f.copy_extra_ns += left;
      } else if (m.what == mishap::kind::cut && control) {
        f.lost = true;
      }
    }
    if (p.payload.size() < p.payload_bytes) f.lost = f.doubled = false;
    counts.lost += f.lost ? 1 : 0;
    counts.doubled += f.doubled ? 1 : 0;
    counts.delayed += f.extra_ns != 0 ? 1 : 0;
  }
  for (wire_tap* t : taps_) t->on_send(p, f);
  return f;
}

bool weather::deliver(parcel& p) {
  std::uint64_t& highest = way_of(p.from, p.to).highest[static_cast<std::size_t>(p.on)];
  if (p.number < highest && !p.copy) ++counts_of(p, static_cast<op_state>(p.mark)).reordered;
  highest = std::max(highest, p.number);
  return std::all_of(taps_.begin(), taps_.end(), [&](wire_tap* t) { return t->on_deliver(p); });
}

time_ns weather::landing(rank_id from, rank_id to, time_ns usual) {
  if (calm_ || tape_.delay_data == 0 || usual == runtime::never) return usual;
  return usual + static_cast<time_ns>(way_of(from, to).luck.below(static_cast<std::uint64_t>(tape_.longest_delay_ns)));
}

}  // namespace parley::simulation
