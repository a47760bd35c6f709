// What other ranks send over the control channel and in front of data.
#include "peer_link.hpp"

#include <parley/actors/credit_messages.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/lease_messages.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/neighbour_messages.hpp>
#include <parley/actors/other_members.hpp>
#include <parley/actors/other_way.hpp>
#include <parley/actors/pieces.hpp>
#include <parley/actors/round_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/ops/contextual_agreement.hpp>
#include <parley/ops/death_notices.hpp>
#include <parley/runtime/frame.hpp>
#include <parley/runtime/router.hpp>
#include <parley/runtime/virtual_time.hpp>
#include <parley/transports/siphash.hpp>

#include <deque>

namespace parley::fuzz {

using namespace parley::runtime;

namespace {

std::uint64_t tag_of(void* seal, std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
  return static_cast<transports::siphash*>(seal)->tag(header, body);
}

frame_seal sealed() {
  static transports::siphash cipher(std::array<std::byte, transports::siphash::key_bytes>{});
  return {&tag_of, &cipher};
}

/// The wire format has one form of each value, so that what was decoded is encoded to the same bytes.
template <class M>
void check(input bytes) {
  auto value = decode<M>(bytes);
  if (!value) {
    require(value.code() == errc::malformed, "bytes that are no message are malformed");
    return;
  }
  std::vector<std::byte> again;
  encode(*value, again);
  require(std::ranges::equal(again, bytes), "decode and encode are inverse");
  static_cast<void>(print(*value));
}

template <class... M>
void check_one_of(std::size_t which, input bytes) {
  constexpr std::array<void (*)(input), sizeof...(M)> checks{&check<M>...};
  checks[which % checks.size()](bytes);
}

}  // namespace

void control_frame(input bytes) {
  const frame_expectation mine{.destination = 1, .world_size = 4};
  const input header = bytes.first(std::min(bytes.size(), sizeof(frame_header)));
  const input body = bytes.subspan(header.size());
  for (const frame_seal& seal : {frame_seal{}, sealed()}) {
    const auto h = decode_frame(header, body, mine, seal);
    if (!h) continue;
    require(seal.tag == nullptr, "nobody guesses a tag");
    require(std::ranges::equal(encode_frame(*h, body, seal), header), "decode and encode are inverse");
  }
  // With the right tag the rest is looked at.
  if (header.size() != sizeof(frame_header)) return;
  frame_header claimed;
  std::memcpy(&claimed, header.data(), sizeof claimed);
  const auto tagged = encode_frame(claimed, body, sealed());
  const auto h = decode_frame(tagged, body, mine, sealed());
  if (h) require(h->source < mine.world_size && h->body_bytes == body.size(), "a frame that is taken is for this rank");
}

void message(input bytes) {
  choices from(bytes);
  const std::size_t which = from.byte();
  using namespace actors;
  check_one_of<ack, offer, merged, op_reject, warm, warmed, report, decide, tuning_request, nack, matched, credit,
               revoke, revoked, exposed, known, taken, piece, lease_prepare, lease_schedule, lease_reply, lease_waiting,
               rehearse, rehearsed, lease_end, lease_ended, lease_leaving, lease_let_go, round_said, round_outcome,
               round_question, other_way, other_members, other_declaration, gen_end, neighbour_question,
               neighbour_refusal, neighbour_failure, ops::death_notice, ops::contextual_said, ops::contextual_verdict>(
      which, from.rest());
}

void stamp(input bytes) {
  const auto s = actors::read_stamp(bytes);
  if (!s) {
    require(s.code() == errc::malformed, "bytes that are no stamp are malformed");
    return;
  }
  require(std::ranges::equal(actors::bytes_of(*s), bytes), "reading and writing are inverse");
  require(s->offset <= s->total_bytes, "a part begins inside its invocation");
  static_cast<void>(actors::reason_of(*s));
  static_cast<void>(actors::unwrap(s->invocation, s->generation));
}

void pieces(input bytes) {
  choices from(bytes);
  actors::piece_collector collector;
  for (int i = 0; i < 200 && !from.empty(); ++i) {
    actors::piece p;
    const auto source = static_cast<rank_id>(from.below(3));
    p.whole = static_cast<std::uint32_t>(from.below(4));
    p.whole_type = static_cast<std::uint16_t>(from.below(3));
    p.index = static_cast<std::uint32_t>(from.below(6));
    p.count = static_cast<std::uint32_t>(from.byte() == 255 ? ~0U : from.below(6));
    const input part = from.bytes(64);
    for (const std::byte b : part) p.bytes.push_back(std::to_integer<std::uint8_t>(b));
    const auto whole = collector.add(source, std::move(p));
    if (whole) require(whole->body.size() <= 6 * 64, "a whole is no larger than its pieces");
  }
  // And what was cut is put together again; nothing is cut of nothing.
  if (bytes.empty()) return;
  const std::vector<std::byte> body(bytes.begin(), bytes.end());
  actors::piece_collector fresh;
  std::optional<actors::piece_collector::whole> whole;
  for (actors::piece p : actors::in_pieces(7, 1, body)) {
    require(!whole, "a whole comes with its last piece");
    whole = fresh.add(0, std::move(p));
  }
  require(whole && whole->type == 7 && std::ranges::equal(whole->body, body), "cutting and collecting are inverse");
}

// Frames as they come, with right tags: at most once each, and an answer or two for each at the most.
void router_frames(input bytes) {
  choices from(bytes);
  virtual_time clock;
  peer_link wire;
  router mail(clock, wire, {.job = 42, .seal = sealed()});
  std::uint64_t taken = 0;
  mail.bind<actors::matched>(5, [&](envelope, actors::matched&&) {
    ++taken;
    return from.below(4) == 1 ? errc::full : errc::none;
  });
  std::deque<std::vector<std::byte>> bodies;
  std::uint64_t brought = 0;
  for (; brought < 300 && !from.empty(); ++brought) {
    frame_header h;
    h.type = static_cast<std::uint16_t>(from.below(8) == 7 ? from.byte() : actors::matched::message_type);
    h.source = static_cast<rank_id>(from.below(5));
    h.destination = 1;
    h.session = from.below(16) == 15 ? 41 : 42;
    h.actor = from.below(8) == 7 ? 6 : 5;
    h.sequence = from.byte();
    if (from.below(8) == 7) h.sequence <<= from.below(64);
    h.accepted = from.byte();
    auto& body = bodies.emplace_back();
    if (from.below(4) == 3) {
      const input raw = from.bytes(40);
      body.assign(raw.begin(), raw.end());
    } else {
      actors::matched m;
      encode(m, body);
    }
    h.body_bytes = static_cast<std::uint32_t>(body.size());
    wire.bring(link::channel::control, encode_frame(h, body, sealed()), body);
    clock.turn();
  }
  require(wire.sent <= 4 * brought, "no frame makes this rank send many");
  const auto& seen = mail.statistics();
  require(seen.received <= brought, "no frame counts twice");
}

}  // namespace parley::fuzz
