#pragma once
// A matrix whose rows are made by several ranks, a process and a GPU each, and wanted whole by all: copy engines bring what others have made,
// in chunks, and streams wait for each chunk. All of it is enqueued, and no processor has a part in it.
//
//     gathered_shards a(*here.gpu(), space, {.self = 1, .world = 4, .rows = 2048, .row_bytes = 8192});
//     co_await a.meet(here.self());
//     make(stream, a.shard(1));
//     a.begin({.way = copy_way::push, .chunks = 2}, stream);        // on all ranks, with the same plan
//     a.wait_for(0, 1, stream);                                     // the second chunk of what rank 0 has made
//     use(stream, a.chunk(0, 1));
//     a.end(stream);                                                // this rank's shard may be made anew
//     co_await a.reached(stream);                                   // whether all ranks had a part in it
//
// What uses the rows comes before the next `begin` in its stream.
#include "peer_memory.hpp"

namespace examples {

class gathered_shards {
 public:
  gathered_shards(transports::cuda_copies& gpu, parley::runtime::memory_space& space, shard_place at)
      : memory_(gpu, space, at, at.world), copied_(gpu, at.world) {}

  /// Every rank learns where the others' rows are. Throws `unavailable` where a GPU's memory cannot be reached.
  task<> meet(parley::ops::rank& self) { return memory_.meet(self, "where shards are"); }

  std::span<std::byte> all() const noexcept { return memory_.all(); }
  std::span<std::byte> shard(rank_id r) const noexcept { return memory_.shard(r); }
  /// Which rows of a shard a chunk has: the first and how many.
  std::pair<std::uint64_t, std::uint64_t> rows_of(unsigned chunk) const noexcept { return memory_.rows_of(chunk); }
  std::span<std::byte> chunk(rank_id r, unsigned i) const noexcept { return memory_.chunk(r, i); }
  /// In the order in which they come, from 1 on; 0 is this rank.
  rank_id source(rank_id i) const noexcept { return memory_.after(i); }

  /// `stream` has made this rank's shard, and all that still reads the rows of the call before is in there, too.
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
  /// What `stream` gets from here on comes after that chunk.
  void wait_for(rank_id from, unsigned chunk, transports::cuda_stream stream) {
    if (from == memory_.self()) {
      memory_.follow(stream);
    } else if (memory_.plan().way == copy_way::pull) {
      copied_.before(from, chunk, stream);
    } else {
      memory_.wait_for(peer_memory::word::came, chunk, from, stream);
    }
  }
  /// What `stream` gets from here on may write this rank's shard.
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
  chunk_events copied_;  // to here
};

}  // namespace examples
