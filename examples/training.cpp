// A pipeline forward and backward, after a schedule: gradients are checked against a single process, idle time against the ideal.
//
//     parley run -n 4 ./training [--schedule 1f1b|gpipe|interleaved|FILE] [--chunks 2] [--microbatches 8] [--steps 20]
//                              [--width 32768]
//     ./training --sim 16 --microbatches 32
//     ./training --sim 4 --links free --steps 1     # exactly the schedule's makespan: 33 ms
//
// A rank's layers take 1 ms forward and 2 ms backward in virtual time; interleaved, it has them in so many chunks.
// FILE holds a list of actions per rank, such as `0F0, 0SEND_F0, 0RECV_B0, 0B0`.
#include <parley/parley.hpp>
#include <parley/simulation/program.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::size_t width = 32'768;                                 // numbers of an activation: 128 KiB
constexpr parley::time_ns modelled_forward_ns = 1'000'000;  // of all stages of a rank

std::string schedule_name = "1f1b";
std::uint32_t chunks = 2;
std::uint32_t microbatches = 8;
int steps = 20;

// Stage s is y = tanh(w_s x), element by element, and the loss is the sum of y^2 / 2 behind the last one.
struct layers final : parley::pipeline_stages {
  explicit layers(std::uint32_t n, std::uint32_t of_a_rank = 1) : stages(n), share(of_a_rank), gradient(n) {}
  static float weight(std::uint32_t stage) { return 0.5F + 0.03F * static_cast<float>(stage); }
  static float input(std::uint32_t microbatch, std::size_t i) {
    return std::sin(0.001F * static_cast<float>((microbatch + 1) * i % 100'003));
  }
  std::uint64_t activation_bytes(std::uint32_t) const override { return width * sizeof(float); }
  void forward(std::uint32_t stage, std::uint32_t microbatch, std::span<const std::byte> in,
               std::span<std::byte> out) override {
    const auto* x = reinterpret_cast<const float*>(in.data());
    auto* y = reinterpret_cast<float*>(out.data());
    for (std::size_t i = 0; i < width; ++i)
      y[i] = std::tanh(weight(stage) * (stage == 0 ? input(microbatch, i) : x[i]));
  }
  void backward(std::uint32_t stage, std::uint32_t microbatch, const parley::pipeline_memory& m) override {
    const auto* x = reinterpret_cast<const float*>(m.in.data());
    const auto* y = reinterpret_cast<const float*>(m.out.data());
    const auto* after = reinterpret_cast<const float*>(m.gradient_out.data());
    auto* before = reinterpret_cast<float*>(m.gradient_in.data());
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const float inside = (stage + 1 == stages ? y[i] : after[i]) * (1 - y[i] * y[i]);
      sum += inside * (stage == 0 ? input(microbatch, i) : x[i]);
      if (stage != 0) before[i] = inside * weight(stage);
    }
    gradient[stage] += sum;
  }
  parley::time_ns modelled_ns(const parley::pipeline_action& a) const override {
    return (a.what == parley::pipeline_action::kind::forward ? 1 : 2) * modelled_forward_ns / share;
  }
  std::uint32_t stages;
  std::uint32_t share;
  std::vector<double> gradient;
};

std::vector<double> gradients_alone(std::uint32_t stages) {
  layers all(stages);
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
  return all.gradient;
}

parley::pipeline_schedule schedule_for(parley::rank_id ranks) {
  if (schedule_name == "1f1b") return parley::one_forward_one_backward(ranks, microbatches);
  if (schedule_name == "gpipe") return parley::gpipe(ranks, microbatches);
  if (schedule_name == "interleaved") return parley::interleaved(ranks, microbatches, chunks);
  const std::ifstream file(schedule_name);
  if (!file) parley::runtime::raise({parley::errc::bad_argument, "cannot read the schedule " + schedule_name});
  std::ostringstream text;
  text << file.rdbuf();
  return parley::parse_schedule(text.str()).value();
}

parley::task<> rank_main(parley::rank& self) {
  const parley::pipeline_schedule schedule = schedule_for(self.world_size());
  microbatches = schedule.microbatches;
  parley::training pipe = self.declare(parley::training_pipeline{.name = "layers", .schedule = schedule});
  layers mine(schedule.stages, schedule.stages / self.world_size());
  parley::pipeline_report report;
  for (int step = 0; step < steps; ++step) {
    mine.gradient.assign(schedule.stages, 0);
    report = co_await pipe.run(mine);
  }
  const std::vector<double> right = gradients_alone(schedule.stages);
  for (std::uint32_t s = 0; s < schedule.stages; ++s) {
    if (schedule.rank_of(s) != self.id() || mine.gradient[s] == right[s]) continue;
    parley::runtime::raise({parley::errc::config_failed, "the gradient of stage " + std::to_string(s) + " is " +
                                                             std::to_string(mine.gradient[s]) + " instead of " +
                                                             std::to_string(right[s])});
  }
  std::printf("rank %u: last step %.3f ms, idle %.1f %% (ideal %.1f %%), %u microbatches alive, %llu messages\n",
              self.id(), static_cast<double>(report.elapsed_ns) / 1e6, 100 * report.idle_share,
              100 * report.ideal_idle_share, report.most_alive, static_cast<unsigned long long>(report.sent));
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--schedule") schedule_name = argv[i + 1];
    if (name == "--chunks") chunks = static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (name == "--microbatches") microbatches = static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (name == "--width") width = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--steps") steps = std::atoi(argv[i + 1]);
  }
  return parley::simulation::run(argc, argv, rank_main);  // parley::run unless --sim N is there
}
