// GEMM + reduce-scatter on GPUs, one process per GPU, tuned as a whole on all ranks. Each of the P ranks has K / P
// columns of A and the matching K / P rows of B, and wants M / P rows of A * B, which is the sum of all ranks'
// products. Products are made in chunks, the rank's own rows last. Copy engines bring each chunk to its owner while
// the next chunks are made, and a kernel sums a chunk once all ranks' parts of it have arrived.
//
//     parley run -n 2 -- gpu_gemm_reduce_scatter [--M 8192] [--N 4096] [--K 11008] [--iters 20] [--warmup 5]
//
// Configs differ in whether copy engines pull or push, the number of chunks per rank, the rank whose rows are made
// first, the number of streams for products, and the cuBLASLt algorithm. The agreed config is timed in turns with the
// best config of an exhaustive search, with one product followed by NCCL's reduce-scatter, and with the product
// alone. Times are per call on the slowest rank, medians of nine rounds of --iters calls.
//
// Matrices hold whole numbers in bf16, summed in fp32 in rank order. Every element of each config's result, and of
// NCCL's, is compared with a single product of an A and B that the rank has filled itself; some rows of that product
// are compared with a simple kernel's. If ranks share a GPU, NCCL is left out.
#include "scattered_sums.hpp"
#include "whole_layers.hpp"

namespace {

using examples::must;
using examples::way_to_do_it;
using parley::rank_id;
using parley::task;

class layer final : public examples::whole_layer {
 public:
  static void must_take(const examples::layer_options& o, rank_id world) {
    if (world < 2 || world > examples::summands::most || o.m % (4 * world) != 0 || o.n % 8 != 0 ||
        o.k % (8 * world) != 0)
      parley::runtime::raise(
          {parley::errc::bad_argument, "it takes 2 to " + std::to_string(examples::summands::most) +
                                           " ranks; --M is a multiple of 4 of them, --N of 8, --K of 8 of them"});
  }
  layer(parley::job& here, parley::transports::cuda_space& space, const examples::layer_options& o)
      : whole_layer({"GEMM + reduce-scatter", "gemm_reduce_scatter", "multiply_and_scatter",
                     "cuBLASLt, then NCCL reduce-scatter"},
                    here, space, o, {.columns = o.n, .inner = o.k / here.self().world_size()}),
        inner_(o.k / here.self().world_size()), a_(space, o.m * inner_), parts_(space, o.m * o.n),
        all_a_(space, rows() * o.k), all_b_(space, o.n * o.k), right_(o.n, o.k),
        sums_(*here.gpu(), space, {self().id(), self().world_size(), rows(), o.n * element_bytes}) {
    examples::whole_numbers mine{.seed = seed_of_weights, .first_column = self().id() * inner_};
    must(examples::launch_whole_numbers(b(), o.n, inner_, mine, main()), "kernel");
    must(examples::launch_whole_numbers(all_b_.data(), o.n, o.k, {.seed = seed_of_weights}, main()), "kernel");
  }

  void make(std::uint64_t seed, numbers_for what) override {
    examples::whole_numbers mine = numbers(seed, what);
    mine.first_column = self().id() * inner_;
    must(examples::launch_whole_numbers(a_.data(), options().m, inner_, mine, main()), "kernel");
  }
  void fused(const way_to_do_it& how) override {
    sums_.begin(how.copies, main());
    if (how.streams > 1) sums_.follow(stream_of(1));
    sums_.follow(adding());
    unsigned turn = 0;
    for (rank_id i = 1; i <= self().world_size(); ++i) {
      const rank_id to = sums_.target(i);
      for (unsigned chunk = 0; chunk < how.copies.chunks; ++chunk, ++turn) {
        const unsigned lane = turn % how.streams;
        const auto [first, count] = sums_.rows_of(chunk);
        multiply(a_.data() + (to * rows() + first) * inner_, sums_.mine(to, chunk).data(), count, how.tile, lane);
        sums_.made(to, chunk, stream_of(lane));
      }
    }
    for (unsigned chunk = 0; chunk < how.copies.chunks; ++chunk) add_up(chunk);
    joined_.record(adding_);
    joined_.before(main());
    sums_.end(main());
  }
  void by_nccl(std::uint16_t* into) override {
    alone();
    nccl().reduce_scatter(parts_.data(), into, rows() * options().n, main());
  }
  void alone() override { multiply_once(options().m, 0); }

 private:
  task<> meet_peers() override { return sums_.meet(self()); }
  task<> calls_over(parley::transports::cuda_stream s) override { return sums_.reached(s); }
  void multiply_once(std::uint64_t rows, std::size_t tile) override {
    multiply(a_.data(), parts_.data(), rows, tile, 0);
  }
  examples::simple_product multiply_right(std::uint64_t seed, std::uint16_t* into) override {
    const auto& o = options();
    examples::whole_numbers a = numbers(seed, numbers_for::checks);
    a.first_row = self().id() * rows();
    must(examples::launch_whole_numbers(all_a_.data(), rows(), o.k, a, main()), "kernel");
    right_.multiply(all_a_.data(), all_b_.data(), into, rows(), 0, workspace(0), main());
    return {rows(), o.n, o.k, std::max<std::uint64_t>(rows() / looked_at, 1), a, {.seed = seed_of_weights}};
  }
  // Parts are rounded to bf16, which is exact for whole numbers up to 256. Checks therefore use mostly zeros: 256 is
  // then eleven standard deviations of the sums, and every order of summing gives the same bits. Times use full
  // matrices, because GPUs are faster with zeros.
  examples::whole_numbers numbers(std::uint64_t seed, numbers_for what) const noexcept {
    return {.seed = seed, .of = what == numbers_for::times ? 5 : std::max<std::uint64_t>(5, options().k / 25)};
  }
  void add_up(unsigned chunk) {
    sums_.wait_for(chunk, adding());
    examples::summands all;
    for (rank_id r = 0; r < self().world_size(); ++r) all.of[all.count++] = sums_.part(r, chunk).data();
    const auto [first, count] = sums_.rows_of(chunk);
    must(examples::launch_add_up(result() + first * options().n, all, count * options().n, adding_), "kernel");
  }
  parley::transports::cuda_stream adding() const noexcept { return static_cast<cudaStream_t>(adding_); }

  std::uint64_t inner_;
  examples::device_array<std::uint16_t> a_, parts_, all_a_, all_b_;
  examples::matrix_products right_;
  examples::stream adding_;
  examples::event joined_;
  examples::scattered_sums sums_;
};

}  // namespace

int main(int argc, char** argv) {
  return examples::run_whole_layer<layer>(argc, argv, {.m = 8192, .n = 4096, .k = 11008});
}
