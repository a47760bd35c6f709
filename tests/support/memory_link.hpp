#pragma once
/// A world of ranks in one process, on one virtual clock. Each rank has a link whose messages take a latency and a time per byte.
/// Payloads up to `eager_bytes` are copied when sent; larger ones stay with the sender until they are fetched.
///
/// A put completes at its origin after its transfer time, and lands later: after `landing_ns`, in any order with messages, or when the test
/// calls `land`. A put outside the memory that its key names fails. A put into withdrawn memory is dropped if `late` is `fail`.
#include <parley/config.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <vector>

namespace parley::tests {

using runtime::errc;
using runtime::rank_id;
using runtime::time_ns;

struct memory_link_options {
  time_ns latency_ns = 1'000;
  double ns_per_byte = 0.1;
  std::size_t eager_bytes = 8192;
  std::function<bool(rank_id from, rank_id to, runtime::link::channel on)> lose;
  std::function<time_ns(rank_id from, rank_id to, runtime::link::channel on)> delay;  ///< added to the latency
  std::function<bool(rank_id from, rank_id to, runtime::link::channel on)> breaks{};  ///< sends fail with `peer_failed`
  enum class memory : std::uint8_t { none, exposed } one_sided = memory::exposed;
  enum class fences : std::uint8_t { work, do_nothing, fail } fence = fences::work;
  enum class announcements : std::uint8_t { none, arrive, cut_short } announces = announcements::none;  ///< behind puts
  runtime::late_writes late = runtime::late_writes::fail;
  double one_sided_ns_per_byte = 0.1;
  time_ns landing_ns = 5'000;  ///< from a put's completion until it lands; `never`: when the test calls `land`
  /// A sender can take back a payload that it still keeps, such as lent memory; a later fetch fails.
  bool takes_back = false;
  std::size_t short_bytes = 128;  ///< `link::short_bytes`
};

class memory_world;

class memory_link final : public runtime::link {
 public:
  memory_link(memory_world& w, rank_id r) : world_(w), rank_(r) {}
  rank_id rank() const noexcept override { return rank_; }
  rank_id world_size() const noexcept override;
  std::size_t short_bytes() const noexcept override;
  void listen(channel on, handler* to) override;
  void on_failure(failure_handler* to) override { failure_ = to; }
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            runtime::completion* done) override;
  errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  void cancel(runtime::completion& pending) override;
  void abandon(runtime::completion& pending) noexcept override;
  const counters& statistics() const noexcept override { return counters_; }
  runtime::result<> one_sided() const override;
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override;
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override;
  errc put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
           runtime::completion* done) override;
  errc get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
           runtime::completion* done) override;
  errc fence(rank_id to, runtime::completion* done) override;
  errc announce(rank_id to, channel on, std::span<const std::byte> header, runtime::completion* done) override;
  void deliver(channel on, runtime::arrival&& m);

 private:
  friend memory_world;
  using message_behind = std::optional<std::pair<channel, std::vector<std::byte>>>;
  errc start_fence(rank_id to, runtime::completion* done, message_behind brings);
  void release(const void* held, bool remote) noexcept override;
  memory_world& world_;
  rank_id rank_;
  handler* handlers_[channels]{};
  std::vector<runtime::arrival> kept_[channels];
  failure_handler* failure_ = nullptr;
  bool gone_ = false;  // its process has ended
  counters counters_;
};

class memory_world {
 public:
  memory_world(runtime::executor& ex, rank_id n, memory_link_options o = {});
  // Ends all operations in flight, as a transport that closes does: their owners get their buffers back.
  ~memory_world();
  memory_link& operator[](rank_id r) { return *links_[r]; }
  memory_link_options& options() { return options_; }

  /// Ends the process of a rank, and all transports know it: the rank sends and receives nothing more, and operations that wait for it end
  /// with `peer_failed`. Puts that it made before still land.
  void end_process(rank_id r);

  struct put_counters {
    std::size_t landed = 0;
    std::size_t nowhere = 0;  ///< into withdrawn memory, or memory of a rank that has ended
    std::size_t outside = 0;  ///< outside the memory of the key, or with an unknown key: a fault of the protocol
    std::size_t in_the_air = 0;
  };
  const put_counters& puts() const noexcept { return puts_; }
  /// Lands the oldest put in the air. Returns whether there was one.
  bool land();

 private:
  friend memory_link;
  enum class outcome : std::uint8_t { due, torn_down };
  struct event;
  void after(time_ns delay, std::function<void(outcome)> f);
  /// True if the operation's buffer is gone. Called once, when the operation ends.
  bool was_abandoned(runtime::completion* c);
  // A payload that stays with its sender until it is fetched. `sender` is null once the sender has taken it back.
  struct offered {
    std::span<const std::byte> payload;
    runtime::completion* sender = nullptr;
    rank_id from = 0;
  };
  using offer = std::shared_ptr<offered>;
  bool take_back(const runtime::completion& pending);
  struct flying_put {
    std::uint64_t number;
    rank_id from;
    rank_id to;
    std::uint64_t key;
    std::uint64_t address;
    std::vector<std::byte> data;
    bool left_origin = false;
  };
  struct waiting_fence {
    rank_id from;
    rank_id to;
    std::uint64_t last_put;
    time_ns asked_there_ns;  // when the question reaches the peer
    runtime::completion* done;
    memory_link::message_behind brings;
  };
  // The exposed memory that a key and an address name, or null.
  std::byte* place_of(rank_id owner, std::span<const std::byte> key, std::uint64_t address, std::size_t bytes);
  std::deque<flying_put>::iterator find_put(std::uint64_t number);
  void leave_origin(std::uint64_t number, std::span<const std::byte> data);
  void land(const std::deque<flying_put>::iterator& at);
  void end_fences();
  struct region {
    rank_id owner;
    std::uint64_t number;
    std::span<std::byte> bytes;
    bool withdrawn = false;
  };
  time_ns one_sided_time_of(std::size_t bytes) const {
    return options_.latency_ns + static_cast<time_ns>(options_.one_sided_ns_per_byte * static_cast<double>(bytes));
  }
  time_ns time_of(std::size_t bytes) const {
    return options_.latency_ns + static_cast<time_ns>(options_.ns_per_byte * static_cast<double>(bytes));
  }

  runtime::executor& ex_;
  memory_link_options options_;
  std::list<std::unique_ptr<event>> events_;
  std::vector<region> regions_;  // of all ranks; the number of a region is its index + 1
  std::deque<flying_put> flying_;
  std::vector<std::weak_ptr<offered>> offers_;
  std::vector<waiting_fence> fences_;
  std::set<runtime::completion*> abandoned_;  // completions of operations that have not ended
  std::uint64_t last_put_ = 0;
  put_counters puts_;
  std::vector<std::unique_ptr<memory_link>> links_;
};

}  // namespace parley::tests
