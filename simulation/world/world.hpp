#pragma once
/// All ranks of one simulated job: real `ops::rank`s over virtual links and disks, and the faults that can hit them.
///
///     world w({.ranks = 3, .seed = 7}, weather);
///     w.start_all([&](rank_id r) { w.programs_of(r).spawn(program(w[r])); });
///     w.crash(2);                    // its coroutines and its memory are gone; the others notice after the detection time
///     w.restart(2, 10'000'000);      // a crash; after 10 ms a new process takes its place, and the others learn of it one by one
///     w.pause(1, 50'000'000);
///     w.run_to(1'000'000'000);
///
/// If a rank is stopped for longer than the detection time, the others declare it dead; it is fenced when it continues. `end_job` and then
/// `start_all` begin a new job of the same ranks with new incarnations and the old disks.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/services.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_peers.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/wire/incarnations.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>
#include <parley/simulation/world/disk.hpp>
#include <parley/simulation/world/network.hpp>
#include <parley/simulation/world/stage.hpp>
#include <parley/simulation/world/weather.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::simulation {

struct world_options {
  rank_id ranks = 2;
  std::uint64_t seed = 1;
  link_model link{};
  ordering order = ordering::arrival;
  rank_id starved = 0;
  bool order_inside = false;  ///< see stage.hpp
  std::uint32_t starved_task = 1;
  std::vector<time_ns> offsets{};      ///< of each rank's clock; if given, each rank is on its own host
  time_ns detection_ns = 100'000'000;  ///< how long a death goes unnoticed at most
  std::uint32_t control_window = runtime::router::options{}.window;
  ops::rank_settings settings{};
  actors::broken_rule breaks = actors::broken_rule::none;  ///< the rule that each rank breaks, for mutants
  /// Changes the settings of one rank in one job; jobs count from 1. May be empty.
  std::function<void(rank_id, std::uint64_t job, ops::rank_settings&)> of_rank{};
};

class world {
 public:
  world(world_options o, interference* weather);
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world();

  /// Starts all ranks of a new job, then calls `launch` for each of them.
  void start_all(std::function<void(rank_id)> launch);
  /// Ends all living ranks at once, and destroys their suspended coroutines.
  void end_job();
  /// The scope in which the program of a rank runs. It ends with the rank.
  runtime::scope& programs_of(rank_id r) { return *nodes_[r]->programs; }

  ops::rank& operator[](rank_id r) { return *nodes_[r]->rank; }
  const ops::rank* find(rank_id r) const noexcept { return nodes_[r]->rank.get(); }
  simulation::stage& stage() noexcept { return stage_; }
  simulation::network& network() noexcept { return network_; }
  simulation::disk& disk(rank_id r) noexcept { return nodes_[r]->disk; }
  rank_id ranks() const noexcept { return stage_.ranks(); }
  const world_options& options() const noexcept { return options_; }
  /// Number of jobs started so far.
  std::uint64_t job() const noexcept { return job_; }
  std::size_t programs() const noexcept;  ///< running programs of living ranks
  bool all_ended() const noexcept;        ///< true if no program runs; cheap enough to call at each step

  void crash(rank_id r);
  /// Like `crash`, for a rank whose program failed with `why`. As under `run`, the rank tells the others the cause, which they learn one
  /// latency later.
  void fail(rank_id r, const runtime::error& why);
  /// Ends the process of a rank whose program has returned and that has nothing left to send. All living ranks learn that it has returned.
  void leave(rank_id r);
  /// Stops a rank whose program is inside std::exit: nothing more happens to the rank, but its memory stays, because that call still uses
  /// it. For the others this is like a crash.
  void exit(rank_id r);
  /// True if the latest process of the rank ended by `leave`.
  bool has_left(rank_id r) const noexcept { return nodes_[r]->left; }
  void restart(rank_id r, time_ns absent_ns);
  /// How often `members` of an op have restarted in this job, as far as `known_to` knows. Equal numbers mean equal generations.
  std::uint64_t returns(rank_id known_to, const std::vector<rank_id>& members) const noexcept;
  void pause(rank_id r, time_ns span);
  /// An op of `by` gives up rank `r`, so all other ranks declare `r` dead, and `r` is fenced.
  void suspect(rank_id r, rank_id by);
  /// `slow`: each step of the rank takes a microsecond; `usual`: no time.
  enum class pace : std::uint8_t { usual, slow };
  void set_pace(rank_id r, pace p);
  /// Schedules a mishap of a rank at `began_ns + m.at_ns`, in this job only. Ignores mishaps of messages, which the weather handles.
  void befall(const mishap& m, time_ns began_ns);
  /// Called at every change of pace, so that other parts of the rank, such as its kernels, can change theirs.
  std::function<void(rank_id, pace)> on_pace;
  /// Called before a rank ends, while all of its state can still be read.
  std::function<void(rank_id)> before_end;
  /// Called when rank `who` learns that `peer` has restarted: before the ops of `who` learn of it, and after.
  std::function<void(rank_id who, rank_id peer)> before_meeting;
  std::function<void(rank_id who, rank_id peer)> after_meeting;
  /// Called when a rank continues that the others have declared dead.
  std::function<void(rank_id)> on_fenced;

 private:
  /// The process of a rank; it passes news of other ranks to the rank. The world itself tells each rank which ranks are dead, so no rank
  /// publishes a death.
  struct node final : runtime::link::failure_handler, ops::rank_peers {
    explicit node(world& w, rank_id r) : owner(w), self(r), disk(dice(w.options_.seed, purpose::disk, r)) {}
    void on_peer_failed(rank_id peer) noexcept override;
    void close_link(rank_id peer) noexcept override;
    bool link_is_down(rank_id) const noexcept override { return true; }
    /// Nothing to wait for: a rank leaves only after all its messages have arrived.
    void await_goodbye(rank_id peer) override { peers().hear(peer, actors::evidence::goodbye_is_over); }
    void publish_death(rank_id) noexcept override {}
    std::vector<std::pair<rank_id, std::string>> verdicts() const override { return {}; }
    void pass_on(rank_id, const std::string&) override {}
    std::optional<std::uint64_t> meet(rank_id peer) override;
    std::string why_fenced() const override { return fenced; }
    world& owner;
    rank_id self;
    simulation::disk disk;
    std::unique_ptr<ops::rank> rank;
    std::unique_ptr<runtime::scope> programs;  // declared after `rank`, so destroyed before it
    std::uint64_t life = 0;
    bool left = false;          // ended by `leave`
    bool exited = false;        // ended by `exit`
    std::string fenced;         // why the others declared it dead; empty until this rank can know
    bool link_follows = false;  // `close_link` does nothing: the world closes the link itself, after telling the ops
    std::optional<std::uint64_t> given_up;  // the life that the others consider dead, after a pause or a suspicion
    std::uint64_t first_life = 0;           // the first life of this rank in this job, as the network counts
  };
  void start(rank_id r);
  /// Tells the ops of `who` about `peer` before the link closes: the ops give up their transfers with `peer` at once.
  void hear_before_link(rank_id who, rank_id peer, actors::evidence of, const actors::peer_report& what = {});
  void end_process(rank_id r);
  void tell_crash(rank_id r);
  void come_back(rank_id r);
  void meet(rank_id who, rank_id peer);
  void hold_dead(rank_id r, time_ns known_ns, time_ns fenced_ns, const std::string& why);
  void fence(rank_id r, const std::string& why);
  void notice(rank_id who, rank_id lost, std::uint64_t life);
  /// Calls `does` at `when`, unless a new job has begun by then.
  void in_this_job(time_ns when, std::function<void()> does);

  world_options options_;
  std::shared_ptr<const ops::rank_settings> settings_;  // shared by all ranks
  simulation::stage stage_;
  simulation::network network_;
  std::vector<std::unique_ptr<node>> nodes_;
  runtime::incarnations incarnations_;
  std::function<void(rank_id)> launch_;
  dice news_;  // draws how long each rank takes to learn of a restart
  std::uint64_t job_ = 0;
  mutable rank_id runs_ = 0;  // the rank that `all_ended` looks at first: its programs still ran at the last call
};

}  // namespace parley::simulation
