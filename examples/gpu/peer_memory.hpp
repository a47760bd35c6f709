#pragma once
// Shards of a matrix in the memory of several ranks, one process per GPU. Copy engines bring chunks of the shards
// from rank to rank, and the ranks tell each other their progress by words in GPU memory, which count the calls.
// Everything in a call is enqueued; no processor takes part.
//
// If a rank is gone, this rank writes the words that its own streams still expect from it, so that they continue and
// the GPUs can be released. `reached` then throws, because the memory holds no valid result.
#include <parley/cuda_copies.hpp>
#include <parley/cuda_space.hpp>
#include <parley/op_end.hpp>
#include <parley/rank.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace examples {

namespace transports = parley::transports;
using parley::runtime::errc;
using parley::runtime::rank_id;
using parley::runtime::task;

enum class copy_way : std::uint8_t {
  pull,  ///< a rank's copy engine reads the other ranks' shards
  push,  ///< a rank's copy engine writes its shards to the other ranks
};

/// How a call moves shards; must be the same on all ranks.
struct copy_plan {
  copy_way way = copy_way::pull;
  unsigned chunks = 1;  ///< per shard, at most `peer_memory::most_chunks`
  rank_id step = 1;     ///< distance from one rank to the next, in the order in which shards arrive
};

/// This rank's place among the ranks that have shards, and the size of a shard.
struct shard_place {
  rank_id self = 0;
  rank_id world = 1;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
};

inline void must(transports::cuda_driver& gpu, errc e) {
  if (e != errc::none) parley::runtime::raise({e, gpu.fault()});
}

class peer_memory {
 public:
  static constexpr unsigned most_chunks = 8;
  /// The words that a rank holds about each other rank: it has begun a call, it has taken its data from this rank,
  /// and its chunks for this rank have arrived. `came` is the word of the first chunk; those of the other chunks
  /// follow it.
  enum class word : unsigned { begun, taken, came };
  /// One shard of a rank.
  struct place {
    rank_id rank = 0;
    std::size_t shard = 0;
  };

  /// Allocates `shards` shards on each rank.
  peer_memory(transports::cuda_copies& gpu, parley::runtime::memory_space& space, shard_place at, std::size_t shards)
      : gpu_(gpu.driver()), device_(gpu.device()), space_(space), at_(at),
        memory_(space.make(shards * at.rows * at.row_bytes)),
        words_(space.make((2 + most_chunks) * at.world * sizeof(std::uint32_t))), peers_(at.world),
        waited_for_(words_->bytes().size() / sizeof(std::uint32_t)),
        said_(transports::cuda_memory::pinned(gpu_, words_->bytes().size())), engine_(gpu),
        signals_(gpu_.make_stream(device_)), copies_(gpu_.make_stream(device_)), releases_(gpu_.make_stream(device_)),
        started_(gpu_.make_event(device_)), copied_(gpu_.make_event(device_)), looked_(gpu_.make_event(device_)) {
    peers_[at.self] = {memory_->bytes().data(), words_->bytes().data()};
  }
  peer_memory(const peer_memory&) = delete;
  peer_memory& operator=(const peer_memory&) = delete;
  ~peer_memory() {
    *told_of_losses_ = nullptr;
    if (reached_ != call_) release_all();
    for (const auto e : {started_, copied_, looked_}) gpu_.destroy(e);
    for (const auto s : {signals_, copies_, releases_}) gpu_.destroy(s);
    for (std::byte* const m : mapped_) gpu_.close_imported(m);
  }

  /// Exchanges the addresses of all ranks' shards and words. Throws `unavailable` if a GPU's memory cannot be
  /// reached.
  task<> meet(parley::ops::rank& self, std::string name) {
    const std::vector<std::byte> zeros(words_->bytes().size());
    co_await space_.copy(words_->bytes(), zeros);
    if (at_.world == 1) co_return;
    parley::ops::transfer_options op{.name = std::move(name)};
    for (rank_id from = 0; from < at_.world; ++from) {
      for (rank_id to = 0; to < at_.world; ++to) {
        if (from != to) op.edges.emplace_back(from, to);
      }
    }
    parley::ops::transfer addresses(self, op);
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
    for (rank_id r = 0; r < at_.world; ++r) {
      if (r != at_.self) self.attach(std::make_unique<loss_of>(at_.self, r, op.name, told_of_losses_));
    }
  }
  /// Waits until all work that `stream` holds now has ended; `stream` must hold all calls so far. Throws
  /// `peer_failed` if a rank was lost that a call waited for, `device_failed` if the GPU fails.
  task<> reached(transports::cuda_stream stream) {
    const std::uint32_t call = call_;
    auto there = co_await transports::reached(engine_, stream);
    there.value();
    if (released_) parley::runtime::raise(*gone_);
    reached_ = call;
  }

  rank_id self() const noexcept { return at_.self; }
  rank_id world() const noexcept { return at_.world; }
  const copy_plan& plan() const noexcept { return plan_; }
  /// The rank that is `steps` steps of the plan after, or before, this rank.
  rank_id after(rank_id steps) const noexcept { return (at_.self + steps * plan_.step) % at_.world; }
  rank_id before(rank_id steps) const noexcept { return (at_.self + steps * (at_.world - plan_.step)) % at_.world; }

  std::span<std::byte> all() const noexcept { return memory_->bytes(); }
  std::span<std::byte> shard(std::size_t i) const noexcept {
    return all().subspan(i * at_.rows * at_.row_bytes, at_.rows * at_.row_bytes);
  }
  /// The rows of a shard that chunk `chunk` covers: the first row and their number.
  std::pair<std::uint64_t, std::uint64_t> rows_of(unsigned chunk) const noexcept {
    const std::uint64_t first = at_.rows * chunk / plan_.chunks;
    return {first, at_.rows * (chunk + 1) / plan_.chunks - first};
  }
  std::span<std::byte> chunk(std::size_t shard_index, unsigned i) const noexcept {
    const auto [first, count] = rows_of(i);
    return shard(shard_index).subspan(first * at_.row_bytes, count * at_.row_bytes);
  }

  /// Begins a call and tells the other ranks. The call's copies and signals follow all work that `stream` holds now.
  /// Throws `peer_failed` if a rank is gone.
  void begin(const copy_plan& plan, transports::cuda_stream stream) {
    if (gone_) parley::runtime::raise(*gone_);
    plan_ = plan;
    ++call_;
    must(gpu_, gpu_.record(started_, stream));
    for (const auto s : {signals_, copies_}) follow(s);
    for (rank_id r = 0; r < at_.world; ++r) {
      if (r != at_.self) tell(r, word::begun, 0, signals_);
    }
  }
  /// Later work in `s` waits for the beginning of the call.
  void follow(transports::cuda_stream s) { must(gpu_, gpu_.wait(s, started_)); }
  /// Later work in `stream` may overwrite the shards that other ranks pull and that this rank pushes.
  void end(transports::cuda_stream stream) {
    if (plan_.way == copy_way::push) {
      must(gpu_, gpu_.record(copied_, copies_));
      must(gpu_, gpu_.wait(stream, copied_));
      return;
    }
    for (rank_id r = 0; r < at_.world; ++r) {
      if (r != at_.self) wait_for(word::taken, 0, r, stream);
    }
  }

  transports::cuda_stream copies() const noexcept { return copies_; }
  transports::cuda_stream signals() const noexcept { return signals_; }  ///< never waits for other ranks
  /// Enqueues a copy on the copy stream. One of the two places must be on this rank.
  void copy(place to, place from, unsigned chunk_index) {
    const auto mine = chunk(to.rank == at_.self ? to.shard : from.shard, chunk_index);
    must(gpu_, gpu_.copy(address(to, chunk_index), address(from, chunk_index), mine.size(), copies_));
  }
  /// Tells rank `r` that this rank has reached `what`, once all earlier work in `s` has ended.
  void tell(rank_id r, word what, unsigned chunk_index, transports::cuda_stream s) {
    must(gpu_, gpu_.write_value(s, at(r, what, chunk_index, at_.self), call_));
  }
  /// Later work in `s` waits until rank `r` has told this rank `what`.
  void wait_for(word what, unsigned chunk_index, rank_id r, transports::cuda_stream s) {
    waited_for_[index(what, chunk_index, r)] = call_;
    must(gpu_, gpu_.wait_value(s, at(at_.self, what, chunk_index, r), call_));
  }

 private:
  /// Reports the loss of one other rank to the `peer_memory`, if that still exists. Lives as long as this rank.
  class loss_of final : public parley::ops::op_end {
   public:
    loss_of(rank_id self, rank_id other, const std::string& name, std::shared_ptr<peer_memory*> tell)
        : declaration_(parley::actors::declare_edge(name + ": losses", self, other, "")), other_(other),
          tell_(std::move(tell)) {}
    const parley::actors::op_declaration& declaration() const noexcept override { return declaration_; }
    bool ends_with(rank_id r) const noexcept override { return r == other_; }
    void fail(const parley::runtime::error& why) noexcept override {
      if (*tell_ != nullptr) (*tell_)->on_lost(other_, why);
    }

   private:
    parley::actors::op_declaration declaration_;
    rank_id other_;
    std::shared_ptr<peer_memory*> tell_;
  };
  struct peer {
    std::byte* memory = nullptr;
    std::byte* words = nullptr;
  };

  std::size_t index(word what, unsigned chunk_index, rank_id about) const noexcept {
    return (static_cast<unsigned>(what) + chunk_index) * at_.world + about;
  }
  void* at(rank_id of, word what, unsigned chunk_index, rank_id about) const noexcept {
    return peers_[of].words + index(what, chunk_index, about) * sizeof(std::uint32_t);
  }
  std::byte* address(place p, unsigned chunk_index) const noexcept {
    return peers_[p.rank].memory + (chunk(p.shard, chunk_index).data() - memory_->bytes().data());
  }
  transports::exported_memory exported(std::span<const std::byte> memory) {
    const auto made = gpu_.export_memory(memory.data());
    return made.value();
  }
  std::byte* imported(const transports::exported_memory& theirs) {
    const auto opened = gpu_.import_memory(device_, theirs.handle);
    mapped_.push_back(opened.value().data());
    return opened.value().data() + theirs.offset;
  }
  void on_lost(rank_id other, const parley::runtime::error& why) noexcept {
    if (!gone_) gone_ = why;
    // A rank that completed its part before it left is not needed any more. Reading the words waits for no other
    // rank.
    const errc looked = look_at_words();
    const auto* const said = reinterpret_cast<const std::uint32_t*>(said_.bytes().data());
    for (std::size_t i = other; i < waited_for_.size(); i += at_.world) {
      if (looked == errc::none && static_cast<std::int32_t>(said[i] - waited_for_[i]) >= 0) continue;
      released_ = true;
      static_cast<void>(write_own(i));  // `reached` reports an error of the GPU
    }
  }
  errc look_at_words() noexcept {
    errc e = gpu_.copy(said_.bytes().data(), words_->bytes().data(), said_.bytes().size(), releases_);
    if (e == errc::none) e = gpu_.record(looked_, releases_);
    while (e == errc::none && (e = gpu_.query(looked_)) == errc::pending) e = errc::none;
    return e;
  }
  void release_all() noexcept {
    for (std::size_t i = 0; i < waited_for_.size(); ++i) static_cast<void>(write_own(i));
  }
  errc write_own(std::size_t i) noexcept {
    return gpu_.write_value(releases_, words_->bytes().data() + i * sizeof(std::uint32_t), waited_for_[i]);
  }
  static task<> told(parley::ops::transfer addresses, std::array<transports::exported_memory, 2>* by, rank_id from) {
    co_await addresses.receive(*by, {.from = from});
  }

  transports::cuda_driver& gpu_;
  int device_;
  parley::runtime::memory_space& space_;
  shard_place at_;
  std::unique_ptr<parley::runtime::memory_space::block> memory_;
  std::unique_ptr<parley::runtime::memory_space::block> words_;
  std::vector<peer> peers_;
  std::vector<std::byte*> mapped_;
  std::vector<std::uint32_t> waited_for_;  // by word: the call that this rank's streams wait for
  transports::cuda_memory said_;           // a host copy of the words
  transports::cuda_copies& engine_;
  transports::cuda_stream signals_;
  transports::cuda_stream copies_;
  transports::cuda_stream releases_;  // never waits for anything
  transports::cuda_event started_;
  transports::cuda_event copied_;
  transports::cuda_event looked_;
  copy_plan plan_;
  std::uint32_t call_ = 0;
  std::uint32_t reached_ = 0;                   // the last call that is known to have ended
  std::optional<parley::runtime::error> gone_;  // why a rank was lost, if one was
  bool released_ = false;                       // streams that waited for it were released
  std::shared_ptr<peer_memory*> told_of_losses_ = std::make_shared<peer_memory*>(this);
};

/// One event for each chunk of each rank.
class chunk_events {
 public:
  chunk_events(transports::cuda_copies& gpu, rank_id world) : gpu_(gpu.driver()) {
    for (std::size_t i = 0; i < std::size_t{world} * peer_memory::most_chunks; ++i)
      events_.push_back(gpu_.make_event(gpu.device()));
  }
  chunk_events(const chunk_events&) = delete;
  chunk_events& operator=(const chunk_events&) = delete;
  ~chunk_events() {
    for (const auto e : events_) gpu_.destroy(e);
  }
  void record(rank_id r, unsigned chunk, transports::cuda_stream s) { must(gpu_, gpu_.record(of(r, chunk), s)); }
  void before(rank_id r, unsigned chunk, transports::cuda_stream s) { must(gpu_, gpu_.wait(s, of(r, chunk))); }

 private:
  transports::cuda_event of(rank_id r, unsigned chunk) const noexcept {
    return events_[r * peer_memory::most_chunks + chunk];
  }
  transports::cuda_driver& gpu_;
  std::vector<transports::cuda_event> events_;
};

}  // namespace examples
