#pragma once
// A matrix that is the sum of matrices made by several ranks, one process per GPU, and of which each rank needs its
// own rows. As soon as a chunk of a rank's rows is made, a copy engine brings it to that rank, and streams wait for
// single chunks. Everything is enqueued; no processor takes part.
//
//     scattered_sums c(*here.gpu(), space, {.self = 1, .world = 4, .rows = 2048, .row_bytes = 8192});
//     co_await c.meet(here.self());
//     c.begin({.way = copy_way::push, .chunks = 2}, stream);        // on all ranks, with the same plan
//     for (rank_id i = 1; i <= 4; ++i) {
//       for (unsigned chunk = 0; chunk < 2; ++chunk) {
//         make(stream, c.mine(c.target(i), chunk));                 // this rank's part of that rank's rows
//         c.made(c.target(i), chunk, stream);
//       }
//     }
//     c.wait_for(1, stream);                                        // the second chunk, of all ranks
//     add_up(stream, sum, {c.part(0, 1), c.part(1, 1), c.part(2, 1), c.part(3, 1)});
//     c.end(stream);                                                // the next call may begin
//     co_await c.reached(stream);                                   // throws if a rank was lost
//
// Other streams that make chunks must `follow`. Work that adds chunks up must precede `end` in its stream.
#include "peer_memory.hpp"

namespace examples {

class scattered_sums {
 public:
  scattered_sums(transports::cuda_copies& gpu, parley::runtime::memory_space& space, shard_place at)
      : memory_(gpu, space, at, 2 * at.world - 1), made_(gpu, at.world), copied_(gpu, at.world) {}

  /// Exchanges the addresses of all ranks' chunks. Throws `unavailable` if a GPU's memory cannot be reached.
  task<> meet(parley::ops::rank& self) { return memory_.meet(self, "where parts of sums are"); }

  /// The rows of a shard that chunk `chunk` covers: the first row and their number.
  std::pair<std::uint64_t, std::uint64_t> rows_of(unsigned chunk) const noexcept { return memory_.rows_of(chunk); }
  /// The rank whose rows must be made as the i-th, counted from 1. This rank's own rows come last.
  rank_id target(rank_id i) const noexcept { return memory_.after(i); }
  /// This rank's part of rank `r`'s rows.
  std::span<std::byte> mine(rank_id r, unsigned chunk) const noexcept {
    return memory_.chunk(made_in(memory_.self(), r), chunk);
  }
  /// Rank `r`'s part of this rank's rows.
  std::span<const std::byte> part(rank_id r, unsigned chunk) const noexcept { return memory_.chunk(r, chunk); }

  /// Begins a call after all work that `stream` holds now. That work must include everything that still reads parts
  /// or writes chunks of the previous call.
  void begin(const copy_plan& plan, transports::cuda_stream stream) {
    memory_.begin(plan, stream);
    for (rank_id i = 1; i < memory_.world() && plan.way == copy_way::pull; ++i) pull(memory_.before(i));
  }
  /// Later work in `stream` waits for the beginning of the call.
  void follow(transports::cuda_stream stream) { memory_.follow(stream); }
  /// Declares that earlier work in `stream` makes that chunk of rank `r`'s rows. Call it for the ranks in the order
  /// of `target`, and for the chunks of a rank in ascending order.
  void made(rank_id r, unsigned chunk, transports::cuda_stream stream) {
    made_.record(r, chunk, stream);
    if (r == memory_.self()) return;
    if (memory_.plan().way == copy_way::pull) {
      made_.before(r, chunk, memory_.signals());
      memory_.tell(r, peer_memory::word::came, chunk, memory_.signals());
      return;
    }
    if (chunk == 0) memory_.wait_for(peer_memory::word::begun, 0, r, memory_.copies());
    made_.before(r, chunk, memory_.copies());
    memory_.copy({r, memory_.self()}, {memory_.self(), made_in(memory_.self(), r)}, chunk);
    memory_.tell(r, peer_memory::word::came, chunk, memory_.copies());
  }
  /// Later work in `stream` waits for all ranks' parts of that chunk of this rank's rows. Call `made` for this rank's
  /// own part first.
  void wait_for(unsigned chunk, transports::cuda_stream stream) {
    made_.before(memory_.self(), chunk, stream);
    for (rank_id i = 1; i < memory_.world(); ++i) {
      const rank_id from = memory_.before(i);
      if (memory_.plan().way == copy_way::pull) {
        copied_.before(from, chunk, stream);
      } else {
        memory_.wait_for(peer_memory::word::came, chunk, from, stream);
      }
    }
  }
  /// Later work in `stream` waits for all copies of this rank's chunks, and may make chunks again.
  void end(transports::cuda_stream stream) { memory_.end(stream); }
  /// See `peer_memory::reached`.
  task<> reached(transports::cuda_stream stream) { return memory_.reached(stream); }

 private:
  // The shard that holds the part made by rank `by` for rank `for_whom`. Each rank first has all parts of its own
  // rows, by maker, then its parts of the other ranks' rows.
  std::size_t made_in(rank_id by, rank_id for_whom) const noexcept {
    const rank_id world = memory_.world();
    return by == for_whom ? by : world + (for_whom + world - by - 1) % world;
  }
  void pull(rank_id from) {
    for (unsigned c = 0; c < memory_.plan().chunks; ++c) {
      memory_.wait_for(peer_memory::word::came, c, from, memory_.copies());
      memory_.copy({memory_.self(), from}, {from, made_in(from, memory_.self())}, c);
      copied_.record(from, c, memory_.copies());
    }
    memory_.tell(from, peer_memory::word::taken, 0, memory_.copies());
  }

  peer_memory memory_;
  chunk_events made_;    // chunks that this rank has made, by their owner
  chunk_events copied_;  // chunks that this rank has pulled
};

}  // namespace examples
