#include <parley/ops/agreement.hpp>
#include <parley/ops/edge.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

namespace {

std::string name_of(const actors::participant_state& mine, std::uint64_t digest) {
  const auto at = std::find(mine.candidates.begin(), mine.candidates.end(), digest);
  if (at != mine.candidates.end()) return mine.ids[static_cast<std::size_t>(at - mine.candidates.begin())];
  const auto own = mine.configs.find(digest);
  return own ? mine.configs[*own].id : std::to_string(digest);
}

std::string what_is_missing(const actors::participant_state& mine, std::uint64_t bytes) {
  if (mine.candidates.empty())
    return "not every rank of it has declared the op yet, or its word has not come; rank " +
           std::to_string(mine.declaration.leader) + " leads";
  if (mine.candidates.size() == 1)
    return mine.no_common_config.empty() ? "no rank lists another config than the default" : mine.no_common_config;
  if (mine.policy == actors::tuning_policy::off) return "tuning is switched off on this rank";
  if (mine.assigned == nullptr) return "its candidates are being tried, or no call of this size has been made yet";
  if (!mine.assigned->opened()) return "the candidates are being warmed";
  const actors::campaign* c = mine.assigned->find(bytes);
  if (c == nullptr) return "no call of this size has been made yet";
  return "search " + std::to_string(c->search) + " goes on, with " + std::to_string(c->trials) + " trials so far";
}

}  // namespace

decision agreement::decision(std::uint64_t bytes) const {
  const actors::participant_state& mine = *mine_;
  ops::decision d;
  d.op = mine.declaration.title();
  d.key = tuning::parameters_text({.op = {}, .size = tuning::size_bucket::of(bytes), .dtype = mine.declaration.dtype});
  const auto known = std::find_if(mine.decisions.begin(), mine.decisions.end(),
                                  [&](const actors::decision_record& r) { return r.key == d.key; });
  if (known == mine.decisions.end()) {
    d.config = mine.declaration.default_config;
    d.digest = mine.declaration.default_digest;
    d.here = d.config;
    d.why = what_is_missing(mine, bytes);
    return d;
  }
  d.decided = true;
  d.digest = known->digest;
  d.config = name_of(mine, known->digest);
  d.why = known->why;
  d.source = known->source;
  d.confidence = known->confidence;
  d.here = d.config;
  for (const rank_id r : known->participants) {
    const auto has_it = [r](const actors::wire_part& p) {
      return std::find(p.ranks.begin(), p.ranks.end(), r) != p.ranks.end();
    };
    const auto part = std::find_if(known->parts.begin(), known->parts.end(), has_it);
    d.ranks.push_back({r, part == known->parts.end() ? d.config : part->config});
    if (r == services_->net.rank()) d.here = d.ranks.back().config;
  }
  d.search = known->search;
  d.version = known->version;
  if (const actors::campaign* const c = mine.assigned == nullptr ? nullptr : mine.assigned->find(bytes)) {
    d.calls = c->invocations - c->invocations_before;
    for (const auto& [need, calls] : c->runs_of_others()) d.ran_other.push_back({std::string(need), calls});
  }
  for (const actors::wire_evidence& e : known->evidence) {
    d.evidence.push_back({e.config.empty() ? name_of(mine, e.digest) : e.config, e.digest, e.time_ns, e.repetitions,
                          e.status, e.detail});
    if (e.digest == d.digest && (e.status == "measured" || e.status == "remembered")) d.time_ns = e.time_ns;
  }
  return d;
}

task<decision> agreement::until_decided(agreement of, std::uint64_t bytes, decided_options o) {
  actors::services& s = *of.services_;
  const time_ns until = s.until(o.timeout_ns != 0 ? o.timeout_ns : of.timeout_ns_);
  for (;;) {
    ops::decision d = of.decision(bytes);
    if (d.decided && d.search > o.after_search) co_return d;
    if (*of.failed_) throw runtime::failure(**of.failed_);
    auto woken = co_await of.mine_->changed.next(until);
    if (woken) continue;
    if (woken.code() != errc::timeout) runtime::raise(woken.reason());
    d = of.decision(bytes);  // as it stands now
    const runtime::error late(errc::timeout, {.op = d.op, .rank = s.net.rank(), .role = of.mine_->role},
                              "there is no " + (d.decided ? "newer decision for " + d.key + ": search " +
                                                                std::to_string(d.search) + " is the last one that ended"
                                                          : "decision for " + d.key + ": " + d.why));
    s.call_failed(late);
    throw runtime::failure(late);
  }
}

void agreement::ask(wish what, std::optional<std::uint64_t> bytes, std::string_view why) const {
  actors::tuning_request asked;
  asked.what = what == wish::retune ? actors::tuning_request::kind::retune : actors::tuning_request::kind::abort;
  asked.every_size = !bytes;
  asked.bytes = bytes.value_or(0);
  asked.why = why;
  actors::ask_leader(*mine_, std::move(asked));
}

void agreement::retune(std::optional<std::uint64_t> bytes, std::string_view why) const {
  ask(wish::retune, bytes, why);
}

void agreement::give_up(std::optional<std::uint64_t> bytes, std::string_view why) const {
  ask(wish::give_up, bytes, why);
}

// ---- what an edge does for it -------------------------------------------------------------------------------------------

agreement edge_end::agreed() noexcept { return {services_, participant_, failed_, options_.timeout_ns}; }

errc failure_of_config(const std::exception_ptr& thrown) {
  const errc code = runtime::describe(thrown).code();
  // A device that failed did so under whatever config.
  const bool says_itself = code == errc::cancelled || code == errc::config_mismatch || code == errc::device_failed;
  return says_itself ? code : errc::config_failed;
}

void edge_end::report_failure(const part_receiver& in, std::uint64_t ran, errc why, const std::string& what) {
  // The sender's own failure is known there, unless it only knows that time ran out while this side was at it.
  const bool hung = in.sender_failure() == errc::timeout;
  if (failed_ || (in.sender_failure() != errc::none ? !hung : !actors::blames_config(why))) return;
  actors::nack n;
  n.tag = in.mark()->tag;
  n.invocation = in.invocation();
  n.digest = ran;
  n.bytes = in.total_bytes();
  n.code = static_cast<std::uint8_t>(hung ? errc::timeout : why);
  n.text = what;
  static_cast<void>(participant_.actor.try_send(std::move(n)));
}

void edge_out::on_nack(const actors::nack& n) noexcept {
  if (n.refused) return on_refused({n.tag, n.invocation, runtime::errc_of(n.code, errc::send_failed), n.text});
  under_way_.for_each([&](under_way& send) {
    if (send.invocation.invocation != n.invocation || send.invocation.mark.tag != n.tag ||
        send.invocation.mark.digest != n.digest || send.out.failed() != errc::none)
      return;
    send.why = "it failed on rank " + std::to_string(options_.peer) + ": " + n.text;
    send.out.fail(errc::config_failed);
  });
}

}  // namespace parley::ops
