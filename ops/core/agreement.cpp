#include <parley/agreement.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/services.hpp>
#include <parley/ops/core/decision_record.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

namespace {

void check_process(const actors::services& s, const actors::op_declaration& op, const char* done) {
  if (s.ex.forked()) runtime::refuse_fork(done + (" of " + op.title()));
}

std::string what_is_missing(const actors::participant_state& mine, std::uint64_t bytes) {
  if (mine.candidates.empty())
    return "not all ranks of the op have declared it yet, or their declarations have not arrived; rank " +
           std::to_string(mine.declaration.leader) + " leads";
  if (mine.candidates.size() == 1)
    return mine.no_common_config.empty() ? "no rank lists a config other than the default" : mine.no_common_config;
  if (mine.policy == actors::tuning_policy::off) return "tuning is switched off on this rank";
  if (mine.assigned == nullptr)
    return "rank " + std::to_string(mine.declaration.leader) +
           ", which leads, is trying the candidates, or has seen no call of this size yet";
  if (!mine.assigned->opened()) return "the ranks are rehearsing the candidates, which needs no calls";
  const actors::search* c = mine.assigned->find(bytes);
  if (c == nullptr) return "no call of this size has been made yet";
  return "search " + std::to_string(c->number()) + " is running, with " + std::to_string(c->trials()) +
         " trials so far; it continues with further calls of this size, as far as its budget allows";
}

}  // namespace

decision agreement::decision(std::uint64_t bytes) const {
  const actors::participant_state& mine = *mine_;
  const std::string key =
      tuning::parameters_text({.op = {}, .size = tuning::size_bucket::of(bytes), .dtype = mine.declaration.dtype});
  const auto known = std::find_if(mine.decisions.begin(), mine.decisions.end(),
                                  [&](const actors::decision_record& r) { return r.key == key; });
  if (known == mine.decisions.end()) {
    ops::decision d;
    d.op = mine.declaration.title();
    d.key = key;
    d.config = mine.declaration.default_config;
    d.digest = mine.declaration.default_digest;
    d.here = d.config;
    d.why = what_is_missing(mine, bytes);
    return d;
  }
  ops::decision d = decision_of(mine, *known, services_->net.rank());
  if (const actors::search* const c = mine.assigned == nullptr ? nullptr : mine.assigned->find(bytes)) {
    d.calls = c->calls_since_decision();
    for (const auto& [need, calls] : c->runs_of_others()) d.ran_other.push_back({std::string(need), calls});
  }
  return d;
}

task<decision> agreement::until_decided(agreement of, std::uint64_t bytes, decided_options o) {
  actors::services& s = *of.services_;
  check_process(s, of.mine_->declaration, "a decision was waited for");
  const time_ns until = s.until(o.timeout.count() != 0 ? o.timeout.count() : of.timeout_ns_);
  for (;;) {
    ops::decision d = of.decision(bytes);
    if (d.decided && d.search > o.after_search) co_return d;
    if (*of.failed_) throw runtime::failure(**of.failed_);
    auto woken = co_await of.mine_->changed.next(until);
    if (woken) continue;
    if (woken.code() != errc::timeout) runtime::raise(woken.reason());
    d = of.decision(bytes);  // as it stands now
    const runtime::error late(
        errc::timeout, {.op = d.op, .rank = s.net.rank(), .role = of.mine_->role, .begun = false, .own_bytes = bytes},
        "there is no " + (d.decided ? "newer decision for " + d.key + ": search " + std::to_string(d.search) +
                                          " is the last one that ended"
                                    : "decision for " + d.key + ": " + d.why));
    s.call_failed(late);
    throw runtime::failure(late);
  }
}

void agreement::ask(wish what, std::optional<std::uint64_t> bytes, std::string_view why) const {
  check_process(*services_, mine_->declaration, "a search was asked for");
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

}  // namespace parley::ops
