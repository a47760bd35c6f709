// Jacobi sweeps on GPUs, one process per GPU. The edge rows are swept first and exchanged while the interior is
// swept; all of it is enqueued ahead. Problem, options and output are those of the Jacobi in NVIDIA's multi-GPU
// programming models.
//
//     parley run -n 2 -- gpu_jacobi [-nx 16384] [-ny 16384] [-niter 1000] [-nccheck 100] [-csv] [-unchecked]
//
// Each rank first sweeps the whole grid alone. This gives the time of one GPU, and a result that the ranks' common
// result must equal bit for bit. `-unchecked` skips it.
#include "device.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

namespace {

using examples::device_array;
using examples::jacobi_block;
using examples::must;

struct settings {
  std::uint64_t nx = 16384;
  std::uint64_t ny = 16384;
  int niter = 1000;
  int nccheck = 100;
  bool csv = false;
  bool unchecked = false;
} options;

class solver {
 public:
  // `rims` and `norms` are null if one rank sweeps alone; the ghost rows are then copied from the other end of its
  // own grid.
  solver(parley::job& here, parley::transports::cuda_space& space, const jacobi_block& b, const parley::halo* rims,
         parley::collective* norms)
      : gpu_(*here.gpu()), self_(here.self()), block_(b), norms_(norms),
        fields_{device_array<float>(space, (b.rows + 2) * b.columns),
                device_array<float>(space, (b.rows + 2) * b.columns)},
        norm_(space, 1) {
    for (auto& f : fields_) {
      must(examples::launch_begin(f.data(), b, edge_), "kernel");
      if (rims == nullptr) continue;
      std::span<float> all = f.all();
      plans_.push_back(rims->plan({parley::grid_field(all, {b.rows, b.columns})}));
    }
    must(cudaMallocHost(reinterpret_cast<void**>(&norm_here_), sizeof(float)), "cudaMallocHost");
    inner_done_.record(edge_);
    rims_done_.record(edge_);
  }
  solver(const solver&) = delete;
  solver& operator=(const solver&) = delete;
  ~solver() { cudaFreeHost(norm_here_); }

  static parley::task<> sweeps(parley::dataflow& flow, solver* s) {
    std::array<parley::flow_work, 2> moving;
    if (!s->plans_.empty()) s->plans_[1].open(flow, s->edge_);
    for (int k = 0; k < options.niter; ++k) {
      const std::size_t from = static_cast<std::size_t>(k) % 2;
      // This sweep overwrites the rows that were sent two sweeps ago. Waiting for them also limits how far the host
      // runs ahead.
      if (moving[from].size() != 0) co_await moving[from];
      const bool checked = k % options.nccheck == 0;
      moving[from] = s->sweep(flow, from, checked, k + 1 == options.niter);
      if (checked) co_await s->check(k);
    }
    co_await flow.join();
    s->inner_done_.before(s->edge_);
    auto ended = co_await parley::transports::reached(s->gpu_, s->edge_);
    ended.value();
  }

  /// This rank's rows, without the two ghost rows.
  parley::task<std::vector<float>> result(parley::transports::cuda_space& space) const {
    const auto& last = fields_[static_cast<std::size_t>(options.niter) % 2];
    std::vector<float> rows(block_.rows * block_.columns);
    co_await space.copy(std::as_writable_bytes(std::span(rows)),
                        last.bytes().subspan(block_.columns * sizeof(float), rows.size() * sizeof(float)));
    co_return rows;
  }

 private:
  parley::flow_work sweep(parley::dataflow& flow, std::size_t from, bool checked, bool last_one) {
    const float* const old = fields_[from].data();
    float* const next = fields_[1 - from].data();
    float* const norm = checked ? norm_.data() : nullptr;
    const std::uint64_t last = block_.rows;
    // The edges and the interior each need the other's result of the previous sweep. The interior needs no ghost
    // rows.
    rims_done_.before(inner_);
    inner_done_.before(edge_);
    if (checked) {
      must(cudaMemsetAsync(norm, 0, sizeof(float), edge_), "cudaMemsetAsync");
      zeroed_.record(edge_);
      zeroed_.before(inner_);
    }
    must(examples::launch_sweep(next, old, block_, 1, 2, norm, edge_), "kernel");
    if (last > 1) must(examples::launch_sweep(next, old, block_, last, last + 1, norm, edge_), "kernel");
    rims_done_.record(edge_);
    parley::flow_work moving;
    if (plans_.empty()) {
      const std::size_t row = block_.columns * sizeof(float);
      must(cudaMemcpyAsync(next, next + last * block_.columns, row, cudaMemcpyDeviceToDevice, edge_), "copy");
      must(cudaMemcpyAsync(next + (last + 1) * block_.columns, next + block_.columns, row, cudaMemcpyDeviceToDevice,
                           edge_),
           "copy");
    } else {
      if (!last_one) plans_[from].open(flow, edge_);  // nothing reads the ghosts of `old` from here on
      moving = plans_[1 - from].start(flow, edge_);
    }
    must(examples::launch_sweep(next, old, block_, 2, last, norm, inner_), "kernel");
    inner_done_.record(inner_);
    return moving;
  }

  parley::task<> check(int k) {
    inner_done_.before(edge_);
    must(cudaMemcpyAsync(norm_here_, norm_.data(), sizeof(float), cudaMemcpyDeviceToHost, edge_), "copy");
    auto there = co_await parley::transports::reached(gpu_, edge_);
    there.value();
    double sum = *norm_here_;
    if (norms_ != nullptr && !norms_->idle()) co_await norms_->all_reduce(std::span(&sum, 1));
    if (self_.id() == 0 && !options.csv) std::printf("%5d, %0.6f\n", k, std::sqrt(sum));
  }

  parley::transports::cuda_copies& gpu_;
  parley::rank& self_;
  jacobi_block block_;
  parley::collective* norms_;
  examples::stream edge_;
  examples::stream inner_;
  examples::event inner_done_;
  examples::event rims_done_;
  examples::event zeroed_;
  std::array<device_array<float>, 2> fields_;
  device_array<float> norm_;
  float* norm_here_ = nullptr;
  std::vector<parley::halo_plan> plans_;
};

parley::task<double> timed(solver& s, parley::rank& self) {
  const parley::time_ns began = self.where().precise_now();
  co_await parley::with_dataflow(solver::sweeps, &s);
  co_return static_cast<double>(self.where().precise_now() - began) / 1e9;
}

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  const parley::rank_id ranks = self.world_size();
  parley::halo rims(self, {.name = "rims",
                           .ranks = {ranks, 1},
                           .periodic = {true, false},
                           .width = {1, 0},
                           .configs = {parley::configs::direct(), parley::configs::put(), parley::configs::get()},
                           .memory = &space});
  parley::collective norms(self, {.name = "norms"});
  const std::uint64_t each = options.ny / ranks;
  const std::uint64_t more = options.ny % ranks;
  const std::uint64_t me = self.id();
  const jacobi_block mine{options.nx, each + (me < more ? 1 : 0), me * each + std::min(me, more), options.ny};
  const jacobi_block all{options.nx, options.ny, 0, options.ny};

  const bool told = self.id() == 0 && !options.csv;
  if (told && !options.unchecked)
    std::printf("Single GPU jacobi relaxation: %d iterations on %llu x %llu mesh with norm check every %d iterations\n",
                options.niter, static_cast<unsigned long long>(options.ny), static_cast<unsigned long long>(options.nx),
                options.nccheck);
  std::vector<float> reference;
  double alone_s = 0;
  if (!options.unchecked) {
    solver alone(here, space, all, nullptr, nullptr);
    alone_s = co_await timed(alone, self);
    reference = co_await alone.result(space);
  }
  if (told)
    std::printf("Jacobi relaxation: %d iterations on %llu x %llu mesh with norm check every %d iterations\n",
                options.niter, static_cast<unsigned long long>(options.ny), static_cast<unsigned long long>(options.nx),
                options.nccheck);
  solver together(here, space, mine, &rims, &norms);
  double first = 0;
  if (!norms.idle()) co_await norms.all_reduce(std::span(&first, 1));  // all ranks start together
  const double together_s = co_await timed(together, self);
  const std::vector<float> rows = co_await together.result(space);
  if (options.unchecked) {
    if (self.id() == 0) std::printf("%u GPUs: %8.4f s\n", ranks, together_s);
    co_return;
  }
  if (std::memcmp(rows.data(), reference.data() + mine.first_row * mine.columns, rows.size() * sizeof(float)) != 0)
    parley::runtime::raise({parley::errc::config_failed, "the fields differ from those of one GPU"});
  if (self.id() != 0) co_return;
  if (options.csv)
    std::printf("parley, %llu, %llu, %d, %d, %u, 1, %f, %f\n", static_cast<unsigned long long>(options.nx),
                static_cast<unsigned long long>(options.ny), options.niter, options.nccheck, ranks, together_s,
                alone_s);
  else
    std::printf("Num GPUs: %u.\n%llux%llu: 1 GPU: %8.4f s, %u GPUs: %8.4f s, speedup: %8.2f, efficiency: %8.2f\n",
                ranks, static_cast<unsigned long long>(options.ny), static_cast<unsigned long long>(options.nx),
                alone_s, ranks, together_s, alone_s / together_s, alone_s / (ranks * together_s) * 100);
  if (ranks > 1 && !options.csv)
    std::printf("%s: %s\n", "rims, agreed on",
                rims.to((self.id() + 1) % ranks).decision(options.nx * sizeof(float)).config.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  examples::option_list known;
  known.number("-nx", options.nx, std::uint64_t{3}).number("-ny", options.ny, std::uint64_t{3});
  known.number("-niter", options.niter).number("-nccheck", options.nccheck, 1).flag("-csv", options.csv);
  known.flag("-unchecked", options.unchecked);
  known.take(argc, argv);
  return examples::run_on_gpus(rank_main);
}
