// Messages between actors are counted by message number.
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/inquiries.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/letters/pieces.hpp>
#include <parley/actors/rounds/neighbour_messages.hpp>
#include <parley/actors/rounds/round_messages.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

using namespace parley::actors;

namespace {
template <class... Ms>
std::vector<std::uint16_t> numbers() {
  return {Ms::message_type...};
}
}  // namespace

TEST_CASE("no two kinds of message share a number") {
  const auto all =
      numbers<credit, struct revoke, revoked, exposed, known, taken, gen_end, lease_prepare, lease_schedule,
              lease_reply, lease_waiting, rehearse, rehearsed, lease_end, lease_ended, lease_leaving, lease_let_go, ack,
              offer, merged, op_reject, warm, warmed, report, decide, tuning_request, nack, matched, matched_streams,
              peer_question, peer_answer, piece, round_said, round_outcome, round_question, neighbour_question,
              neighbour_refusal, neighbour_failure>();
  CHECK(std::set<std::uint16_t>(all.begin(), all.end()).size() == all.size());
}
