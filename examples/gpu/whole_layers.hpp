#pragma once
// Shared by the examples in which matrix products overlap their communication and are tuned as a whole on all ranks:
// options, configs, checks, and the comparison with the best of an exhaustive search, NCCL and one product, and the
// product alone.
#include "blocking_nccl.hpp"
#include "device.hpp"
#include "matrices.hpp"
#include "matrix_products.hpp"
#include "peer_memory.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// C (m x n) = A (m x k) times B (k x n), over all ranks together.
struct layer_options {
  std::uint64_t m = 8192;
  std::uint64_t n = 8192;
  std::uint64_t k = 8192;
  int calls = 20;
  int before = 5;
  void take(int argc, char** argv) {
    option_list known;
    known.number("--M", m, std::uint64_t{1}).number("--N", n, std::uint64_t{1}).number("--K", k, std::uint64_t{1});
    known.number("--iters", calls, 1).number("--warmup", before, 1).take(argc, argv);
  }
};

struct way_to_do_it {
  copy_plan copies;
  unsigned streams = 1;  ///< number of streams for products
  std::size_t tile = 0;
  std::string id() const {
    return std::string(copies.way == copy_way::pull ? "pull" : "push") + "(chunks=" + std::to_string(copies.chunks) +
           " step=" + std::to_string(copies.step) + " streams=" + std::to_string(streams) +
           " tile=" + std::to_string(tile) + ")";
  }
};

inline std::vector<way_to_do_it> all_ways(rank_id world, std::size_t tiles) {
  std::vector<way_to_do_it> all;
  std::vector<rank_id> steps{1};
  if (world > 2) steps.push_back(world - 1);  // the opposite direction
  for (const copy_way way : {copy_way::pull, copy_way::push}) {
    for (const unsigned chunks : {1U, 2U, 4U}) {
      for (const rank_id step : steps) {
        for (const unsigned streams : {1U, 2U}) {
          for (std::size_t tile = 0; tile < tiles; ++tile) all.push_back({{way, chunks, step}, streams, tile});
        }
      }
    }
  }
  return all;
}

/// A layer on one rank. Its product has `columns` columns, each element a sum over `inner` products; a shard has m /
/// P rows.
class whole_layer {
 public:
  /// The names that the layer has in its output and in the tuner.
  struct titles {
    const char* title;
    const char* function;
    const char* kernel;
    const char* by_nccl;
  };

  whole_layer(const whole_layer&) = delete;
  whole_layer& operator=(const whole_layer&) = delete;
  virtual ~whole_layer() = default;

  /// Each enqueues one call.
  virtual void fused(const way_to_do_it& how) = 0;
  virtual void by_nccl(std::uint16_t* into) = 0;
  virtual void alone() = 0;

  task<> meet() {
    co_await meet_peers();
    co_await look_for_shared();
    if (!shared_) co_await nccl_.meet(&self_);
    // Run each kernel once before any stream waits for another rank, because CUDA waits for all streams when it loads
    // a kernel.
    if (!shared_) by_nccl(c_.data());
    static_cast<void>(multiply_right(seed_of_weights, right_.data()));
    for (const std::uint64_t rows : {options_.m, rows_, rows_ / 2, rows_ / 4}) {
      tiles_ = std::min(tiles_, products_.tiles(rows));
      for (std::size_t tile = 0; tile < tiles_; ++tile) multiply_once(rows, tile);
    }
    co_await reached();
    double fewest = -static_cast<double>(tiles_);
    co_await largest_of_all(std::span(&fewest, 1));
    tiles_ = static_cast<std::size_t>(-fewest);
  }
  /// True if ranks share a GPU, which NCCL refuses.
  bool shared() const noexcept { return shared_; }
  /// The number of cuBLASLt algorithms that every rank has for each of the products, at most three.
  std::size_t tiles() const noexcept { return tiles_; }

  /// Returns the number of elements in which a call's result differs from a single product that this rank makes alone. If
  /// `first`, also compares that product with a simple kernel's, and NCCL's result with that product, and adds the
  /// elements that differ. Results are overwritten first, so that an old result cannot pass.
  task<std::uint64_t> wrong(const way_to_do_it& how, std::uint64_t seed, bool first) {
    must(cudaMemsetAsync(count_.data(), 0, sizeof(unsigned long long), main()), "cudaMemset");
    make(seed, numbers_for::checks);
    forget_result();
    fused(how);
    const simple_product right = multiply_right(seed, right_.data());
    count_different();
    if (first) must(launch_count_wrong(right_.data(), right, count_.data(), main()), "kernel");
    if (first && !shared_) {
      forget_result();
      by_nccl(c_.data());
      count_different();
    }
    co_await reached();
    unsigned long long count = 0;
    co_await space_.copy(std::as_writable_bytes(std::span(&count, 1)), count_.bytes());
    co_return count;
  }
  enum class numbers_for : std::uint8_t { checks, times };
  /// Makes this rank's part of A.
  virtual void make(std::uint64_t seed, numbers_for what) = 0;

  /// Seconds per call, on the slowest rank.
  task<double> seconds(std::function<void()> enqueue, int calls) {
    double nothing = 0;
    co_await largest_of_all(std::span(&nothing, 1));
    const parley::time_ns began = self_.where().precise_now();
    for (int i = 0; i < calls; ++i) enqueue();
    co_await reached();
    double took = static_cast<double>(self_.where().precise_now() - began) / 1e9 / calls;
    co_await largest_of_all(std::span(&took, 1));
    co_return took;
  }
  task<> reached() { return calls_over(main()); }
  task<> largest_of_all(std::span<double> values) {
    if (!all_.idle()) co_await all_.all_reduce<larger>(values);
  }
  const titles& words() const noexcept { return words_; }
  const layer_options& options() const noexcept { return options_; }
  parley::rank& self() const noexcept { return self_; }
  parley::kernel_key key() const { return {{"m", options_.m}, {"n", columns_}, {"k", inner_}}; }
  /// Operations of a call on one rank, in units of 1e12.
  double operations() const noexcept {
    return 2.0 * static_cast<double>(options_.m) * static_cast<double>(columns_) * static_cast<double>(inner_) / 1e12;
  }
  std::uint16_t* result() const noexcept { return c_.data(); }

 protected:
  static constexpr std::uint64_t element_bytes = 2;
  static constexpr std::uint64_t seed_of_weights = 1;

  struct product {
    std::uint64_t columns = 0;
    std::uint64_t inner = 0;
  };
  whole_layer(titles words, parley::job& here, parley::transports::cuda_space& space, const layer_options& o, product p)
      : words_(words), options_(o), gpu_(*here.gpu()), space_(space), self_(here.self()),
        all_(self_, {.name = "times"}), rows_(o.m / self_.world_size()), columns_(p.columns), inner_(p.inner),
        products_(columns_, inner_), b_(space, columns_ * inner_), c_(space, o.m * o.n / self_.world_size()),
        right_(space, c_.size()), count_(space, 1),
        workspaces_{device_array<std::byte>(space, matrix_products::workspace_bytes),
                    device_array<std::byte>(space, matrix_products::workspace_bytes)} {}

  virtual task<> meet_peers() = 0;
  /// Waits for all calls in that stream; throws `peer_failed` if a rank is gone.
  virtual task<> calls_over(parley::transports::cuda_stream s) = 0;
  /// Multiplies that many rows of the present contents of memory.
  virtual void multiply_once(std::uint64_t rows, std::size_t tile) = 0;
  /// Makes the result of a call with that seed without other ranks, and returns what a simple kernel needs to check
  /// it.
  virtual simple_product multiply_right(std::uint64_t seed, std::uint16_t* into) = 0;

  cudaStream_t main() const noexcept { return streams_[0]; }
  cudaStream_t stream_of(unsigned lane) const noexcept { return streams_[lane]; }
  std::uint64_t rows() const noexcept { return rows_; }
  std::uint16_t* b() const noexcept { return b_.data(); }
  blocking_nccl& nccl() noexcept { return nccl_; }
  void* workspace(unsigned lane) const noexcept { return workspaces_[lane].data(); }
  void multiply(const void* a, void* into, std::uint64_t count, std::size_t tile, unsigned lane) {
    products_.multiply(a, b_.data(), into, count, tile, workspace(lane), stream_of(lane));
  }
  /// The simple kernel checks about this many rows.
  static constexpr std::uint64_t looked_at = 61;

 private:
  struct larger {
    double operator()(double a, double b) const noexcept { return std::max(a, b); }
  };
  void forget_result() { must(cudaMemsetAsync(c_.data(), 0xff, c_.bytes().size(), main()), "cudaMemset"); }
  void count_different() {
    must(launch_count_different(c_.data(), right_.data(), c_.size(), count_.data(), main()), "kernel");
  }
  task<> look_for_shared() {
    const auto& gpu = gpu_.driver().devices()[static_cast<std::size_t>(gpu_.device())];
    std::vector<double> gpus(self_.world_size());
    gpus[self_.id()] = 1.0 + static_cast<double>(std::hash<std::string>()(gpu.uuid) >> 12U);
    co_await largest_of_all(gpus);
    std::ranges::sort(gpus);
    shared_ = std::ranges::adjacent_find(gpus) != gpus.end();
  }

  titles words_;
  layer_options options_;
  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  parley::collective all_;
  std::uint64_t rows_;
  std::uint64_t columns_;
  std::uint64_t inner_;
  std::size_t tiles_ = 3;
  bool shared_ = false;
  matrix_products products_;
  device_array<std::uint16_t> b_, c_, right_;
  device_array<unsigned long long> count_;
  std::array<device_array<std::byte>, 2> workspaces_;
  std::array<stream, 2> streams_;
  blocking_nccl nccl_;
};

using fused_kernel = parley::tunable_op<task<>(whole_layer*)>;

// CUDA blocks a thread that enqueues more than a stream can hold. If that stream waited for a rank that is gone, this
// thread would never hear of the loss. The function therefore waits for the stream every 64 calls.
inline task<> calls_of(whole_layer* l, way_to_do_it how) {
  constexpr int most_at_once = 64;
  for (int i = 1; i < l->options().calls; ++i) {
    l->fused(how);
    if (i % most_at_once == 0) co_await l->reached();
  }
  l->fused(how);
  co_await l->reached();
}
inline task<> tuned_calls(fused_kernel* kernel, whole_layer* l) { co_await (*kernel)(l); }

inline fused_kernel kernel_of(whole_layer& l, const std::vector<way_to_do_it>& ways) {
  fused_kernel::options o;
  o.name = l.words().kernel;
  o.key = [](whole_layer* layer) { return layer->key(); };
  for (const way_to_do_it& how : ways)
    o.implementations.push_back({how.id(), [how](whole_layer* layer) { return calls_of(layer, how); }});
  return fused_kernel(l.self().kernels(), std::move(o));
}

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Runs all calls in turns, in nine rounds, and returns the median time of each in seconds.
inline task<std::vector<double>> medians(whole_layer* l, std::vector<std::function<void()>> calls) {
  constexpr int rounds = 9;
  std::vector<std::vector<double>> times(calls.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const double one = co_await l->seconds(calls[i], round < 0 ? l->options().before : l->options().calls);
      if (round >= 0) times[i].push_back(one);
    }
  }
  std::vector<double> middles;
  for (auto& t : times) middles.push_back(median(std::move(t)));
  co_return middles;
}

/// Throws `config_failed` if an element is wrong on any rank.
inline task<> check(whole_layer* l, const std::vector<way_to_do_it>* ways) {
  double wrong = 0;
  std::uint64_t seed = 1;
  for (const way_to_do_it& how : *ways) {
    ++seed;
    const std::uint64_t here_wrong = co_await l->wrong(how, seed, &how == &ways->front());
    wrong += static_cast<double>(here_wrong);
  }
  co_await l->largest_of_all(std::span(&wrong, 1));
  if (wrong != 0) parley::runtime::raise({parley::errc::config_failed, std::to_string(wrong) + " elements are wrong"});
  l->make(seed, whole_layer::numbers_for::times);
}

/// Checks all configs, tunes the layer, and prints a table on rank 0.
inline task<> tune_and_measure(whole_layer* l) {
  parley::rank& self = l->self();
  co_await l->meet();
  const std::vector<way_to_do_it> ways = all_ways(self.world_size(), l->tiles());
  co_await check(l, &ways);

  fused_kernel kernel = kernel_of(*l, ways);
  // Interleaved, because a GPU slows down after it has multiplied for a while.
  constexpr auto in_turns = parley::tuning::contextual_order::interleaved;
  parley::contextual whole(self, {.name = l->words().function, .iterations = 5, .warm_ups = 1, .order = in_turns});
  const auto thunk = [&] { return tuned_calls(&kernel, l); };
  co_await whole.run(thunk);
  const std::string agreed = whole.best(l->words().kernel, parley::tuning::parameters_text(l->key()).value());

  const way_to_do_it* tuned = &ways.front();
  const way_to_do_it* best = nullptr;
  double best_s = std::numeric_limits<double>::infinity();
  for (const way_to_do_it& how : ways) {
    if (how.id() == agreed) tuned = &how;
    std::vector<std::function<void()>> call{[&] { l->fused(how); }};
    const std::vector<double> took = co_await medians(l, std::move(call));
    if (took.front() >= best_s) continue;
    best = &how;
    best_s = took.front();
  }

  std::vector<std::function<void()>> calls;
  calls.emplace_back([&] { l->fused(*tuned); });
  calls.emplace_back([&] { l->fused(*best); });
  calls.emplace_back([&] { l->alone(); });
  if (!l->shared()) calls.emplace_back([&] { l->by_nccl(l->result()); });
  const std::vector<double> s = co_await medians(l, std::move(calls));
  if (self.id() != 0) co_return;
  const auto& o = l->options();
  const auto print = [&](const char* what, double seconds, const std::string& how) {
    std::printf("%-36s %12.1f %10.1f  %s\n", what, seconds * 1e6, l->operations() / seconds, how.c_str());
  };
  std::printf("# %s, M=%llu N=%llu K=%llu, bf16, %u %s, %zu configs, none with a wrong element\n", l->words().title,
              static_cast<unsigned long long>(o.m), static_cast<unsigned long long>(o.n),
              static_cast<unsigned long long>(o.k), self.world_size(), l->shared() ? "ranks" : "GPUs", ways.size());
  if (l->shared()) std::printf("# ranks share GPUs, so their times mean little, and NCCL refuses them\n");
  std::printf("#%-35s %12s %10s  %s\n", "", "time (us)", "TFLOP/s", "config");
  print("agreed on by contextual", s[0], agreed);
  print("best of the exhaustive search", s[1], best->id());
  if (!l->shared()) print(l->words().by_nccl, s[3], "");
  print("cuBLASLt alone", s[2], "");
  std::printf("# agreed on / exhaustive: %.3f; ", s[0] / s[1]);
  if (!l->shared()) std::printf("NCCL and cuBLASLt / agreed on: %.3f; ", s[3] / s[0]);
  std::printf("runs of contextual: %llu\n", static_cast<unsigned long long>(whole.runs()));
}

template <class Layer>
task<> run_layer(parley::job* here, parley::transports::cuda_space* space, layer_options options) {
  must(load_matrix_kernels(), "loading kernels");
  Layer::must_take(options, here->self().world_size());
  Layer l(*here, *space, options);
  co_await tune_and_measure(&l);
}

/// Runs a program with the options --M, --N, --K, --iters and --warmup. `Layer::must_take(options, ranks)` throws if
/// the sizes do not fit.
template <class Layer>
int run_whole_layer(int argc, char** argv, layer_options options) {
  options.take(argc, argv);
  return run_on_gpus([options](parley::job& here, parley::transports::cuda_space& space) {
    return run_layer<Layer>(&here, &space, options);
  });
}

}  // namespace examples
