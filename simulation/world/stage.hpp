#pragma once
/// A stage runs the ranks of a simulated job on one virtual time. Each rank has its own executor, so one rank can be frozen, slowed down
/// or restarted while the others continue.
///
///     stage s(4, {.seed = 7, .order = ordering::shuffled});
///     s.clock(2);                                   // the executor of rank 2
///     s.freeze(2, runtime::never);                  // like SIGSTOP: none of its coroutines is resumed, its timers and messages wait
///     while (s.step()) …                            // one coroutine, or one event
///     s.clock(2).spend(1_ms);                       // in a coroutine of rank 2: it has computed for 1 ms
///
/// Time stands still while any rank is ready to run. A run is a pure function of the seed and of the events put on the stage. `order`
/// chooses which ready rank runs first. A rank that computes inside a turn is busy for that long: the rest of its turn happens later,
/// its messages wait until then, and it handles them before any of its timers fires.
#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/simulation/world/dice.hpp>
#include <parley/simulation/world/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::simulation {

enum class ordering : std::uint8_t {
  arrival,   ///< first come, first served
  shuffled,  ///< by chance
  latest,    ///< last in, first out
  starving,  ///< one rank runs only when no other rank can
};
std::string_view name(ordering o) noexcept;

class stage final : public timeline {
 public:
  struct options {
    std::uint64_t seed = 1;
    ordering order = ordering::arrival;
    rank_id starved = 0;
    bool inside = false;             ///< `order` also holds among the tasks of a rank; `starving` starves one of them
    std::uint32_t starved_task = 1;  ///< number of the starved task; tasks are numbered as they are spawned
    std::vector<time_ns> offsets{};  ///< added to the time of the stage on each rank's clock; empty: 0
  };
  stage(rank_id ranks, options o);
  ~stage() override;

  rank_id ranks() const noexcept { return static_cast<rank_id>(players_.size()); }
  runtime::virtual_time& clock(rank_id r) noexcept { return players_[r]->clock; }
  /// Virtual time. Inside a turn it includes the time that the rank has computed in that turn.
  time_ns now() const noexcept override {
    return acting_ == nobody ? now_ : std::max(now_, ends_computing(*players_[acting_]));
  }
  void at(time_ns when, rank_id where, std::unique_ptr<event> e) override;
  template <class F>
  void at(time_ns when, rank_id where, F f) {
    struct call final : event {
      explicit call(F g) : function(std::move(g)) {}
      void happen() override { function(); }
      F function;
    };
    at(when, where, std::unique_ptr<event>(std::make_unique<call>(std::move(f))));
  }
  /// Runs `f` as if rank `r` did, on the clock of `r`. Later steps resume the coroutines of `r` that `f` makes ready.
  template <class F>
  void as(rank_id r, F f) {
    const rank_id other = acting_;
    catch_up(r);
    f();
    look_at(r);
    acting_ = other;
  }
  /// The rank whose turn it is; `nobody` outside turns.
  rank_id acting() const noexcept { return acting_; }

  /// One step of one rank. False when nothing can happen any more.
  bool step();
  /// Steps until time `t`, or until nothing can happen any more.
  void run_to(time_ns t);
  template <class Holds>
  bool run_until(Holds holds, time_ns limit) {
    while (!holds()) {
      if (next() > limit || !step()) return false;
    }
    return true;
  }

  /// Stops rank `r` until that time. A longer freeze replaces a shorter one.
  void freeze(rank_id r, time_ns until);
  void thaw(rank_id r);
  bool frozen(rank_id r) const noexcept { return players_[r]->frozen_until > now_; }
  /// How long `r` has been computing or frozen; 0 if it is neither.
  time_ns stands_still(rank_id r) const noexcept { return frozen(r) ? now_ - players_[r]->frozen_since : 0; }
  /// After each turn of a coroutine of `r`, `r` stands still for `per_turn_ns`.
  void slow_down(rank_id r, time_ns per_turn_ns) { players_[r]->turn_ns = per_turn_ns; }

  /// The number of events and resumed coroutines so far, and a hash of them, which is equal in equal runs.
  std::uint64_t steps() const noexcept { return steps_; }
  std::uint64_t hash() const noexcept { return hash_; }
  void note(std::uint64_t what) noexcept { hash_ = runtime::mix(hash_ ^ what) + 0x9e3779b97f4a7c15U; }

 private:
  struct alignas(64) player {
    explicit player(std::uint64_t seed) : clock(seed) {}
    time_ns offset = 0;
    time_ns frozen_until = 0;
    time_ns frozen_since = 0;
    time_ns turn_ns = 0;
    bool listed = false;         ///< in `ready_`
    std::uint32_t computed = 0;  ///< how often the rank has computed inside a turn
    runtime::virtual_time clock;
    // Events that happen once the rank is thawed.
    std::unique_ptr<std::vector<std::unique_ptr<event>>> held;
  };
  static time_ns ends_computing(const player& p) noexcept { return p.clock.busy_until() - p.offset; }
  time_ns next() { return ready_.size() == 0 ? queue_.next() : now_; }
  void catch_up(rank_id r);
  void look_at(rank_id r);
  void stay_busy(rank_id r);
  rank_id take_ready();
  void fetch_ahead() noexcept;
  void count_step() noexcept;
  void turn(rank_id r);
  void happen(event_queue::entry e);

  options options_;
  std::vector<std::unique_ptr<player>> players_;
  runtime::message_ring<rank_id> ready_;
  event_queue queue_;
  dice luck_;
  time_ns now_ = 0;
  rank_id acting_ = nobody;  ///< whose turn it is
  std::uint64_t steps_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace parley::simulation
