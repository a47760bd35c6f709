#pragma once
/// Limits the cost of the searches of one op (N4). They share one budget, which grows with the op's age and also pays for the agreement
/// itself.
///
///     trial_budget budget;
///     trial_budget::account& mine = budget.open(now);     // one for each search
///     mine.pending_ns += expected_ns;                     // a trial that has not been reported yet
///     plan.may_continue(budget.spent_ns(), now - budget.began_ns(), expected_ns);
#include <parley/identifiers.hpp>

#include <algorithm>
#include <deque>

namespace parley::actors {

class trial_budget {
 public:
  using time_ns = runtime::time_ns;
  struct account {
    double cost_ns = 0;     ///< time that the trials took beyond the default's
    double pending_ns = 0;  ///< expected cost of trials that were not reported yet
  };

  /// Opens the account of one search. The budget grows from the first one on.
  account& open(time_ns now) {
    began_ns_ = std::min(began_ns_, now);
    return accounts_.emplace_back();
  }
  /// Notes how much of a participant's time the agreement itself has used so far. Ranks work in parallel, so the largest time counts.
  void note_control(time_ns control_ns) noexcept { control_ns_ = std::max(control_ns_, control_ns); }
  time_ns control_ns() const noexcept { return control_ns_; }
  time_ns began_ns() const noexcept { return began_ns_; }
  double spent_ns() const noexcept {
    auto spent = static_cast<double>(control_ns_);
    for (const account& a : accounts_) spent += a.cost_ns + a.pending_ns;
    return spent;
  }

 private:
  std::deque<account> accounts_;
  time_ns began_ns_ = runtime::never;
  time_ns control_ns_ = 0;
};

}  // namespace parley::actors
