#pragma once
/// All ranks of a job in one process and one thread, on one executor: for many ranks on one GPU, and for trying out a program
/// before it runs as several processes.
///
///     process_world world(8);                            // or process_world world(copies_of_each_rank) for device buffers
///     loop.attach(world);
///     rank r({loop, world[0], …}, settings);
///
/// `send` copies payloads of up to `eager_bytes`. Larger ones stay with their sender until the receiver fetches them, in one
/// copy, straight between the two buffers. With `cuda_copies` for the ranks a buffer may lie on a device (plane `cuda_copy`):
/// the receiver's streams copy the payload, after the work that either rank named by `cuda_copies::after`, and no thread waits
/// for a stream. Puts and gets work the same way between any two ranks' exposed memory; withdrawn memory refuses new ones.
///
/// `poll` delivers all messages in the order in which they were sent. No rank can die alone. If the receiver drops a message, its send
/// still ends with `none`. When a GPU fails, its copies end with `device_failed`.
#include <parley/cuda_copies.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace parley::transports {

class process_world;

class process_link final : public runtime::link {
 public:
  process_link(process_world& world, runtime::rank_id rank, cuda_copies* copies) noexcept
      : world_(world), rank_(rank), copies_(copies) {}

  runtime::rank_id rank() const noexcept override { return rank_; }
  runtime::rank_id world_size() const noexcept override;
  bool shares_process_with(runtime::rank_id) const noexcept override { return true; }
  void listen(channel on, handler* to) override;
  void on_failure(failure_handler*) override {}
  runtime::errc send(runtime::rank_id to, channel on, std::span<const std::byte> header,
                     std::span<const std::byte> payload, runtime::completion* done) override;
  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  /// Does nothing: a large payload ends when the receiver fetches or drops it.
  void cancel(runtime::completion&) override {}
  /// Takes back a payload that was not fetched yet; fetching it then fails. A copy that a GPU has begun runs to its end.
  void abandon(runtime::completion& pending) noexcept override;
  const counters& statistics() const noexcept override { return counters_; }
  runtime::result<> one_sided() const override { return {}; }
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override;
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override;
  runtime::errc put(runtime::rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                    runtime::completion* done) override;
  runtime::errc get(runtime::rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                    runtime::completion* done) override;
  runtime::errc fence(runtime::rank_id to, runtime::completion* done) override;
  /// Null if this rank's buffers lie in host memory.
  cuda_copies* copies() const noexcept { return copies_; }

 private:
  friend process_world;
  void release(const void* held, bool remote) noexcept override;
  void hand_over(channel on);
  bool on_device(const void* address) const noexcept;
  runtime::errc move(std::span<std::byte> to, std::span<const std::byte> from, const process_link& other,
                     runtime::completion* done, runtime::device_copy by) noexcept;

  process_world& world_;
  runtime::rank_id rank_;
  cuda_copies* copies_;
  handler* handlers_[channels]{};
  std::vector<runtime::arrival> kept_[channels];
  counters counters_;
  bool put_failed_ = false;  // a device failed during a put; all later fences of this rank fail
};

class process_world final : public runtime::poller {
 public:
  static constexpr std::size_t eager_bytes = std::size_t{16} << 10U;

  explicit process_world(runtime::rank_id ranks);
  /// `copies` has one entry for each rank, null for host memory; they must outlive the world.
  explicit process_world(const std::vector<cuda_copies*>& copies);
  ~process_world() override;
  process_world(const process_world&) = delete;
  process_world& operator=(const process_world&) = delete;

  process_link& operator[](runtime::rank_id r) { return *links_[r]; }
  runtime::rank_id size() const noexcept { return static_cast<runtime::rank_id>(links_.size()); }

  // runtime::poller
  bool poll() override;
  arm_state arm() override { return idle() ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_fd_; }

 private:
  friend process_link;
  // A payload that waits at its sender. Empty and without `sender` once it was taken back.
  struct offered : runtime::list_hook {
    offered(std::span<const std::byte> p, runtime::completion* s, const process_link* f) noexcept
        : payload(p), sender(s), from(f) {}
    std::span<const std::byte> payload;
    runtime::completion* sender;
    const process_link* from;
  };
  struct message {
    runtime::rank_id to;
    runtime::link::channel on;
    runtime::arrival what;
  };
  struct region {
    runtime::rank_id owner;
    std::span<std::byte> bytes;
    bool withdrawn = false;
    std::size_t written = 0;  // number of puts in flight
  };
  struct ended_operation {
    runtime::completion* done;
    runtime::errc outcome;
  };
  struct new_listener {
    runtime::rank_id rank;
    runtime::link::channel on;
  };
  struct copying;
  bool idle() const noexcept { return messages_.empty() && ended_.empty() && listeners_.empty(); }
  region* find(runtime::rank_id owner, const runtime::remote_place& at, std::size_t bytes) noexcept;
  void end(runtime::completion* done, runtime::errc outcome) {
    if (done != nullptr) ended_.push_back({done, outcome});
  }
  void look_at_fences();

  struct waiting_fence {
    runtime::rank_id from;
    runtime::rank_id to;
    std::uint64_t last_put;
    runtime::completion* done;
  };
  struct flying_put {
    runtime::rank_id from;
    runtime::rank_id to;
    std::uint64_t number;
  };

  int event_fd_;
  std::vector<std::unique_ptr<process_link>> links_;
  std::deque<message> messages_;
  std::vector<ended_operation> ended_;
  std::vector<new_listener> listeners_;  // new handlers that have kept messages waiting
  runtime::intrusive_list<offered> offers_;
  std::deque<region> regions_;
  std::deque<flying_put> puts_;
  std::deque<waiting_fence> fences_;
  std::uint64_t last_put_ = 0;
};

inline runtime::rank_id process_link::world_size() const noexcept { return world_.size(); }

}  // namespace parley::transports
