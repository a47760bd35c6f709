#pragma once
/// Worked cases with other configs than those that a case has itself: its calls are repeated until each of them has run.
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/groups.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/services.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::ops;
using namespace parley::runtime;

/// Of ranks whose flight recorder is asked what has run: it has room for a whole case.
inline rank_settings with_long_memory() {
  rank_settings s = eager_trials();
  s.flight_records = std::size_t{1} << 16U;
  return s;
}

/// Whether all that this rank sends in an op has been agreed on, in each size so far.
inline bool has_agreed(const here* h, std::string_view op) {
  for (const auto& agreed : h->self.agreements()) {
    if (agreed.op != op) continue;
    for (const auto& c : agreed.assigned->searches()) {
      if (!c->is_decided()) return false;
    }
  }
  return true;
}

/// What calls of an op have run on this rank, by the digests in its flight recorder; rehearsals are none.
inline std::set<std::uint64_t> configs_run(const here* h, std::string_view op) {
  constexpr unsigned rehearsal = 4;
  std::set<std::uint64_t> edges;
  for (const auto* const p : h->self.participants()) {
    if (p->declaration.name == op) edges.insert(p->declaration.id());
  }
  std::set<std::uint64_t> all;
  for (const flight_record& r : h->self.flight().in_order()) {
    if (is_transfer(r.what) && edges.contains(r.op) && (r.flags & rehearsal) == 0) all.insert(r.digest);
  }
  return all;
}

/// Of the other configs, those that have run in no call of an op here, though there is all that they need.
inline std::vector<config_ptr> not_run(here* h, std::string_view op) {
  const auto ran = configs_run(h, op);
  std::vector<config_ptr> all;
  for (const config_ptr& c : h->others) {
    const auto works = c->works_over(h->self.services().net, h->at.memory());
    if (works && !ran.contains(c->digest())) all.push_back(c);
  }
  return all;
}

/// Whether a decision in that op has left it out for all messages of a size, for want of a credit say.
inline bool is_left_out(const here* h, std::string_view op, const config_ptr& c) {
  for (const auto* const p : h->self.participants()) {
    if (p->declaration.name != op) continue;
    for (const auto& d : p->decisions) {
      const auto its = std::ranges::find(d.evidence, c->digest(), &actors::wire_evidence::digest);
      if (its != d.evidence.end() && its->status == "excluded") return true;
    }
  }
  return false;
}

/// Calls of an op: one, or as many as it takes for each of the other configs to run on each rank, unless the op is agreed on before.
template <class Call>
task<> until_each_ran(here* h, std::string op, Call call) {
  bool enough = false;
  if (h->until_each_ran && h->on_case) h->on_case(op + " until each config has run");
  for (const deadline limit; !enough;) {
    co_await call();
    enough = !h->until_each_ran;
    if (!enough) enough = co_await on_all_ranks(h, not_run(h, op).empty() || has_agreed(h, op) || limit.is_over());
  }
  if (!h->until_each_ran) co_return;
  CAPTURE(op);
  CHECK(configs_run(h, op).size() > 1);
  for (const config_ptr& c : not_run(h, op)) CHECK_MESSAGE(is_left_out(h, op, c), c->id());
}

}  // namespace parley::tests::worked_cases
