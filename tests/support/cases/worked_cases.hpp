#pragma once
/// The worked cases with exact numbers, as one rank runs them on any place (place.hpp). Each rank checks its own results. A program that
/// runs only some of the cases includes their headers in worked/.
///
///     here h(rank, place);
///     run(loop, guarded(&h));
#include <parley/tests/support/cases/worked/attention.hpp>
#include <parley/tests/support/cases/worked/contextual.hpp>
#include <parley/tests/support/cases/worked/group_decisions.hpp>
#include <parley/tests/support/cases/worked/halos.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/cases/worked/mismatches.hpp>
#include <parley/tests/support/cases/worked/paired_transfers.hpp>
#include <parley/tests/support/cases/worked/pipelines.hpp>
#include <parley/tests/support/cases/worked/ring.hpp>
#include <parley/tests/support/cases/worked/sums.hpp>

#include <parley/error.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <exception>
#include <vector>

namespace parley::tests::worked_cases {

struct one_case {
  const char* name;
  task<> (*run)(here* h);
  bool (*is_for)(const here* h);
};
inline bool for_up_to_4(const here* h) { return h->ranks <= 4; }
inline bool for_4(const here* h) { return h->ranks == 4; }
inline bool for_up_to_8(const here* h) { return h->ranks <= 8; }
inline bool for_all(const here*) { return true; }
inline bool for_gpus(const here* h) { return h->gpu_sums.copies != nullptr; }

inline const std::vector<one_case>& all_cases() {
  static const std::vector<one_case> all{
      {"ring", ring, for_up_to_4},
      {"batches", batches, for_up_to_4},
      {"pipelines", pipelines, for_up_to_4},
      {"transfers", transfers, for_up_to_4},
      {"jacobi", jacobi, for_up_to_4},
      {"more_than_faces", more_than_faces, for_up_to_4},
      {"contextual_table", contextual_table, for_up_to_4},
      {"late_stage", late_stage, for_up_to_4},
      {"traps", traps, for_up_to_4},
      {"contextual_failures", contextual_failures, for_up_to_4},
      {"mismatches", mismatches, for_up_to_4},
      {"mixture on one wire", [](here* h) { return mixture(h, "wire"); }, for_4},
      {"mixture on another wire", [](here* h) { return mixture(h, "another"); }, for_4},
      {"twenty_keys", twenty_keys, for_4},
      {"attention_around", attention_around, for_up_to_8},
      {"sums_of_a_group", sums_of_a_group, for_up_to_8},
      {"sums", sums, for_all},
      {"heterogeneous_sums", heterogeneous_sums, for_gpus},
  };
  return all;
}

inline task<> cases(here* h) {
  for (const one_case& c : all_cases()) {
    if (!c.is_for(h)) continue;
    if (h->on_case) h->on_case(c.name);
    co_await c.run(h);
  }
}

inline task<> guarded(here* h) {
  std::exception_ptr thrown;
  try {
    co_await cases(h);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown) FAIL_CHECK("rank " << h->me << ": " << describe(thrown).what());
}

}  // namespace parley::tests::worked_cases
