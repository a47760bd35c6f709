#include <parley/actors/assignment.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

assignment::assignment(std::uint64_t default_digest, std::string default_id, std::string dtype,
                       std::vector<rank_id> participants, tuning_policy policy, tuning::plan_options plan)
    : default_digest_(default_digest), default_id_(std::move(default_id)), dtype_(std::move(dtype)),
      participants_(std::move(participants)), policy_(policy), plan_(plan) {}

campaign& assignment::campaign_of(std::uint64_t bytes, time_ns now) {
  if (latest_ != nullptr && bytes <= latest_->bucket.largest_bytes() && bytes >= latest_->bucket.smallest_bytes())
    return *latest_;
  const tuning::size_bucket bucket = tuning::size_bucket::of(bytes);
  for (auto& c : campaigns_) {
    if (c->bucket == bucket) return *(latest_ = c.get());
  }
  auto& c = *campaigns_.emplace_back(std::make_unique<campaign>());
  c.bucket = bucket;
  c.key = tuning::parameters_text({.op = {}, .size = bucket, .dtype = dtype_});
  c.digest = default_digest_;
  c.winner = default_id_;
  c.first_ns = now;
  if (opened()) start(c, now);
  if (c.where == campaign::stage::decided && settled_) settled_();
  return *(latest_ = &c);
}

const campaign* assignment::find(std::uint64_t bytes) const noexcept {
  for (const auto& c : campaigns_) {
    if (c->bucket.contains(bytes)) return c.get();
  }
  return nullptr;
}

assignment::choice assignment::choose(std::uint64_t bytes, std::uint32_t tag, std::uint64_t invocation, time_ns now,
                                      pacing pace) {
  ++order_;
  first_ns_ = std::min(first_ns_, now);
  campaign& c = campaign_of(bytes, now);
  ++c.invocations;
  if (c.where == campaign::stage::trying) return next_trial(c, tag, invocation, now, pace);
  return {c.digest, stamp_flags::none};
}

void assignment::note_default(std::uint64_t bytes, time_ns took_ns) noexcept {
  if (latest_ == nullptr || !latest_->bucket.contains(bytes)) return;
  double& fastest = latest_->fastest_default_ns;
  const auto took = static_cast<double>(took_ns);
  fastest = fastest == 0 ? took : std::min(fastest, took);
}

double assignment::expected_cost_ns(const campaign& c, std::size_t candidate) const noexcept {
  if (candidate == 0) return 0;
  const double base = c.aggregates[0].measured() ? c.aggregates[0].time_ns : c.fastest_default_ns;
  if (c.aggregates[candidate].measured()) return std::max(0.0, c.aggregates[candidate].time_ns - base);
  return base / 2;  // nothing is known of it yet
}

// N4: the campaigns of an op share one budget, and spend it as the program earns it.
bool assignment::affordable(const campaign& c, double expected_ns, time_ns now) const noexcept {
  double spent_ns = 0;
  for (const auto& each : campaigns_) spent_ns += each->cost_ns + each->pending_ns;
  return c.planner->may_continue(static_cast<std::int64_t>(spent_ns), now - first_ns_,
                                 static_cast<std::int64_t>(expected_ns));
}

assignment::choice assignment::next_trial(campaign& c, std::uint32_t tag, std::uint64_t invocation, time_ns now,
                                          pacing pace) {
  const tuning::planned_trial* upcoming = c.planner->upcoming();
  const double expected_ns = upcoming == nullptr ? 0 : expected_cost_ns(c, upcoming->candidate);
  if (pace == pacing::within_budget && !affordable(c, expected_ns, now)) return {c.digest, stamp_flags::none};
  c.pending_ns += expected_ns;
  const auto trial = c.planner->next();
  if (!trial) {  // what was left of the round has been quarantined
    collect(c, now);
    return {c.digest, stamp_flags::flush};
  }
  stamp_flags flags = stamp_flags::none;
  if (trial->kind == tuning::trial_kind::timed) {
    flags = stamp_flags::timed;
    ++c.trials;
    c.outstanding.push_back({tag, invocation, order_, trial->candidate});
    c.repetitions[trial->candidate].push_back(order_);
  }
  if (c.planner->round_complete()) {
    flags = flags | stamp_flags::flush;
    collect(c, now);
  }
  return {candidates_[trial->candidate], flags};
}

void assignment::collect(campaign& c, time_ns now) {
  c.where = campaign::stage::collecting;
  c.collecting_since_ns = now;
}

void assignment::open(std::vector<std::uint64_t> candidates, std::vector<std::string> ids,
                      std::vector<remembered_best> remembered, time_ns now, std::uint64_t machines) {
  candidates_ = std::move(candidates);
  ids_ = std::move(ids);
  remembered_ = std::move(remembered);
  machines_ = machines;
  for (auto& c : campaigns_) start(*c, now);
}

void assignment::forbid_trials(std::string why) {
  policy_ = tuning_policy::off;
  policy_why_ = std::move(why);
}

campaign* assignment::next_to_announce() noexcept {
  for (auto& c : campaigns_) {
    if (c->where == campaign::stage::decided && !c->announced) return c.get();
  }
  return nullptr;
}

void assignment::start(campaign& c, time_ns now) {
  tuning::recalled known = tuning::recall(c.key, remembered_, ids_, machines_);
  if (known.candidate) {
    c.proposer = known.proposer;
    c.remembered_time_ns = known.time_ms * 1e6;
    settle(c, *known.candidate, known.pinned ? decision_source::pin : decision_source::results,
           std::move(known.sentence), now);
    return;
  }
  c.missed = std::move(known.sentence);
  c.repetitions.resize(candidates_.size());
  c.aggregates.resize(candidates_.size());
  if (policy_ == tuning_policy::off || candidates_.size() < 2) {
    const bool off = policy_ == tuning_policy::off;
    settle(c, 0, off ? decision_source::tuning_off : decision_source::only_default,
           off ? policy_why_ : "only the default is available everywhere", now);
    return;
  }
  c.planner.emplace(candidates_.size(), plan_);
  c.where = campaign::stage::trying;
  ++active_;
}

void assignment::add_row(rank_id participant, const wire_row& r) {
  for (auto& c : campaigns_) {
    for (const campaign::trial& t : c->outstanding) {
      if (t.tag != r.tag || t.invocation != r.invocation) continue;
      const auto same = [&](const tuning::row& seen) {
        return seen.participant == participant && seen.invocation == t.order;
      };
      const auto known = std::find_if(c->rows.begin(), c->rows.end(), same);
      if (known != c->rows.end() && known->digest != 0) return;  // reported twice
      if (known != c->rows.end()) c->rows.erase(known);          // so far only when it ended
      const auto status = r.status <= 2 ? static_cast<tuning::row_status>(r.status) : tuning::row_status::failed;
      c->rows.push_back({participant, t.order, r.digest, r.start_ns, r.end_ns, status, r.check});
      const auto before = [&](const tuning::row& seen) {
        return seen.participant == participant && seen.invocation + 1 == t.order;
      };
      if (r.previous_end_ns != 0 && !std::any_of(c->rows.begin(), c->rows.end(), before))
        c->rows.push_back(
            {participant, t.order - 1, 0, r.previous_end_ns, r.previous_end_ns, tuning::row_status::ok, 0});
      return;
    }
  }
}

campaign* assignment::ready_to_judge(time_ns now) noexcept {
  for (auto& c : campaigns_) {
    if (c->where != campaign::stage::collecting) continue;
    // Who got a poison has no row, so one failure settles a trial.
    const auto reported = [&](const campaign::trial& t) {
      const auto failed_there = [&](const tuning::row& r) {
        return r.invocation == t.order && r.digest != 0 && r.status == tuning::row_status::failed;
      };
      if (std::any_of(c->rows.begin(), c->rows.end(), failed_there)) return true;
      return std::all_of(participants_.begin(), participants_.end(), [&](rank_id p) {
        return std::any_of(c->rows.begin(), c->rows.end(), [&](const tuning::row& r) {
          return r.participant == p && r.invocation == t.order && r.digest != 0;
        });
      });
    };
    if (std::all_of(c->outstanding.begin(), c->outstanding.end(), reported) ||
        now - c->collecting_since_ns >= rows_missing_after_ns)
      return c.get();
  }
  return nullptr;
}

time_ns assignment::next_give_up() const noexcept {
  time_ns earliest = runtime::never;
  for (const auto& c : campaigns_) {
    if (c->where == campaign::stage::collecting)
      earliest = std::min(earliest, c->collecting_since_ns + rows_missing_after_ns);
  }
  return earliest;
}

void assignment::judge(campaign& c, time_ns now) {
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    c.aggregates[i] = tuning::aggregate_candidate(
        c.rows, {.digest = candidates_[i], .participants = participants_, .invocations = c.repetitions[i]});
  }
  c.outstanding.clear();
  const double base = c.aggregates[0].time_ns;
  c.cost_ns = 0;
  c.pending_ns = 0;
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    if (c.aggregates[i].measured() && c.aggregates[i].time_ns > base)
      c.cost_ns += (c.aggregates[i].time_ns - base) * static_cast<double>(c.repetitions[i].size());
  }
  c.planner->complete_round(c.aggregates);
  if (!c.planner->finished()) {
    c.where = campaign::stage::trying;
    return;
  }
  --active_;
  const tuning::decision d = tuning::decide(c.aggregates, {.excluded = c.quarantined, .names = ids_});
  settle(c, d.winner, decision_source::trials, d.sentence, now);
}

void assignment::settle(campaign& c, std::size_t winner, decision_source source, std::string why, time_ns now) {
  c.where = campaign::stage::decided;
  c.announced = false;
  c.digest = candidates_[winner];
  c.winner = ids_[winner];
  c.source = source;
  c.why = std::move(why);
  if (!c.missed.empty()) c.why += "; of results files: " + c.missed;
  c.decided_ns = now;
  c.invocations_to_agreement = c.invocations;
}

void assignment::quarantine(std::uint64_t bytes, std::uint64_t digest) {
  if (digest == default_digest_) return;
  const tuning::size_bucket bucket = tuning::size_bucket::of(bytes);
  const auto index = std::find(candidates_.begin(), candidates_.end(), digest);
  for (auto& c : campaigns_) {
    if (c->bucket != bucket) continue;
    if (index != candidates_.end()) c->quarantined.push_back(static_cast<std::size_t>(index - candidates_.begin()));
    if (c->planner && !c->planner->finished() && index != candidates_.end())
      c->planner->drop(static_cast<std::size_t>(index - candidates_.begin()));
    if (c->where == campaign::stage::decided && c->digest == digest) {
      c->digest = default_digest_;
      c->winner = default_id_;
      c->why = "it failed in a real invocation, so the default runs";
    }
  }
}

}  // namespace parley::actors
