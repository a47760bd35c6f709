#pragma once
// A matrix whose rows are made by several ranks, one process per GPU, and needed whole by all of them. Copy engines
// bring the other ranks' rows in chunks, and streams wait for single chunks. Everything is enqueued; no processor
// takes part.
//
//     gathered_shards a(*here.gpu(), space, {.self = 1, .world = 4, .rows = 2048, .row_bytes = 8192});
//     co_await a.meet(here.self());
//     make(stream, a.shard(1));
//     a.begin({.way = copy_way::push, .chunks = 2}, stream);        // on all ranks, with the same plan
//     a.wait_for(0, 1, stream);                                     // the second chunk of what rank 0 has made
//     use(stream, a.chunk(0, 1));
//     a.end(stream);                                                // this rank's shard may be written again
//     co_await a.reached(stream);                                   // throws if a rank was lost
//
// Work that uses the rows must precede the next `begin` in its stream.
#include "peer_memory.hpp"

namespace examples {

class gathered_shards {
 public:
  gathered_shards(transports::cuda_copies& gpu, parley::runtime::memory_space& space, shard_place at)
      : memory_(gpu, space, at, at.world), copied_(gpu, at.world) {}

  /// Exchanges the addresses of all ranks' rows. Throws `unavailable` if a GPU's memory cannot be reached.
  task<> meet(parley::ops::rank& self) { return memory_.meet(self, "where shards are"); }

  std::span<std::byte> all() const noexcept { return memory_.all(); }
  std::span<std::byte> shard(rank_id r) const noexcept { return memory_.shard(r); }
  /// The rows of a shard that chunk `chunk` covers: the first row and their number.
  std::pair<std::uint64_t, std::uint64_t> rows_of(unsigned chunk) const noexcept { return memory_.rows_of(chunk); }
  std::span<std::byte> chunk(rank_id r, unsigned i) const noexcept { return memory_.chunk(r, i); }
  /// The rank whose shard arrives as the i-th, counted from 1. 0 returns this rank.
  rank_id source(rank_id i) const noexcept { return memory_.after(i); }

  /// Starts a call after all work that is in `stream` now. That work must include the kernels that make this rank's
  /// shard, and all work that still reads the rows of the previous call.
  void begin(const copy_plan& plan, transports::cuda_stream stream) {
    memory_.begin(plan, stream);
    for (rank_id i = 1; i < memory_.world(); ++i) {
      if (plan.way == copy_way::pull) {
        pull(memory_.after(i));
      } else {
        push(memory_.before(i));
      }
    }
  }
  /// Later work in `stream` waits for that chunk.
  void wait_for(rank_id from, unsigned chunk, transports::cuda_stream stream) {
    if (from == memory_.self()) {
      memory_.follow(stream);
    } else if (memory_.plan().way == copy_way::pull) {
      copied_.before(from, chunk, stream);
    } else {
      memory_.wait_for(peer_memory::word::came, chunk, from, stream);
    }
  }
  /// Later work in `stream` may overwrite this rank's shard.
  void end(transports::cuda_stream stream) { memory_.end(stream); }
  /// See `peer_memory::reached`.
  task<> reached(transports::cuda_stream stream) { return memory_.reached(stream); }

 private:
  void pull(rank_id from) {
    memory_.wait_for(peer_memory::word::begun, 0, from, memory_.copies());
    for (unsigned c = 0; c < memory_.plan().chunks; ++c) {
      memory_.copy({memory_.self(), from}, {from, from}, c);
      copied_.record(from, c, memory_.copies());
    }
    memory_.tell(from, peer_memory::word::taken, 0, memory_.copies());
  }
  void push(rank_id to) {
    memory_.wait_for(peer_memory::word::begun, 0, to, memory_.copies());
    for (unsigned c = 0; c < memory_.plan().chunks; ++c) {
      memory_.copy({to, memory_.self()}, {memory_.self(), memory_.self()}, c);
      memory_.tell(to, peer_memory::word::came, c, memory_.copies());
    }
  }

  peer_memory memory_;
  chunk_events copied_;  // chunks that this rank has pulled
};

}  // namespace examples
