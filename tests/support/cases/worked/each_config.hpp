#pragma once
/// Worked cases with configs besides those of the case itself: calls are repeated until each of these has run.
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

/// Settings for ranks whose flight recorder shows which configs have run: it has room for a whole case.
inline rank_settings with_long_memory() {
  rank_settings s = eager_trials();
  s.flight_records = std::size_t{1} << 16U;
  return s;
}

/// True if, in each size so far, the configs of all that this rank sends in an op have been agreed on.
inline bool has_agreed(const here* h, std::string_view op) {
  for (const auto& agreed : h->self.agreements()) {
    if (agreed.op != op) continue;
    for (const auto& c : agreed.assigned->searches()) {
      if (!c->is_decided()) return false;
    }
  }
  return true;
}

/// The digests of the configs that calls of an op have run on this rank, by its flight recorder. Rehearsals do not count.
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

/// The other configs that no call of an op has run on this rank, though everything that they need is there.
inline std::vector<config_ptr> not_run(here* h, std::string_view op) {
  const auto ran = configs_run(h, op);
  std::vector<config_ptr> all;
  for (const config_ptr& c : h->others) {
    const auto works = c->works_over(h->self.services().net, h->at.memory());
    if (works && !ran.contains(c->digest())) all.push_back(c);
  }
  return all;
}

/// True if a decision in that op has excluded the config for all messages of a size, for example because there was no credit.
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

/// Makes calls of an op: one, or as many as needed until each of the other configs has run on each rank, or the op has agreed before.
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
