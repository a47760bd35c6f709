// Messages of other ranks: control messages, and the headers in front of data.
#include "peer_link.hpp"

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
#include <parley/ops/leased/contextual_agreement.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/runtime/wire/frame.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transports/join/siphash.hpp>

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

/// Whether the bytes decode as an `M`. Each value has exactly one wire form, so encoding it again must give the same bytes.
template <class M>
bool check(input bytes) {
  auto value = decode<M>(bytes);
  if (!value) {
    require(value.code() == errc::malformed, "bytes that are no message are malformed");
    return false;
  }
  std::vector<std::byte> again;
  encode(*value, again);
  require(std::ranges::equal(again, bytes), "decode and encode are inverse");
  static_cast<void>(print(*value));
  return true;
}

struct body_type {
  std::string_view name;
  bool (*check)(input);
};

/// The first byte of an input is an index into this list. New types are appended, so that inputs of the corpus keep their meaning.
std::span<const body_type> all_bodies() {
  using namespace actors;
  static constexpr std::array all{
      body_type{"ack", &check<ack>},
      body_type{"offer", &check<offer>},
      body_type{"merged", &check<merged>},
      body_type{"op_reject", &check<op_reject>},
      body_type{"warm", &check<warm>},
      body_type{"warmed", &check<warmed>},
      body_type{"report", &check<report>},
      body_type{"decide", &check<decide>},
      body_type{"tuning_request", &check<tuning_request>},
      body_type{"nack", &check<nack>},
      body_type{"matched", &check<matched>},
      body_type{"credit", &check<credit>},
      body_type{"revoke", &check<revoke>},
      body_type{"revoked", &check<revoked>},
      body_type{"exposed", &check<exposed>},
      body_type{"known", &check<known>},
      body_type{"taken", &check<taken>},
      body_type{"piece", &check<piece>},
      body_type{"lease_prepare", &check<lease_prepare>},
      body_type{"lease_schedule", &check<lease_schedule>},
      body_type{"lease_reply", &check<lease_reply>},
      body_type{"lease_waiting", &check<lease_waiting>},
      body_type{"rehearse", &check<rehearse>},
      body_type{"rehearsed", &check<rehearsed>},
      body_type{"lease_end", &check<lease_end>},
      body_type{"lease_ended", &check<lease_ended>},
      body_type{"lease_leaving", &check<lease_leaving>},
      body_type{"lease_let_go", &check<lease_let_go>},
      body_type{"round_said", &check<round_said>},
      body_type{"round_outcome", &check<round_outcome>},
      body_type{"round_question", &check<round_question>},
      body_type{"peer_question", &check<peer_question>},
      body_type{"peer_answer", &check<peer_answer>},
      body_type{"contextual_verdict", &check<ops::contextual_verdict>},
      body_type{"gen_end", &check<gen_end>},
      body_type{"neighbour_question", &check<neighbour_question>},
      body_type{"neighbour_refusal", &check<neighbour_refusal>},
      body_type{"neighbour_failure", &check<neighbour_failure>},
      body_type{"death_notice", &check<ops::death_notice>},
      body_type{"contextual_said", &check<ops::contextual_said>},
      body_type{"matched_streams", &check<matched_streams>},
  };
  return all;
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
  // With the right tag, decoding checks the rest of the frame.
  if (header.size() != sizeof(frame_header)) return;
  frame_header claimed;
  std::memcpy(&claimed, header.data(), sizeof claimed);
  const auto tagged = encode_frame(claimed, body, sealed());
  const auto h = decode_frame(tagged, body, mine, sealed());
  if (h) require(h->source < mine.world_size && h->body_bytes == body.size(), "a frame that is taken is for this rank");
}

void message(input bytes) { static_cast<void>(body_type_of(bytes)); }

std::vector<std::string_view> body_types() {
  std::vector<std::string_view> names;
  for (const body_type& body : all_bodies()) names.push_back(body.name);
  return names;
}

std::string_view body_type_of(input bytes) {
  choices from(bytes);
  const body_type& body = all_bodies()[from.byte() % all_bodies().size()];
  return body.check(from.rest()) ? body.name : std::string_view();
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
  // A body that is cut into pieces is put together again. An empty body has no pieces.
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

// Frames with right tags arrive in any order. Each counts at most once, and makes this rank send at most four frames.
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
