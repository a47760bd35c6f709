#pragma once
/// Programs of ranks that start batches, each over a flow of its own, for tests in virtual time.
#include <parley/tests/support/transfers.hpp>

#include <parley/dataflow.hpp>
#include <parley/p2p.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <exception>
#include <functional>
#include <utility>
#include <vector>

namespace parley::tests {

/// One rank's part of a test.
using batch_program = std::function<runtime::task<>(runtime::dataflow&, ops::rank&, ops::p2p&)>;

inline runtime::task<> guarded(runtime::dataflow& flow, const batch_program* p, ops::rank* self, ops::p2p pairs) {
  co_await (*p)(flow, *self, pairs);
}

inline runtime::task<> with_outcome(const batch_program* p, ops::rank* self, ops::p2p pairs,
                                    runtime::result<>& outcome) {
  std::exception_ptr thrown;
  try {
    co_await runtime::with_dataflow(guarded, p, self, pairs);
  } catch (...) {
    thrown = std::current_exception();
  }
  outcome = thrown ? runtime::result<>(runtime::describe(thrown)) : runtime::result<>();
}

/// Runs one program per rank. Returns the outcome of each: that of `dataflow::join`, or what the program threw.
inline std::vector<runtime::result<>> run_each(world& w, const std::vector<batch_program>& programs,
                                               const ops::p2p_options& op) {
  std::vector<runtime::result<>> outcomes(programs.size(), runtime::result<>(runtime::errc::pending));
  runtime::scope all(w.clock);
  for (rank_id r = 0; r < programs.size(); ++r)
    all.spawn(with_outcome(&programs[r], &w[r], ops::p2p(w[r], op), outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  return outcomes;
}

inline runtime::task<> end_of(runtime::flow_work work) { co_await work; }

inline runtime::task<runtime::result<>> outcome_of(runtime::flow_work work) {
  std::exception_ptr thrown;
  try {
    co_await work;
  } catch (...) {
    thrown = std::current_exception();
  }
  co_return thrown ? runtime::result<>(runtime::describe(thrown)) : runtime::result<>();
}

}  // namespace parley::tests
