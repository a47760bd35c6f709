#pragma once
/// How much the tuning of one rank cost the program that ran at the same time.
///
///     const trial_costs mine = costs_of(self);       // after the run
///     mine.lost_ns();
///
/// The cost has three parts. First, how much longer trials of other configs took than the default, repetition by
/// repetition; faster ones do not reduce it. Second, the rehearsals, which move data that the program did not need,
/// at the speed that each config had in its trials; their waits for a free link cost the program nothing. Third, the
/// processor time of control messages at both ends.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/bench/keys.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <algorithm>
#include <cstdint>

namespace parley::bench {

/// An upper bound for the time to send, receive and handle a sealed control message, so that the sum is rather too
/// large.
inline constexpr double control_message_ns = 2'000;

struct trial_costs {
  double trials_ns = 0;
  double rehearsals_ns = 0;
  double messages = 0;
  double trials = 0;
  double undecided = 0;
  double lost_ns() const { return trials_ns + rehearsals_ns + messages * control_message_ns; }
  trial_costs& operator+=(const trial_costs& more) {
    trials_ns += more.trials_ns;
    rehearsals_ns += more.rehearsals_ns;
    messages += more.messages;
    trials += more.trials;
    undecided += more.undecided;
    return *this;
  }
};

inline double trial_loss_ns(const actors::search& c, const ops::edge_agreement& with) {
  if (c.aggregates().empty() || !c.aggregates()[0].measured()) return 0;
  std::vector<runtime::rank_id> participants = with.group;
  if (participants.empty()) participants = {with.sender, with.receiver};
  double lost = 0;
  for (std::size_t i = 1; i < c.book().repetitions.size(); ++i) {
    for (std::span<const std::uint64_t> rest = c.book().repetitions[i]; !rest.empty();) {
      const auto repetition = tuning::take_repetition(rest, c.book().joined);
      const auto once = tuning::aggregate_candidate(c.book().rows[i], {.digest = with.assigned->candidates()[i],
                                                                       .participants = participants,
                                                                       .invocations = repetition,
                                                                       .joined = c.book().joined});
      if (once.measured()) lost += double(repetition.size()) * std::max(0.0, once.time_ns - c.aggregates()[0].time_ns);
    }
  }
  return lost;
}

/// How long a config took to move that many bytes, scaled from its trials.
inline double measured_ns(const std::vector<ops::edge_agreement>& all, std::uint64_t digest, std::uint64_t bytes) {
  for (const auto& with : all) {
    const auto& known = with.assigned->candidates();
    const auto at = std::size_t(std::find(known.begin(), known.end(), digest) - known.begin());
    for (const auto& c : with.assigned->searches()) {
      if (at < c->aggregates().size() && c->aggregates()[at].measured())
        return c->aggregates()[at].time_ns * double(bytes) / double(c->bucket().largest_bytes());
    }
  }
  return 0;
}

inline trial_costs costs_of(const ops::rank& self) {
  constexpr auto rehearsal = static_cast<unsigned>(actors::stamp_flags::rehearsal);
  trial_costs all;
  const auto agreed = self.agreements();
  for (const auto& with : agreed) {
    for (const auto& c : with.assigned->searches()) {
      all.trials += double(c->trials());
      all.trials_ns += trial_loss_ns(*c, with);
    }
  }
  for (const auto& r : self.flight().in_order()) {
    if ((r.flags & rehearsal) != 0 && r.what == runtime::flight_event::sent)
      all.rehearsals_ns += measured_ns(agreed, r.digest, r.bytes);
  }
  all.undecided = double(keys_of(self).undecided);
  all.messages = double(self.mail().statistics().sent - self.flow_messages());
  return all;
}

}  // namespace parley::bench
