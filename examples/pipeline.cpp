// A pipeline with one stage on each rank, which passes activations on. Each edge tunes its transfers for each message
// size while microbatches flow. With --tuned, each rank also finds out which of two ways to compute its stage is
// faster.
//
//     parley run -n 4 ./pipeline [--microbatches 400] [--width 65536] [--tuned]
//     ./pipeline --sim 16 --tuned
//
// A stage multiplies each number by its weight and adds its bias, so the last stage can compute the expected result.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace {

std::size_t microbatches = 400;
std::size_t width = 65'536;  // floats in a large activation; every fourth microbatch is small
bool tuned = false;
constexpr std::size_t small_width = 512;

std::size_t numbers_of(std::uint64_t microbatch) { return microbatch % 4 == 3 ? small_width : width; }
float input(std::uint64_t microbatch, std::size_t i) { return static_cast<float>((microbatch * 31 + i) % 1'000); }
float passed(std::size_t stage, float x) { return x * 0.5F + static_cast<float>(stage + 1); }

struct layer final : parley::pipeline_stage {
  layer(std::size_t s, std::size_t at_once) : stage(s), block(at_once) {}
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    auto* x = reinterpret_cast<float*>(activation.data());
    const std::size_t n = activation.size() / sizeof(float);
    for (std::size_t from = 0; from < n; from += block) {
      const std::size_t to = std::min(n, from + block);
      for (std::size_t i = from; i < to && stage == 0; ++i) x[i] = input(microbatch, i);
      for (std::size_t i = from; i < to; ++i) x[i] = passed(stage, x[i]);
    }
  }
  // Compute time on virtual ranks; in blocks it is two thirds of that of the whole payload.
  parley::time_ns modelled_ns(std::uint64_t, std::size_t bytes) const override {
    const auto whole = static_cast<parley::time_ns>(20'000 + bytes / 4);
    return block == whole_payload ? whole : whole * 2 / 3;
  }
  static constexpr std::size_t whole_payload = std::size_t{1} << 40U;
  std::size_t stage;
  std::size_t block;
};

// Wraps a stage; on the last rank it also checks the result.
struct checked final : parley::pipeline_work {
  checked(parley::pipeline_work& w, std::size_t n, bool is_last) : work_(w), stages(n), last(is_last) {}
  parley::task<> work(std::uint64_t microbatch, std::span<std::byte> activation) override {
    co_await work_.work(microbatch, activation);
    const auto* y = reinterpret_cast<const float*>(activation.data());
    for (std::size_t i = 0; last && i < activation.size() / sizeof(float); i += 97) {
      float right = input(microbatch, i);
      for (std::size_t s = 0; s < stages; ++s) right = passed(s, right);
      if (y[i] != right)
        parley::runtime::raise({parley::errc::config_failed, "number " + std::to_string(i) + " of microbatch " +
                                                                 std::to_string(microbatch) + " is wrong"});
    }
  }
  parley::pipeline_work& work_;
  std::size_t stages;
  bool last;
};

void print(const char* what, const parley::decision& d) {
  std::printf("%s %s, %s: %s, %s\n", what, d.op.c_str(), d.key.c_str(), d.config.c_str(), d.why.c_str());
}

parley::task<> rank_main(parley::rank& self) {
  parley::pipeline pipe(self, {.name = "layers",
                               .configs = {parley::configs::direct(), parley::configs::chunked(64 * 1024, 2),
                                           parley::configs::put(), parley::configs::get()}});
  layer whole(pipe.stage(), layer::whole_payload);
  layer in_blocks(pipe.stage(), 2'048);
  std::optional<parley::tuned_stage> either;
  if (tuned)
    either.emplace(self, parley::tuned_stage_options<parley::pipeline_work>{
                             .name = "layers", .ways = {{"whole", whole}, {"blocks", in_blocks}}});
  checked mine(tuned ? static_cast<parley::pipeline_work&>(*either) : whole, pipe.stages(), pipe.last());
  std::vector<std::uint64_t> bytes;
  for (std::uint64_t m = 0; m < microbatches; ++m) bytes.push_back(numbers_of(m) * sizeof(float));
  const parley::time_ns begin = self.where().precise_now();
  co_await pipe.run(bytes, mine);
  const double took_ms = static_cast<double>(self.where().precise_now() - begin) / 1e6;
  for (const std::uint64_t size : {small_width * sizeof(float), width * sizeof(float)}) {
    if (!pipe.last()) print("transfers of", pipe.outgoing().decision(size));
    if (tuned) print("computing", either->forward().decision(size));
  }
  if (pipe.last())
    std::printf("%zu microbatches through %zu stages in %.1f ms\n", bytes.size(), pipe.stages(), took_ms);
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("A pipeline of stages that pass activations on.");
  line.count("--microbatches", microbatches, "that go through");
  line.count("--width", width, "numbers of an activation");
  line.flag("--tuned", tuned, "let each rank find out which of two ways to compute its stage is faster");
  return line.run(argc, argv, rank_main);
}
