// All-gather + GEMM on GPUs, one process per GPU, tuned as a whole on all ranks. Each of the P ranks has M / P rows
// of A and N / P columns of B, and wants all rows of A * B for its columns. Copy engines bring the other ranks' rows
// in chunks, and each chunk's product waits only for that chunk.
//
//     parley run -n 2 -- gpu_all_gather_gemm [--M 8192] [--N 11008] [--K 4096] [--iters 20] [--warmup 5]
//
// Configs differ in whether copy engines pull or push, the number of chunks per shard, the order of the shards, the
// number of streams for products, and the cuBLASLt algorithm. The agreed config is timed in turns with the best
// config of an exhaustive search, with NCCL's all-gather followed by one product, and with the product alone. Times
// are per call on the slowest rank, medians of nine rounds of --iters calls.
//
// Matrices hold whole numbers in bf16. Every element of each config's result, and of NCCL's, is compared with a
// single product of an A that the rank has filled itself; some rows of that product are compared with a simple
// kernel's. If ranks share a GPU, NCCL is left out.
#include "gathered_shards.hpp"
#include "whole_layers.hpp"

namespace {

using examples::must;
using examples::way_to_do_it;
using parley::rank_id;
using parley::task;

class layer final : public examples::whole_layer {
 public:
  static void must_take(const examples::layer_options& o, rank_id world) {
    if (world < 2 || o.m % (4 * world) != 0 || o.n % (8 * world) != 0 || o.k % 8 != 0)
      parley::runtime::raise({parley::errc::bad_argument,
                              "it takes two ranks or more; --M is a multiple of 4 of them, --N of 8, --K of 8"});
  }
  layer(parley::job& here, parley::transports::cuda_space& space, const examples::layer_options& o)
      : whole_layer({"all-gather + GEMM", "all_gather_gemm", "gather_and_multiply", "NCCL all-gather, then cuBLASLt"},
                    here, space, o, {.columns = o.n / here.self().world_size(), .inner = o.k}),
        columns_(o.n / here.self().world_size()),
        a_(*here.gpu(), space, {self().id(), self().world_size(), rows(), o.k * element_bytes}) {
    must(examples::launch_whole_numbers(b(), columns_, o.k, weights(), main()), "kernel");
  }

  void make(std::uint64_t seed, numbers_for) override {
    must(examples::launch_whole_numbers(a_.shard(self().id()).data(), rows(), options().k,
                                        {.seed = seed, .first_row = self().id() * rows()}, main()),
         "kernel");
  }
  void fused(const way_to_do_it& how) override {
    const rank_id me = self().id();
    a_.begin(how.copies, main());
    if (how.streams > 1) a_.wait_for(me, 0, stream_of(1));
    unsigned turn = 0;
    multiply(a_.shard(me).data(), rows_of_c(me, 0), rows(), how.tile, turn++);
    for (rank_id i = 1; i < self().world_size(); ++i) {
      const rank_id from = a_.source(i);
      for (unsigned chunk = 0; chunk < how.copies.chunks; ++chunk, ++turn) {
        const unsigned lane = turn % how.streams;
        const auto [first, count] = a_.rows_of(chunk);
        a_.wait_for(from, chunk, stream_of(lane));
        multiply(a_.chunk(from, chunk).data(), rows_of_c(from, first), count, how.tile, lane);
      }
    }
    if (how.streams > 1) {
      joined_.record(stream_of(1));
      joined_.before(main());
    }
    a_.end(main());
  }
  void by_nccl(std::uint16_t* into) override {
    nccl().all_gather(a_.shard(self().id()), a_.all(), main());
    multiply(a_.all().data(), into, options().m, 0, 0);
  }
  void alone() override { multiply(a_.all().data(), result(), options().m, 0, 0); }

 private:
  task<> meet_peers() override { return a_.meet(self()); }
  task<> calls_over(parley::transports::cuda_stream s) override { return a_.reached(s); }
  void multiply_once(std::uint64_t rows, std::size_t tile) override {
    multiply(a_.all().data(), result(), rows, tile, 0);
  }
  examples::simple_product multiply_right(std::uint64_t seed, std::uint16_t* into) override {
    const auto& o = options();
    must(examples::launch_whole_numbers(a_.all().data(), o.m, o.k, {.seed = seed}, main()), "kernel");
    multiply(a_.all().data(), into, o.m, 0, 0);
    return {o.m, columns_, o.k, std::max<std::uint64_t>(o.m / looked_at, 1), {.seed = seed}, weights()};
  }
  examples::whole_numbers weights() const noexcept {
    return {.seed = seed_of_weights, .first_row = self().id() * columns_};
  }
  std::uint16_t* rows_of_c(rank_id r, std::uint64_t first) const noexcept {
    return result() + (r * rows() + first) * columns_;
  }

  std::uint64_t columns_;
  examples::gathered_shards a_;
  examples::event joined_;
};

}  // namespace

int main(int argc, char** argv) {
  return examples::run_whole_layer<layer>(argc, argv, {.m = 8192, .n = 11008, .k = 4096});
}
