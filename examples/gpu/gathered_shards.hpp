#pragma once
// A matrix whose rows are made by several ranks, a process and a GPU each, and wanted whole by all: copy engines bring what others have made,
// in chunks, and streams wait for each chunk. All of it is enqueued, and no processor has a part in it.
//
//     gathered_shards a(*here.gpu(), space, {.self = 1, .world = 4, .rows = 2048, .row_bytes = 8192});
//     co_await a.meet(here.self());
//     make(stream, a.shard(1));
//     a.begin({.way = gather_way::push, .chunks = 2}, stream);      // on all ranks, with the same plan
//     a.wait_for(0, 1, stream);                                     // the second chunk of what rank 0 has made
//     use(stream, a.chunk(0, 1));
//     a.end(stream);                                                // this rank's shard may be made anew
//
// Words in each GPU's memory say how far the others are; they count the calls. What uses the rows comes before the next `begin` in its
// stream. A rank that dies leaves the others' streams waiting: end the process.
#include <parley/ops/rank.hpp>
#include <parley/transports/cuda_copies.hpp>
#include <parley/transports/cuda_space.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace examples {

namespace transports = parley::transports;
using parley::runtime::errc;
using parley::runtime::rank_id;
using parley::runtime::task;

enum class gather_way : std::uint8_t {
  pull,  ///< a rank's copy engine reads what others have made
  push,  ///< it writes what this rank has made to the others
};

struct gather_plan {
  gather_way way = gather_way::pull;
  unsigned chunks = 1;  ///< of each shard, at most `gathered_shards::most_chunks`
  rank_id step = 1;     ///< from one rank to the next, in the order in which their shards come
};

class gathered_shards {
 public:
  static constexpr unsigned most_chunks = 8;
  struct place {
    rank_id self = 0;
    rank_id world = 1;
    std::uint64_t rows = 0;  ///< of a shard
    std::uint64_t row_bytes = 0;
  };

  gathered_shards(transports::cuda_copies& gpu, parley::runtime::memory_space& space, place at)
      : gpu_(gpu.driver()), device_(gpu.device()), space_(space), at_(at),
        memory_(space.make(at.world * at.rows * at.row_bytes)),
        words_(space.make((2 + most_chunks) * at.world * sizeof(std::uint32_t))), peers_(at.world),
        signals_(gpu_.make_stream(device_)), copies_(gpu_.make_stream(device_)), started_(gpu_.make_event(device_)),
        pushed_(gpu_.make_event(device_)) {
    peers_[at.self] = {memory_->bytes().data(), words_->bytes().data()};
    for (std::size_t i = 0; i < at.world * most_chunks; ++i) copied_.push_back(gpu_.make_event(device_));
  }
  gathered_shards(const gathered_shards&) = delete;
  gathered_shards& operator=(const gathered_shards&) = delete;
  ~gathered_shards() {
    for (const auto e : copied_) gpu_.destroy(e);
    for (const auto e : {started_, pushed_}) gpu_.destroy(e);
    for (const auto s : {signals_, copies_}) gpu_.destroy(s);
    for (void* const m : mapped_) gpu_.close_imported(m);
  }

  /// Every rank learns where the others' rows and words are. Throws `unavailable` where a GPU's memory cannot be reached.
  task<> meet(parley::ops::rank& self) {
    const std::vector<std::byte> zeros(words_->bytes().size());
    co_await space_.copy(words_->bytes(), zeros);
    if (at_.world == 1) co_return;
    parley::ops::paired_transfer op{.name = "where shards are"};
    for (rank_id from = 0; from < at_.world; ++from) {
      for (rank_id to = 0; to < at_.world; ++to) {
        if (from != to) op.edges.emplace_back(from, to);
      }
    }
    parley::ops::transfer addresses = self.declare(op);
    const std::array mine{exported(memory_->bytes()), exported(words_->bytes())};
    parley::runtime::scope& here = co_await parley::runtime::this_scope;
    parley::runtime::scope all(here);
    std::vector<std::array<transports::exported_memory, 2>> theirs(at_.world);
    for (rank_id r = 0; r < at_.world; ++r) {
      if (r == at_.self) continue;
      all.spawn(addresses.send(mine, {.to = r}));
      all.spawn(told(addresses, &theirs[r], r));
    }
    co_await all.join();
    for (rank_id r = 0; r < at_.world; ++r) {
      if (r != at_.self) peers_[r] = {imported(theirs[r][0]), imported(theirs[r][1])};
    }
  }

  std::span<std::byte> all() const noexcept { return memory_->bytes(); }
  std::span<std::byte> shard(rank_id r) const noexcept {
    return all().subspan(r * at_.rows * at_.row_bytes, at_.rows * at_.row_bytes);
  }
  /// Which rows of a shard a chunk has: the first and how many.
  std::pair<std::uint64_t, std::uint64_t> rows_of(unsigned chunk) const noexcept {
    const std::uint64_t first = at_.rows * chunk / plan_.chunks;
    return {first, at_.rows * (chunk + 1) / plan_.chunks - first};
  }
  std::span<std::byte> chunk(rank_id r, unsigned i) const noexcept {
    const auto [first, count] = rows_of(i);
    return shard(r).subspan(first * at_.row_bytes, count * at_.row_bytes);
  }
  /// In the order in which they come, from 1 on; 0 is this rank.
  rank_id source(rank_id i) const noexcept { return (at_.self + i * plan_.step) % at_.world; }

  /// `stream` has made this rank's shard, and all that still reads the rows of the call before is in there, too.
  void begin(const gather_plan& plan, transports::cuda_stream stream) {
    plan_ = plan;
    ++call_;
    must(gpu_.record(started_, stream));
    for (const auto s : {signals_, copies_}) must(gpu_.wait(s, started_));
    for (rank_id r = 0; r < at_.world; ++r) {
      if (r != at_.self) must(gpu_.write_value(signals_, word(r, begun, at_.self), call_));
    }
    for (rank_id i = 1; i < at_.world; ++i) {
      if (plan.way == gather_way::pull) {
        pull(source(i));
      } else {
        push((at_.self + i * (at_.world - plan.step)) % at_.world);
      }
    }
    if (plan.way == gather_way::push) must(gpu_.record(pushed_, copies_));
  }
  /// What `stream` gets from here on comes after that chunk.
  void wait_for(rank_id from, unsigned chunk, transports::cuda_stream stream) {
    if (from == at_.self) {
      must(gpu_.wait(stream, started_));
    } else if (plan_.way == gather_way::pull) {
      must(gpu_.wait(stream, copied_[from * most_chunks + chunk]));
    } else {
      must(gpu_.wait_value(stream, word(at_.self, came + chunk, from), call_));
    }
  }
  /// What `stream` gets from here on may write this rank's shard.
  void end(transports::cuda_stream stream) {
    if (plan_.way == gather_way::push) must(gpu_.wait(stream, pushed_));
    for (rank_id r = 0; r < at_.world && plan_.way == gather_way::pull; ++r) {
      if (r != at_.self) must(gpu_.wait_value(stream, word(at_.self, taken, r), call_));
    }
  }

 private:
  struct peer {
    std::byte* memory = nullptr;
    std::byte* words = nullptr;
  };
  // What a rank's words say of each other rank: that it has begun a call, that it has taken this one's shard, and that its chunks are here.
  static constexpr unsigned begun = 0, taken = 1, came = 2;

  void* word(rank_id of, unsigned what, rank_id about) const noexcept {
    return peers_[of].words + (what * at_.world + about) * sizeof(std::uint32_t);
  }
  std::byte* there(rank_id r, std::span<const std::byte> chunk) const noexcept {
    return peers_[r].memory + (chunk.data() - memory_->bytes().data());
  }
  void pull(rank_id from) {
    must(gpu_.wait_value(copies_, word(at_.self, begun, from), call_));
    for (unsigned c = 0; c < plan_.chunks; ++c) {
      const auto to = chunk(from, c);
      must(gpu_.copy(to.data(), there(from, to), to.size(), copies_));
      must(gpu_.record(copied_[from * most_chunks + c], copies_));
    }
    must(gpu_.write_value(copies_, word(from, taken, at_.self), call_));
  }
  void push(rank_id to) {
    must(gpu_.wait_value(copies_, word(at_.self, begun, to), call_));
    for (unsigned c = 0; c < plan_.chunks; ++c) {
      const auto mine = chunk(at_.self, c);
      must(gpu_.copy(there(to, mine), mine.data(), mine.size(), copies_));
      must(gpu_.write_value(copies_, word(to, came + c, at_.self), call_));
    }
  }
  void must(errc e) const {
    if (e != errc::none) parley::runtime::raise({e, gpu_.fault()});
  }
  transports::exported_memory exported(std::span<const std::byte> memory) {
    const auto made = gpu_.export_memory(memory.data());
    return made.value();
  }
  std::byte* imported(const transports::exported_memory& theirs) {
    const auto opened = gpu_.import_memory(device_, theirs.handle);
    mapped_.push_back(opened.value());
    return static_cast<std::byte*>(mapped_.back()) + theirs.offset;
  }
  static task<> told(parley::ops::transfer addresses, std::array<transports::exported_memory, 2>* by, rank_id from) {
    co_await addresses.receive(*by, {.from = from});
  }

  transports::cuda_driver& gpu_;
  int device_;
  parley::runtime::memory_space& space_;
  place at_;
  std::unique_ptr<parley::runtime::memory_space::block> memory_;
  std::unique_ptr<parley::runtime::memory_space::block> words_;
  std::vector<peer> peers_;
  std::vector<void*> mapped_;
  transports::cuda_stream signals_;  // apart from copies, which wait for others
  transports::cuda_stream copies_;
  transports::cuda_event started_;
  transports::cuda_event pushed_;
  std::vector<transports::cuda_event> copied_;  // by rank and chunk
  gather_plan plan_;
  std::uint32_t call_ = 0;
};

}  // namespace examples
