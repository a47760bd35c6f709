#pragma once
/// The ranks of one job on a stage: real `ops::rank`s over virtual links, with disks, and what can befall them.
///
///     world w({.ranks = 3, .seed = 7}, weather);
///     w.start_all([&](rank_id r) { w.programs_of(r).spawn(program(w[r])); });
///     w.crash(2);                    // its coroutines and its memory are gone; the others notice after the detection time
///     w.restart(2, 10'000'000);      // the same, and after 10 ms a new process takes its place, which the others hear of by and by
///     w.pause(1, 50'000'000);
///     w.run_to(1'000'000'000);
///
/// A rank that was stopped for longer than the detection time is taken for dead by the others, and fenced when it comes
/// back. `end_job` and `start_all` make a new job of the same ranks: new incarnations, the old disks.
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
  std::vector<time_ns> offsets{};      ///< of the ranks' clocks, each then on a host of its own
  time_ns detection_ns = 100'000'000;  ///< how long a death goes unnoticed at most
  std::uint32_t control_window = runtime::router::options{}.window;
  ops::rank_settings settings{};
  actors::broken_rule breaks = actors::broken_rule::none;  ///< by each rank, for mutants
  /// Further settings of one rank, in a job, counted from 1; may be empty.
  std::function<void(rank_id, std::uint64_t job, ops::rank_settings&)> of_rank{};
};

class world {
 public:
  world(world_options o, interference* weather);
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world();

  /// All ranks of a job begin; `launch` is called for each once all of them are there.
  void start_all(std::function<void(rank_id)> launch);
  /// All ranks that still live end, where they stand.
  void end_job();
  /// Where the program of a rank runs; it ends with the rank.
  runtime::scope& programs_of(rank_id r) { return *nodes_[r]->programs; }

  ops::rank& operator[](rank_id r) { return *nodes_[r]->rank; }
  const ops::rank* find(rank_id r) const noexcept { return nodes_[r]->rank.get(); }
  simulation::stage& stage() noexcept { return stage_; }
  simulation::network& network() noexcept { return network_; }
  simulation::disk& disk(rank_id r) noexcept { return nodes_[r]->disk; }
  rank_id ranks() const noexcept { return stage_.ranks(); }
  const world_options& options() const noexcept { return options_; }
  /// Jobs that were started so far.
  std::uint64_t job() const noexcept { return job_; }
  std::size_t programs() const noexcept;  ///< that have not ended, of living ranks
  bool all_ended() const noexcept;        ///< whether there are none; cheap enough to ask at each step

  void crash(rank_id r);
  /// The same of one whose program has failed, as `run` has it: it tells the others first, who hear it at once.
  void fail(rank_id r, const runtime::error& why);
  /// The same of one whose program has returned and which owes the others nothing any more: its process ends, and all others that are
  /// still there hear that it has returned.
  void leave(rank_id r);
  /// The same of one whose program has called std::exit and is still inside it: nothing more happens to it, and its memory, which the
  /// call stands on, stays. The others hear of it as of a crash.
  void exit(rank_id r);
  /// Whether the latest process of that rank has left so.
  bool has_left(rank_id r) const noexcept { return nodes_[r]->left; }
  void restart(rank_id r, time_ns absent_ns);
  /// How often members of an op have come back in this job, as far as one of them knows: equal numbers, equal generations.
  std::uint64_t returns(rank_id known_to, const std::vector<rank_id>& members) const noexcept;
  void pause(rank_id r, time_ns span);
  /// An op of `by` finds that rank to be as good as dead: it is held dead by all, and fenced.
  void suspect(rank_id r, rank_id by);
  /// A microsecond for each thing that it does, or again none.
  enum class pace : std::uint8_t { usual, slow };
  void set_pace(rank_id r, pace p);
  /// Schedules what befalls ranks of this job: `m.at_ns` from `began_ns` on. Does nothing for what befalls messages only.
  void befall(const mishap& m, time_ns began_ns);
  /// Told of every change, for what else of a rank is slow then.
  std::function<void(rank_id, pace)> on_pace;
  /// Called before a rank ends, while all of it can still be looked at.
  std::function<void(rank_id)> before_end;
  /// Called when a rank is told that another one has come back: before its ops learn of it, and after.
  std::function<void(rank_id who, rank_id peer)> before_meeting;
  std::function<void(rank_id who, rank_id peer)> after_meeting;
  /// A rank that the others hold dead goes on.
  std::function<void(rank_id)> on_fenced;

 private:
  /// The process of a rank, and how news of others reaches it. The world itself tells each rank who is dead, so that no rank publishes a
  /// death.
  struct node final : runtime::link::failure_handler, ops::rank_peers {
    explicit node(world& w, rank_id r) : owner(w), self(r), disk(dice(w.options_.seed, purpose::disk, r)) {}
    void on_peer_failed(rank_id peer) noexcept override;
    void close_link(rank_id peer) noexcept override;
    bool link_is_down(rank_id) const noexcept override { return true; }
    /// What it has sent is there.
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
    std::unique_ptr<runtime::scope> programs;  // after the rank: it ends first
    std::uint64_t life = 0;
    bool left = false;          // of its own accord
    std::string fenced;         // why the others hold it dead, once it can know
    bool link_follows = false;  // the world itself ends what the link has under way, after the ops have heard
    std::optional<std::uint64_t> given_up;  // the life that the others took for dead while it was stopped
    std::uint64_t first_life = 0;           // of this job, as the network counts
  };
  void start(rank_id r);
  /// Of a peer whose link ends after the ops have heard: they give back at once what they have with it.
  void hear_before_link(rank_id who, rank_id peer, actors::evidence of, const actors::peer_report& what = {});
  void end_process(rank_id r);
  void tell_crash(rank_id r);
  void come_back(rank_id r);
  void meet(rank_id who, rank_id peer);
  void hold_dead(rank_id r, time_ns known_ns, time_ns fenced_ns, const std::string& why);
  void fence(rank_id r, const std::string& why);
  void notice(rank_id who, rank_id lost, std::uint64_t life);
  /// What belongs to one job does not happen in the next.
  void in_this_job(time_ns when, std::function<void()> does);

  world_options options_;
  std::shared_ptr<const ops::rank_settings> settings_;  // of all ranks
  simulation::stage stage_;
  simulation::network network_;
  std::vector<std::unique_ptr<node>> nodes_;
  runtime::incarnations incarnations_;
  std::function<void(rank_id)> launch_;
  dice news_;  // how long each rank takes to hear of another one's return
  std::uint64_t job_ = 0;
  mutable rank_id runs_ = 0;  // a rank whose programs had not ended when somebody asked
};

}  // namespace parley::simulation
