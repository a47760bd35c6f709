// A pipeline that computes forward and backward by a schedule. Gradients are compared with those of a single process,
// and idle time with the ideal.
//
//     parley run -n 4 ./training [--schedule 1f1b|gpipe|interleaved|FILE] [--chunks 2] [--microbatches 8] [--steps 20]
//                              [--width 32768] [--tuned]
//     ./training --sim 16 --microbatches 32
//     ./training --sim 4 --links free --steps 1     # exactly the schedule's makespan: 33 ms
//
// In virtual time, all layers of a rank take 1 ms forward and 2 ms backward; the interleaved schedule splits them
// into --chunks stages. FILE holds a list of actions per rank, such as `0F0, 0SEND_F0, 0RECV_B0, 0B0`. With --tuned,
// a rank has two ways to compute its layers, and finds the faster one while it also tunes its transfers. In virtual
// time the second way takes 0.7 ms forward and 1.4 ms backward.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::size_t width = 32'768;                                 // floats in an activation: 128 KiB
constexpr parley::time_ns modelled_forward_ns = 1'000'000;  // of all stages of a rank together

std::string schedule_name = "1f1b";
std::uint32_t chunks = 2;
std::uint32_t microbatches = 8;
int steps = 20;
bool tuned = false;

// Stage s computes y = tanh(w_s x), element by element. The loss is the sum of y^2 / 2 over the last stage's output.
struct layers final : parley::pipeline_stages {
  layers(std::uint32_t n, std::uint32_t of_a_rank, std::vector<double>& sums, std::size_t at_once = whole)
      : stages(n), share(of_a_rank), block(at_once), gradient(sums) {}
  static float weight(std::uint32_t stage) { return 0.5F + 0.03F * static_cast<float>(stage); }
  static float input(std::uint32_t microbatch, std::size_t i) {
    return std::sin(0.001F * static_cast<float>((microbatch + 1) * i % 100'003));
  }
  std::uint64_t activation_bytes(std::uint32_t) const override { return width * sizeof(float); }
  void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
               std::span<std::byte> out) override {
    const auto* x = reinterpret_cast<const float*>(in.data());
    auto* y = reinterpret_cast<float*>(out.data());
    for (std::size_t from = 0; from < width; from += block) {
      for (std::size_t i = from; i < std::min(width, from + block); ++i)
        y[i] = std::tanh(weight(stage) * (stage == 0 ? input(microbatch, i) : x[i]));
    }
  }
  void backward(std::uint32_t stage, std::uint32_t microbatch, const parley::pipeline_memory& m) override {
    const auto* x = reinterpret_cast<const float*>(m.in.data());
    const auto* y = reinterpret_cast<const float*>(m.out.data());
    const auto* after = reinterpret_cast<const float*>(m.gradient_out.data());
    auto* before = reinterpret_cast<float*>(m.gradient_in.data());
    double sum = 0;
    for (std::size_t from = 0; from < width; from += block) {
      for (std::size_t i = from; i < std::min(width, from + block); ++i) {
        const float inside = (stage + 1 == stages ? y[i] : after[i]) * (1 - y[i] * y[i]);
        sum += inside * (stage == 0 ? input(microbatch, i) : x[i]);
        if (stage != 0) before[i] = inside * weight(stage);
      }
    }
    gradient[stage] += sum;
  }
  parley::time_ns modelled_ns(const parley::pipeline_action& a) const override {
    const parley::time_ns plain =
        (a.what == parley::pipeline_action::kind::forward ? 1 : 2) * modelled_forward_ns / share;
    return block == whole ? plain : plain * 7 / 10;
  }
  static constexpr std::size_t whole = std::size_t{1} << 40U;
  std::uint32_t stages;
  std::uint32_t share;
  std::size_t block;  // floats computed at a time
  std::vector<double>& gradient;
};

std::vector<double> gradients_alone(std::uint32_t stages) {
  std::vector<double> gradient_of(stages);
  layers all(stages, 1, gradient_of);
  for (std::uint32_t m = 0; m < microbatches; ++m) {
    std::vector<std::vector<float>> x(stages + 1, std::vector<float>(width));
    for (std::uint32_t s = 0; s < stages; ++s)
      all.forward(s, m, std::as_bytes(std::span(x[s])), std::as_writable_bytes(std::span(x[s + 1])));
    std::vector<float> gradient;
    for (std::uint32_t s = stages; s-- > 0;) {
      std::vector<float> before(s == 0 ? 0 : width);
      all.backward(s, m,
                   {std::as_bytes(std::span(x[s])), std::as_writable_bytes(std::span(x[s + 1])),
                    std::as_bytes(std::span(gradient)), std::as_writable_bytes(std::span(before))});
      gradient = std::move(before);
    }
  }
  return gradient_of;
}

void print(const parley::role_op& choice) {
  const parley::decision d = choice.decision(width * sizeof(float));
  std::printf("%s: %s, %s\n", d.op.c_str(), d.config.c_str(), d.why.c_str());
}

parley::pipeline_schedule schedule_for(parley::rank_id ranks) {
  if (schedule_name == "1f1b") return parley::one_forward_one_backward(ranks, microbatches);
  if (schedule_name == "gpipe") return parley::gpipe(ranks, microbatches);
  if (schedule_name == "interleaved") return parley::interleaved(ranks, microbatches, chunks);
  const std::ifstream file(schedule_name);
  if (!file) parley::runtime::raise({parley::errc::bad_argument, "cannot read the schedule " + schedule_name});
  std::ostringstream text;
  text << file.rdbuf();
  const auto read = parley::parse_schedule(text.str());
  if (!read) parley::runtime::raise({read.code(), schedule_name + ": " + read.reason().text()});
  return read.value();
}

parley::task<> rank_main(parley::rank& self) {
  const parley::pipeline_schedule schedule = schedule_for(self.world_size());
  if (schedule.ranks.size() != self.world_size())
    parley::runtime::raise({parley::errc::bad_argument,
                            "the schedule " + schedule_name + " is for " + std::to_string(schedule.ranks.size()) +
                                " ranks, and this job has " + std::to_string(self.world_size())});
  microbatches = schedule.microbatches;
  parley::training_pipeline pipe(self, {.name = "layers", .schedule = schedule});
  std::vector<double> gradient(schedule.stages);
  layers plain(schedule.stages, schedule.stages / self.world_size(), gradient);
  layers blocks(schedule.stages, schedule.stages / self.world_size(), gradient, 4'096);
  std::optional<parley::tuned_stages> either;
  if (tuned)
    either.emplace(self, parley::tuned_stage_options<parley::training_work>{
                             .name = "layers", .ways = {{"plain", plain}, {"blocks", blocks}}});
  parley::training_work& mine = tuned ? static_cast<parley::training_work&>(*either) : plain;
  parley::pipeline_report report;
  for (int step = 0; step < steps; ++step) {
    gradient.assign(schedule.stages, 0);
    report = co_await pipe.run(mine);
  }
  const std::vector<double> right = gradients_alone(schedule.stages);
  for (std::uint32_t s = 0; s < schedule.stages; ++s) {
    if (schedule.rank_of(s) != self.id() || gradient[s] == right[s]) continue;
    parley::runtime::raise({parley::errc::config_failed, "the gradient of stage " + std::to_string(s) + " is " +
                                                             std::to_string(gradient[s]) + " instead of " +
                                                             std::to_string(right[s])});
  }
  std::printf("rank %u: last step %.3f ms, idle %.1f %% (ideal %.1f %%), %u microbatches alive, %llu messages\n",
              self.id(), static_cast<double>(report.elapsed_ns) / 1e6, 100 * report.idle_share,
              100 * report.ideal_idle_share, report.most_alive, static_cast<unsigned long long>(report.sent));
  if (!tuned) co_return;
  print(either->forward());
  print(either->backward());
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("A pipeline forward and backward, after a schedule.");
  line.word("--schedule", schedule_name,
            "1f1b, gpipe, interleaved, or a file with a list of actions per rank (parley/schedule.hpp)");
  line.count("--chunks", chunks, "stages of a rank, interleaved");
  line.count("--microbatches", microbatches, "of a step, unless a file says");
  line.count("--width", width, "numbers of an activation");
  line.count("--steps", steps, "of training");
  line.flag("--tuned", tuned, "let each rank find out which of two ways to compute its layers is faster");
  return line.run(argc, argv, rank_main);
}
