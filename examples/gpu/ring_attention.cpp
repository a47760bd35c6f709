// Attention over a sequence that several GPUs share, one process per GPU. Keys and values go around the ring while a
// fused kernel on each GPU computes with those that are there. In turns, the program times the same blocks without
// communication.
//
//     parley run -n 2 -- gpu_ring_attention [--seqlen 65536] [--heads 32] [--head-dim 128] [--causal] [--dtype bf16]
//         [-n 5] [-w 5] [--only put]
//
// --seqlen rows on all GPUs together, --head-dim 16, 32, 64 or 128, --dtype fp32 or bf16, -n calls per round, -w
// calls before them, --only the one config that is tried in addition to the default. Times are medians of five
// rounds, on the slowest rank. TFLOP/s are per GPU, and count half of all operations if --causal is given.
//
// Rows of the result are compared with those of a simple kernel that works in double precision over the whole
// sequence. Each round has its own sequence and compares the result of its first call, which is not timed: a kernel
// that starts before its keys or values have arrived finds those of the previous round.
#include "attention.hpp"
#include "device.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using examples::device_array;
using examples::must;
using parley::task;

struct settings {
  std::uint64_t sequence = 65536;
  std::uint64_t heads = 32;
  std::uint64_t dimensions = 128;
  bool causal = false;
  std::string dtype = "bf16";
  int calls = 5;
  int before = 5;
  std::string only;  // the one config besides the default
} options;

constexpr int rounds = 5;

struct larger {
  double operator()(double a, double b) const noexcept { return std::max(a, b); }
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Distance of the results from those of the simple kernel.
struct deviation {
  double largest = 0;
  double allowed = 0;
  double relative = 0;  ///< root mean square of the errors over that of the results
};

template <class T>
class attention_rank {
 public:
  attention_rank(parley::job& here, parley::transports::cuda_space& space, const parley::ring_attention& ring,
                 parley::collective all)
      : gpu_(*here.gpu()), space_(space), self_(here.self()), all_(std::move(all)), ring_(ring),
        shape_{.heads = options.heads,
               .rows = options.sequence / self_.world_size(),
               .dimensions = options.dimensions,
               .causal = options.causal},
        q_(space, shape_.elements()), k_(space, shape_.elements()), v_(space, shape_.elements()),
        out_(space, shape_.elements()), maximum_(space, shape_.heads * shape_.rows),
        weight_(space, shape_.heads * shape_.rows), weighted_(space, shape_.elements()), plan_(ring_.plan<T>(shape_)),
        registered_k_(plan_.registered(k_.all())), registered_v_(plan_.registered(v_.all())) {}

  /// Fills in queries, keys and values that differ from those of the previous round.
  void begin(int round) {
    first_seed_ = 3 * static_cast<std::uint64_t>(round) + 1;
    std::uint64_t seed = first_seed_;
    for (const device_array<T>* const array : {&q_, &k_, &v_})
      must(examples::launch_numbers(array->data(), type, shape_.heads, shape_.rows, shape_.dimensions,
                                    {seed++, self_.id() * shape_.rows}, stream_),
           "kernel");
  }

  task<> tune() {
    if (self_.world_size() > 1) co_await ring_.template tune<T>(shape_);
  }
  /// Seconds per call, on the slowest rank.
  task<double> in_a_ring(int calls) {
    const parley::ops::device_attention_block<T> kernel = [this](const parley::ops::device_block<T>& b) { launch(b); };
    co_await meet();
    const parley::time_ns began = self_.where().precise_now();
    for (int i = 0; i < calls; ++i)
      co_await plan_.template forward<T>(q_.all(), k_.all(), v_.all(), out_.all(), stream(), kernel);
    const double mine = co_await since(began, calls);
    co_return mine;
  }
  task<double> alone(int calls) {
    co_await meet();
    const std::uint64_t me = self_.id();
    const std::uint64_t ranks = self_.world_size();
    const std::uint64_t last = shape_.causal ? me : ranks - 1;
    const parley::time_ns began = self_.where().precise_now();
    for (int i = 0; i < calls; ++i) {
      for (std::uint64_t step = 0; step <= last; ++step)
        launch({shape_, q_.all(), k_.all(), v_.all(), out_.all(), me * shape_.rows,
                (me + ranks - step) % ranks * shape_.rows, step == 0, step == last, stream()});
    }
    const double mine = co_await since(began, calls);
    co_return mine;
  }
  /// Compares rows of the last call's result on this rank with the simple kernel's.
  task<deviation> compare() {
    examples::dense_rows d{.heads = shape_.heads,
                           .sequence = options.sequence,
                           .dimensions = shape_.dimensions,
                           .first = self_.id() * shape_.rows,
                           .count = std::min<std::uint64_t>(shape_.rows, 32),
                           .causal = shape_.causal,
                           .seed_q = first_seed_,
                           .seed_k = first_seed_ + 1,
                           .seed_v = first_seed_ + 2};
    if (d.count > 1) d.step = (shape_.rows - 1) / (d.count - 1);
    const std::size_t results = d.heads * d.count * d.dimensions;
    const device_array<double> exact(space_, results);
    const device_array<double> rounded(space_, results);
    const device_array<double> scores(space_, d.heads * d.count * d.sequence);
    must(examples::launch_dense(exact.data(), scores.data(), d, type, stream_), "kernel");
    must(examples::launch_dense_rounded(rounded.data(), reinterpret_cast<float*>(scores.data()), d, type, stream_),
         "kernel");
    std::vector<double> right(results), dense(results);
    std::vector<T> seen(results);
    const std::size_t row_bytes = d.dimensions * sizeof(T);
    for (std::uint64_t head = 0; head < d.heads; ++head)
      must(cudaMemcpy2DAsync(seen.data() + head * d.count * d.dimensions, row_bytes,
                             out_.data() + head * shape_.rows * d.dimensions, d.step * row_bytes, row_bytes, d.count,
                             cudaMemcpyDeviceToHost, stream_),
           "cudaMemcpy2D");
    auto there = co_await parley::transports::reached(gpu_, stream());
    there.value();
    co_await space_.copy(std::as_writable_bytes(std::span(right)), exact.bytes());
    co_await space_.copy(std::as_writable_bytes(std::span(dense)), rounded.bytes());
    deviation found;
    double errors = 0;
    double squares = 0;
    for (std::size_t i = 0; i < results; ++i) {
      const double off = std::abs(static_cast<double>(static_cast<float>(seen[i])) - right[i]);
      if (!(off <= found.largest)) found.largest = off;  // also true for NaN
      found.allowed = std::max(found.allowed, std::abs(dense[i] - right[i]));
      errors += off * off;
      squares += right[i] * right[i];
    }
    found.allowed = std::is_same_v<T, float> ? 2e-6 : 2.5 * found.allowed + 2e-3;
    found.relative = std::sqrt(errors / squares);
    co_return found;
  }
  std::string config() const {
    if (self_.world_size() == 1) return "none";
    return ring_.to_next().decision(shape_.elements() * sizeof(T)).config;
  }
  /// Element-wise maximum over all ranks.
  task<> largest_of_all(std::span<double> values) {
    if (!all_.idle()) co_await all_.template all_reduce<larger>(values);
  }

 private:
  static constexpr examples::element type =
      std::is_same_v<T, float> ? examples::element::fp32 : examples::element::bf16;
  parley::transports::cuda_stream stream() const noexcept { return static_cast<cudaStream_t>(stream_); }
  void launch(const parley::ops::device_block<T>& b) {
    must(examples::launch_attention({.q = b.q.data(),
                                     .k = b.k.data(),
                                     .v = b.v.data(),
                                     .out = b.out.data(),
                                     .maximum = maximum_.data(),
                                     .weight = weight_.data(),
                                     .weighted = weighted_.data(),
                                     .heads = b.shape.heads,
                                     .rows = b.shape.rows,
                                     .dimensions = b.shape.dimensions,
                                     .diagonal = b.shape.causal && b.first_key == b.first_query,
                                     .first = b.first,
                                     .last = b.last},
                                    type, static_cast<cudaStream_t>(b.stream)),
         "kernel");
  }
  task<> meet() {
    double nothing = 0;
    co_await largest_of_all(std::span(&nothing, 1));
  }
  task<double> since(parley::time_ns began, int calls) {
    auto there = co_await parley::transports::reached(gpu_, stream());
    there.value();
    double took = static_cast<double>(self_.where().precise_now() - began) / 1e9 / calls;
    co_await largest_of_all(std::span(&took, 1));
    co_return took;
  }

  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  parley::collective all_;
  parley::ring_attention ring_;
  parley::attention_shape shape_;
  examples::stream stream_;
  device_array<T> q_, k_, v_, out_;
  device_array<float> maximum_, weight_, weighted_;
  std::uint64_t first_seed_ = 0;  // seed of q; k and v use the next two
  parley::ops::attention_plan plan_;
  parley::actors::registered_memory registered_k_, registered_v_;
};

/// Compares the last call's result and updates the worst deviation so far; throws if the deviation is too large.
template <class T>
task<> check(attention_rank<T>& mine, deviation& worst) {
  const deviation found = co_await mine.compare();
  double values[] = {found.largest / found.allowed, found.largest, found.allowed, found.relative};
  co_await mine.largest_of_all(values);
  const double limit = std::is_same_v<T, float> ? 1e-4 : 1e-2;
  if (!(values[0] <= 1) || !(values[3] <= limit))
    parley::runtime::raise({parley::errc::config_failed,
                            "the result is up to " + std::to_string(values[1]) + " from the simple kernel's, and " +
                                std::to_string(values[3]) + " relative, where " + std::to_string(values[2]) + " and " +
                                std::to_string(limit) + " are allowed"});
  worst = {std::max(worst.largest, values[1]), values[2], std::max(worst.relative, values[3])};
}

template <class T>
task<> run_attention(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  const parley::rank_id ranks = self.world_size();
  if (options.sequence % ranks != 0)
    parley::runtime::raise({parley::errc::bad_argument, "--seqlen is not a multiple of the number of ranks"});
  must(examples::load_attention_kernels(), "loading kernels");
  std::vector<parley::config_ptr> configs{parley::configs::direct(), parley::configs::put(), parley::configs::get()};
  if (!options.only.empty())
    std::erase_if(configs, [](const auto& one) { return one->id() != "direct" && one->id() != options.only; });
  const parley::ring_attention ring(self, {.name = "attention", .configs = std::move(configs), .memory = &space});
  parley::collective all(self, {.name = "times"});
  attention_rank<T> mine(here, space, ring, all);
  co_await mine.tune();

  std::vector<double> together, alone;
  deviation worst;
  for (int round = 0; round <= rounds; ++round) {
    mine.begin(round);
    const double first_s = co_await mine.in_a_ring(1);
    static_cast<void>(first_s);
    co_await check(mine, worst);
    const int calls = round == 0 ? std::max(options.before, 1) : options.calls;
    const double ring_s = co_await mine.in_a_ring(calls);
    if (round == 0 || round == rounds) co_await check(mine, worst);  // before other calls overwrite the result
    const double alone_s = co_await mine.alone(calls);
    if (round == 0) continue;
    together.push_back(ring_s);
    alone.push_back(alone_s);
  }
  if (self.id() != 0) co_return;
  const double ring_s = median(together);
  const double alone_s = median(alone);
  const auto sequence = static_cast<double>(options.sequence);
  const double operations = 4 * sequence * sequence * static_cast<double>(options.heads * options.dimensions) /
                            (options.causal ? 2 : 1) / ranks / 1e12;
  std::printf("#%9s %6s %9s %6s %7s %5s %10s %8s %12s %8s %8s %10s %10s %10s  %s\n", "seqlen", "heads", "head-dim",
              "dtype", "causal", "GPUs", "time (ms)", "TFLOP/s", "blocks (ms)", "TFLOP/s", "ratio", "max error",
              "allowed", "rms, rel.", "config");
  std::printf("%10llu %6llu %9llu %6s %7s %5u %10.3f %8.1f %12.3f %8.1f %8.3f %10.2e %10.2e %10.2e  %s\n",
              static_cast<unsigned long long>(options.sequence), static_cast<unsigned long long>(options.heads),
              static_cast<unsigned long long>(options.dimensions), options.dtype.c_str(), options.causal ? "yes" : "no",
              ranks, ring_s * 1e3, operations / ring_s, alone_s * 1e3, operations / alone_s, alone_s / ring_s,
              worst.largest, worst.allowed, worst.relative, mine.config().c_str());
}

task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  if (options.dtype == "fp32") return run_attention<float>(here, space);
  return run_attention<parley::bf16>(here, space);
}

}  // namespace

int main(int argc, char** argv) {
  examples::option_list known;
  known.number("--seqlen", options.sequence, std::uint64_t{1}).number("--heads", options.heads, std::uint64_t{1});
  known.number("--head-dim", options.dimensions, std::uint64_t{1}).flag("--causal", options.causal);
  known.one_of("--dtype", options.dtype, {"fp32", "bf16"}).number("-n", options.calls, 1).number("-w", options.before);
  known.text("--only", options.only).take(argc, argv);
  parley::job_options job;
  job.settings.plan.budget_fraction = 0.5;  // the program has seconds, not days, to agree
  return examples::run_on_gpus(rank_main, std::move(job));
}
