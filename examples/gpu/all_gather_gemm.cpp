// All-gather + GEMM on GPUs, a process each, tuned as a whole on all ranks: rank r has M / P rows of A and N / P columns of B, and wants all rows
// of A * B for its columns. Copy engines bring the rows of others in chunks, and a product of each chunk waits for it alone.
//
//     parley run -n 2 -- gpu_all_gather_gemm [--M 8192] [--N 11008] [--K 4096] [--iters 20] [--warmup 5]
//
// Configs are whether copy engines pull or push, how many chunks a shard has, in which order shards come, in how many streams products run, and
// which of cuBLASLt's ways for them is taken. Beside what was agreed on, in turns: the best of an exhaustive search, NCCL's all-gather and then
// one product, and the product alone. Times are of a call, of the slowest rank, medians of nine rounds of --iters calls. bf16, with whole numbers:
// every element of every config's result is compared with that of all-gather and product, and rows of that with a simple kernel's.
#include "device.hpp"
#include "gathered_shards.hpp"
#include "matrices.hpp"
#include "matrix_products.hpp"

#include <parley/transports/nccl_runtime.hpp>

#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using examples::device_array;
using examples::gather_plan;
using examples::gather_way;
using examples::must;
using parley::rank_id;
using parley::task;

struct settings {
  std::uint64_t m = 8192;
  std::uint64_t n = 11008;
  std::uint64_t k = 4096;
  int calls = 20;
  int before = 5;
} options;

constexpr int rounds = 9;
constexpr std::uint64_t seed_of_weights = 1;

struct larger {
  double operator()(double a, double b) const noexcept { return std::max(a, b); }
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct way_to_do_it {
  gather_plan gather;
  unsigned streams = 1;
  std::size_t tile = 0;
  std::string id() const {
    return std::string(gather.way == gather_way::pull ? "pull" : "push") + "(chunks=" + std::to_string(gather.chunks) +
           " step=" + std::to_string(gather.step) + " streams=" + std::to_string(streams) +
           " tile=" + std::to_string(tile) + ")";
  }
};

std::vector<way_to_do_it> all_ways(rank_id world, std::size_t tiles) {
  std::vector<way_to_do_it> all;
  std::vector<rank_id> steps{1};
  if (world > 2) steps.push_back(world - 1);  // the other way around
  for (const gather_way way : {gather_way::pull, gather_way::push}) {
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

/// NCCL as PyTorch uses it: a communicator that blocks, and calls that are enqueued.
class blocking_nccl {
 public:
  task<> meet(parley::rank* self) {
    parley::transports::nccl_id id;
    if (self->id() == 0) id = known().make_id().value();
    parley::paired_transfer op{.name = "NCCL's id"};
    for (rank_id r = 1; r < self->world_size(); ++r) op.edges.emplace_back(0, r);
    parley::transfer ids = self->declare(op);
    if (self->id() != 0) co_await ids.receive(id.bytes, {.from = 0});
    for (rank_id r = 1; self->id() == 0 && r < self->world_size(); ++r) co_await ids.send(id.bytes, {.to = r});
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const auto connect = find<decltype(&ncclCommInitRank)>(library, "ncclCommInitRank");
    gather_ = find<decltype(&ncclAllGather)>(library, "ncclAllGather");
    abort_ = find<decltype(&ncclCommAbort)>(library, "ncclCommAbort");
    ncclUniqueId same{};
    static_assert(sizeof same == sizeof id.bytes);
    std::memcpy(&same, id.bytes.data(), sizeof same);
    check(connect(&world_, static_cast<int>(self->world_size()), same, static_cast<int>(self->id())),
          "ncclCommInitRank");
  }
  blocking_nccl() = default;
  blocking_nccl(const blocking_nccl&) = delete;
  blocking_nccl& operator=(const blocking_nccl&) = delete;
  ~blocking_nccl() {
    if (world_ != nullptr) abort_(world_);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, cudaStream_t s) {
    check(gather_(mine.data(), all.data(), mine.size(), ncclInt8, world_, s), "ncclAllGather");
  }

 private:
  static parley::transports::nccl_library& known() {
    const auto library = parley::transports::nccl_runtime();
    if (!library) parley::runtime::raise(library.reason());
    return **library;
  }
  template <class F>
  static F find(void* library, const char* name) {
    const auto found = library == nullptr ? nullptr : reinterpret_cast<F>(::dlsym(library, name));
    if (found == nullptr) parley::runtime::raise({parley::errc::unavailable, std::string("NCCL has no ") + name});
    return found;
  }
  static void check(ncclResult_t r, const char* what) {
    if (r != ncclSuccess)
      parley::runtime::raise(
          {parley::errc::device_failed, std::string(what) + ": NCCL's error " + std::to_string(static_cast<int>(r))});
  }
  decltype(&ncclAllGather) gather_ = nullptr;
  decltype(&ncclCommAbort) abort_ = nullptr;
  ncclComm_t world_ = nullptr;
};

class layer {
 public:
  layer(parley::job& here, parley::transports::cuda_space& space, parley::rank_group all)
      : gpu_(*here.gpu()), space_(space), self_(here.self()), all_(std::move(all)),
        rows_(options.m / self_.world_size()), columns_(options.n / self_.world_size()), products_(columns_, options.k),
        a_(gpu_, space, {self_.id(), self_.world_size(), rows_, options.k * element_bytes}),
        b_(space, columns_ * options.k), c_(space, options.m * columns_), right_(space, options.m * columns_),
        count_(space, 1), workspaces_{device_array<std::byte>(space, examples::matrix_products::workspace_bytes),
                                      device_array<std::byte>(space, examples::matrix_products::workspace_bytes)} {
    must(examples::launch_whole_numbers(b_.data(), columns_, options.k, weights(), streams_[0]), "kernel");
  }

  task<> meet() {
    co_await a_.meet(self_);
    co_await nccl_.meet(&self_);
    // Each product once, before a stream waits for another rank.
    for (const std::uint64_t rows : {options.m, rows_, rows_ / 2, rows_ / 4}) {
      tiles_ = std::min(tiles_, products_.tiles(rows));
      for (std::size_t tile = 0; tile < tiles_; ++tile) multiply(a_.all(), c_.data(), rows, tile, 0);
    }
    co_await reached();
    double fewest = -static_cast<double>(tiles_);
    co_await largest_of_all(&fewest);
    tiles_ = static_cast<std::size_t>(-fewest);
  }
  /// How many ways cuBLASLt has on each rank for each of the products, three at most.
  std::size_t tiles() const noexcept { return tiles_; }

  void make_shard(std::uint64_t seed) {
    must(examples::launch_whole_numbers(a_.shard(self_.id()).data(), rows_, options.k, {seed, self_.id() * rows_},
                                        main()),
         "kernel");
  }
  /// Enqueues a call.
  void fused(const way_to_do_it& how) {
    a_.begin(how.gather, main());
    if (how.streams > 1) a_.wait_for(self_.id(), 0, streams_[1]);
    unsigned turn = 0;
    multiply(a_.shard(self_.id()), rows_of_c(self_.id(), 0), rows_, how.tile, turn++);
    for (rank_id i = 1; i < self_.world_size(); ++i) {
      const rank_id from = a_.source(i);
      for (unsigned chunk = 0; chunk < how.gather.chunks; ++chunk, ++turn) {
        const unsigned lane = turn % how.streams;
        const auto [first, count] = a_.rows_of(chunk);
        a_.wait_for(from, chunk, streams_[lane]);
        multiply(a_.chunk(from, chunk), rows_of_c(from, first), count, how.tile, lane);
      }
    }
    if (how.streams > 1) {
      joined_.record(streams_[1]);
      joined_.before(streams_[0]);
    }
    a_.end(main());
  }
  void one_after_the_other(std::uint16_t* into) {
    nccl_.all_gather(a_.shard(self_.id()), a_.all(), streams_[0]);
    alone(into);
  }
  void alone(std::uint16_t* into) { multiply(a_.all(), into, options.m, 0, 0); }

  /// How many elements of a call differ from those of all-gather and product, or the latter's from a simple kernel's. Whatever was gathered
  /// before has other numbers.
  task<std::uint64_t> wrong(const way_to_do_it& how, std::uint64_t seed, bool simple_too) {
    const std::uint64_t step = std::max<std::uint64_t>(options.m / 61, 1);
    must(cudaMemsetAsync(count_.data(), 0, sizeof(unsigned long long), streams_[0]), "cudaMemset");
    must(cudaMemsetAsync(c_.data(), 0xff, c_.bytes().size(), streams_[0]), "cudaMemset");
    make_shard(seed);
    fused(how);
    one_after_the_other(right_.data());
    must(examples::launch_count_different(c_.data(), right_.data(), c_.size(), count_.data(), streams_[0]), "kernel");
    if (simple_too)
      must(examples::launch_count_wrong(right_.data(), {options.m, columns_, options.k, step, {seed, 0}, weights()},
                                        count_.data(), streams_[0]),
           "kernel");
    co_await reached();
    unsigned long long count = 0;
    co_await space_.copy(std::as_writable_bytes(std::span(&count, 1)), count_.bytes());
    co_return count;
  }

  /// Of one call, in seconds, on the slowest rank.
  task<double> seconds(std::function<void()> enqueue, int calls) {
    double nothing = 0;
    co_await largest_of_all(&nothing);
    const parley::time_ns began = self_.where().precise_now();
    for (int i = 0; i < calls; ++i) enqueue();
    co_await reached();
    double took = static_cast<double>(self_.where().precise_now() - began) / 1e9 / calls;
    co_await largest_of_all(&took);
    co_return took;
  }
  task<> reached() {
    auto there = co_await parley::transports::reached(gpu_, main());
    there.value();
  }
  task<> largest_of_all(double* value) {
    if (!all_.idle()) co_await all_.all_reduce<larger>(std::span(value, 1));
  }
  std::uint16_t* result() const noexcept { return c_.data(); }
  std::uint64_t columns() const noexcept { return columns_; }

 private:
  static constexpr std::uint64_t element_bytes = 2;
  parley::transports::cuda_stream main() const noexcept { return static_cast<cudaStream_t>(streams_[0]); }
  examples::whole_numbers weights() const noexcept { return {seed_of_weights, self_.id() * columns_}; }
  std::uint16_t* rows_of_c(rank_id r, std::uint64_t first) const noexcept {
    return c_.data() + (r * rows_ + first) * columns_;
  }
  void multiply(std::span<const std::byte> rows, std::uint16_t* into, std::uint64_t count, std::size_t tile,
                unsigned lane) {
    products_.multiply(rows.data(), b_.data(), into, count, tile, workspaces_[lane].data(), streams_[lane]);
  }

  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  parley::rank_group all_;
  std::uint64_t rows_;
  std::uint64_t columns_;
  std::size_t tiles_ = 3;
  examples::matrix_products products_;
  examples::gathered_shards a_;
  device_array<std::uint16_t> b_, c_, right_;
  device_array<unsigned long long> count_;
  std::array<device_array<std::byte>, 2> workspaces_;
  std::array<examples::stream, 2> streams_;
  examples::event joined_;
  blocking_nccl nccl_;
};

using fused_kernel = parley::tunable_op<task<>(layer*)>;

task<> calls_of(layer* l, way_to_do_it how) {
  for (int i = 0; i < options.calls; ++i) l->fused(how);
  co_await l->reached();
}
task<> tuned_calls(fused_kernel* kernel, layer* l) { co_await (*kernel)(l); }

fused_kernel kernel_of(parley::rank& self, const std::vector<way_to_do_it>& ways, std::uint64_t columns) {
  fused_kernel::options o;
  o.name = "gather_and_multiply";
  o.key = [columns](layer*) { return parley::kernel_key{{"m", options.m}, {"n", columns}, {"k", options.k}}; };
  for (const way_to_do_it& how : ways)
    o.implementations.push_back({how.id(), [how](layer* l) { return calls_of(l, how); }});
  return fused_kernel(self.kernels(), std::move(o));
}

void print(const char* what, double seconds, double beside, const std::string& how) {
  const double operations = 2.0 * static_cast<double>(options.m) * static_cast<double>(options.k) * beside / 1e12;
  std::printf("%-32s %12.1f %10.1f  %s\n", what, seconds * 1e6, operations / seconds, how.c_str());
}

task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  const rank_id world = self.world_size();
  if (world < 2 || options.m % (4 * world) != 0 || options.n % (8 * world) != 0 || options.k % 8 != 0)
    parley::runtime::raise(
        {parley::errc::bad_argument, "it takes two ranks or more; --M is a multiple of 4 of them, --N of 8, --K of 8"});
  must(examples::load_matrix_kernels(), "loading kernels");
  parley::rank_group all = self.declare(
      parley::leader_worker{.name = "times", .role = [](rank_id r) { return r == 0 ? "leader" : "worker"; }});
  layer l(here, space, all);
  co_await l.meet();
  const std::vector<way_to_do_it> ways = all_ways(world, l.tiles());

  double wrong = 0;
  std::uint64_t seed = seed_of_weights;
  for (const way_to_do_it& how : ways) {
    ++seed;
    const std::uint64_t here_wrong = co_await l.wrong(how, seed, &how == &ways.front());
    wrong += static_cast<double>(here_wrong);
  }
  co_await l.largest_of_all(&wrong);
  if (wrong != 0) parley::runtime::raise({parley::errc::config_failed, std::to_string(wrong) + " elements are wrong"});

  fused_kernel kernel = kernel_of(self, ways, l.columns());
  parley::contextual whole(self, {.name = "all_gather_gemm", .iterations = 5, .warm_ups = 1});
  const auto thunk = [&] { return tuned_calls(&kernel, &l); };
  co_await whole.run(thunk);
  const std::string key =
      parley::tuning::parameters_text(parley::kernel_key{{"m", options.m}, {"n", l.columns()}, {"k", options.k}})
          .value();
  const std::string agreed = whole.end().best("gather_and_multiply", key);

  const way_to_do_it* tuned = &ways.front();
  const way_to_do_it* best = nullptr;
  double best_s = 0;
  for (const way_to_do_it& how : ways) {
    if (how.id() == agreed) tuned = &how;
    const std::function<void()> call = [&] { l.fused(how); };
    std::vector<double> times;
    const double warm = co_await l.seconds(call, options.before);
    static_cast<void>(warm);
    for (int round = 0; round < rounds; ++round) {
      const double one = co_await l.seconds(call, options.calls);
      times.push_back(one);
    }
    const double s = median(std::move(times));
    if (best != nullptr && s >= best_s) continue;
    best = &how;
    best_s = s;
  }

  const std::array<std::function<void()>, 4> calls{[&] { l.fused(*tuned); }, [&] { l.fused(*best); },
                                                   [&] { l.one_after_the_other(l.result()); },
                                                   [&] { l.alone(l.result()); }};
  std::array<std::vector<double>, 4> times;
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const double one = co_await l.seconds(calls[i], round < 0 ? options.before : options.calls);
      if (round >= 0) times[i].push_back(one);
    }
  }
  if (self.id() != 0) co_return;
  std::array<double, 4> s{};
  for (std::size_t i = 0; i < s.size(); ++i) s[i] = median(times[i]);
  const auto columns = static_cast<double>(l.columns());
  std::printf("# all-gather + GEMM, M=%llu N=%llu K=%llu, bf16, %u GPUs, %zu configs, none with a wrong element\n",
              static_cast<unsigned long long>(options.m), static_cast<unsigned long long>(options.n),
              static_cast<unsigned long long>(options.k), world, ways.size());
  std::printf("#%-31s %12s %10s  %s\n", "", "time (us)", "TFLOP/s", "config");
  print("agreed on by contextual", s[0], columns, agreed);
  print("best of the exhaustive search", s[1], columns, best->id());
  print("NCCL all-gather, then cuBLASLt", s[2], columns, "");
  print("cuBLASLt alone", s[3], columns, "");
  std::printf("# agreed on / exhaustive: %.3f; NCCL and cuBLASLt / agreed on: %.3f; runs of contextual: %llu\n",
              s[0] / s[1], s[2] / s[0], static_cast<unsigned long long>(whole.end().runs()));
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const auto number = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--M") options.m = number;
    if (name == "--N") options.n = number;
    if (name == "--K") options.k = number;
    if (name == "--iters") options.calls = std::max(1, static_cast<int>(number));
    if (name == "--warmup") options.before = std::max(1, static_cast<int>(number));
  }
  return examples::run_on_gpus(rank_main);
}
