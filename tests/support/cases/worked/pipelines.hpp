#pragma once
/// Worked case 2: pipelines that train, by every kind of schedule.
#include <parley/tests/support/cases/training_case.hpp>
#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/place.hpp>

#include <parley/config.hpp>
#include <parley/schedule.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/training_pipeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

// A list as people write it: one microbatch after the other, and the gradients in reverse order.
inline const char* const own_list_of_two = "0F0, 0SEND_F0, 0F1, 0SEND_F1, 0RECV_B1, 0B1, 0RECV_B0, 0B0\n"
                                           "1RECV_F0, 1F0, 1RECV_F1, 1F1, 1B1, 1SEND_B1, 1B0, 1SEND_B0\n";

/// Two stages in a row on each rank.
inline std::string two_in_a_row(rank_id ranks, std::uint32_t microbatches) {
  std::string text;
  for (rank_id r = 0; r < ranks; ++r) {
    const std::string first = std::to_string(2 * r);
    const std::string second = std::to_string(2 * r + 1);
    for (std::uint32_t m = 0; m < microbatches; ++m)
      text += first + "F" + std::to_string(m) + ", " + second + "F" + std::to_string(m) + ", ";
    for (std::uint32_t m = 0; m < microbatches; ++m)
      text += second + "B" + std::to_string(m) + ", " + first + "B" + std::to_string(m) + ", ";
    text += "\n";
  }
  return text;
}
// The first and the last stage on one rank, those between on the other.
inline const char* const folded_list =
    "0F0, 0F1, 3F0, 3B0, 3F1, 3B1, 0B0, 0B1\n1F0, 2F0, 1F1, 2F1, 2B0, 1B0, 2B1, 1B1\n";

/// Stages that take 1 ms forward and 2 ms backward, of which one is late once.
class waiting_stages final : public training_work {
 public:
  std::uint64_t activation_bytes(std::uint32_t) const override { return 1000; }
  task<> work(pipeline_action a, pipeline_memory) override {
    const bool forward = a.what == pipeline_action::kind::forward;
    const bool is_late = late && forward && a.stage == 1 && a.microbatch == 3;
    auto woken = co_await sleep_for(std::chrono::nanoseconds((forward ? 1_ms : 2_ms) + (is_late ? 10_ms : 0)));
    static_cast<void>(woken);
  }
  bool late = false;
};

/// The time of the fastest of several passes.
inline task<time_ns> fastest_pass(here* h, training_pipeline pipe, waiting_stages* mine) {
  constexpr int passes = 5;
  time_ns fastest = never;
  for (int i = 0; i < passes; ++i) {
    co_await meet(h);
    const call_stopwatch since(h);
    auto report = co_await pipe.run(*mine);
    static_cast<void>(report);
    fastest = std::min(fastest, since.took());
  }
  co_return fastest;
}

inline task<> late_stage(here* h) {
  training_pipeline_options op;
  op.name = "late stage";
  op.schedule = one_forward_one_backward(h->ranks, 8);
  op.configs = {direct()};
  op.timeout = std::chrono::nanoseconds(h->patience);
  training_pipeline pipe(h->self, op);
  waiting_stages mine;
  const time_ns on_time = co_await fastest_pass(h, pipe, &mine);
  mine.late = true;
  const time_ns with_a_late_one = co_await fastest_pass(h, pipe, &mine);
  if (!h->is_virtual()) co_return;  // a busy machine may wake a rank late
  CHECK(with_a_late_one - on_time <= 10'000'000);
  if (h->me == 1) CHECK(with_a_late_one > on_time);
}

inline task<> pass_of(here* h, training_pipeline pipe, const pipeline_schedule* schedule) {
  using namespace training_case;
  placed_part mine(schedule->stages, h->at);
  co_await mine.begin();
  pipeline_report report;
  if (!pipe.idle()) report = co_await pipe.run(mine);
  co_await h->at.reached();
  const std::vector<double> right = gradients_alone(schedule->stages, schedule->microbatches);
  for (std::uint32_t stage = 0; stage < schedule->stages; ++stage) {
    if (schedule->rank_of(stage) != h->me) continue;
    const double gradient = co_await mine.weight_gradient(stage);
    CHECK(std::abs(gradient - right[stage]) <= 4e-5 + 1e-5 * std::abs(right[stage]));
  }
  if (!pipe.idle()) CHECK(report.most_alive == estimate(*schedule).alive[h->me]);
  const double sent = co_await total(h, static_cast<double>(report.sent));
  CHECK(sent == static_cast<double>(schedule->messages()));
}

inline task<> pipelines(here* h) {
  std::vector<std::pair<std::string, pipeline_schedule>> all{
      {"gpipe", gpipe(h->ranks, 8)},
      {"1F1B", one_forward_one_backward(h->ranks, 8)},
      {"1F1B of 16", one_forward_one_backward(h->ranks, 16)},
      {"interleaved", interleaved(h->ranks, 8, 2)},
      {"interleaved by 4", interleaved(h->ranks, 8, 4)},
      {"own list", parse_schedule(h->ranks == 2 ? own_list_of_two : text_of(gpipe(h->ranks, 3))).value()},
      {"two in a row", parse_schedule(two_in_a_row(h->ranks, 5)).value()}};
  if (h->ranks == 2) all.emplace_back("folded", parse_schedule(folded_list).value());
  if (h->ranks > 2) all.emplace_back("1F1B of three", one_forward_one_backward(3, 8));  // a fourth has no part in it
  for (const auto& [name, schedule] : all) {
    training_pipeline_options op;
    op.name = name;
    op.schedule = schedule;
    op.configs = h->with_others({direct(), chunked(128, 2)});
    op.timeout = std::chrono::nanoseconds(h->patience);
    op.memory = h->at.memory();
    training_pipeline pipe(h->self, op);
    const auto one_pass = [h, pipe, of = &schedule] { return pass_of(h, pipe, of); };
    if (name == "1F1B") {  // the others make one pass, which is too short for trials
      co_await until_each_ran(h, name, one_pass);
    } else {
      co_await one_pass();
    }
  }
}

}  // namespace parley::tests::worked_cases
