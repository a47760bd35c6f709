// GEMM + reduce-scatter on GPUs, a process each, tuned as a whole on all ranks: rank r has K / P columns of A and as many rows of B, and wants
// M / P rows of A * B, which is the sum of what all ranks make of them. Products are made in chunks, the rank's own rows last; copy engines
// bring each chunk to whom it belongs while the next ones are made, and a kernel adds up each chunk once all ranks' parts of it are there.
//
//     parley run -n 2 -- gpu_gemm_reduce_scatter [--M 8192] [--N 4096] [--K 11008] [--iters 20] [--warmup 5]
//
// Configs are whether copy engines pull or push, how many chunks a rank's rows have, for which rank rows are made first, in how many streams
// products run, and which of cuBLASLt's ways for them is taken. Beside what was agreed on, in turns: the best of an exhaustive search, one
// product and then NCCL's reduce-scatter, and the product alone. Times are of a call, of the slowest rank, medians of nine rounds of --iters
// calls. bf16, summed in fp32 in the order of ranks, with whole numbers: every element of every config's result, and of NCCL's, is compared with
// one product's of an A and B that the rank has filled itself, and rows of that with a simple kernel's. Where ranks share a GPU, NCCL is left out.
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
  // Parts are rounded to bf16, which has whole numbers up to 256: for checks most are zeros, so that 256 is eleven times what sums have as
  // standard deviation, and every order of summing gives the same bits. Times are of full matrices, as GPUs are faster with zeros.
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
