#pragma once
/// Records a world for the checkers: the messages on its wire, the state of its ranks before they end, and the violations that parley
/// itself detects.
///
///     run_record record;                         // `play` and `faults` are set
///     observer watching(record, w, window);
///     watching.listen(sky, mutant.get());        // taps the wire; the mutant changes messages before the checkers see them
///     watching.begin_job(); w.start_all(…); …
///     watching.end_job();                        // records the state of every rank, then ends the world's job
///     check(record);                             // checkers.hpp
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/simulation/checkers/window_book.hpp>
#include <parley/simulation/world/run_record.hpp>
#include <parley/simulation/world/watchers.hpp>
#include <parley/simulation/world/world.hpp>

#include <functional>

namespace parley::simulation {

class observer {
 public:
  /// The record and the world must outlive the observer.
  observer(run_record& into, world& w, actors::window_limits window,
           std::uint32_t control_window = runtime::router::options{}.window, std::uint64_t first_invocation = 0);
  observer(const observer&) = delete;
  observer& operator=(const observer&) = delete;
  /// Ends the world's job, if it still runs, without recording it.
  ~observer();

  void listen(weather& sky, wire_tap* mutant = nullptr);
  void begin_job() { watchers_.begin_job(); }
  /// `cut_short`: the job ends early, and its decisions are not recorded.
  enum class ending : std::uint8_t { whole, cut_short };
  void end_job(ending how = ending::whole);
  /// True while `end_job` ends the job with all of its ranks.
  bool job_ends() const noexcept { return ending_; }
  /// Records the ops of rank `who` for which `which` is true: their generation is about to end.
  void look_at_ended(rank_id who, const std::function<bool(const actors::op_declaration&)>& which);
  /// Called in addition when a rank is about to end.
  std::function<void(rank_id)> on_end;

 private:
  class census;
  participant_view view_of(rank_id r, const actors::participant_state& p, bool ended) const;
  void look_at(rank_id r);
  void forget_ends_that_were_none(rank_id r);
  void look_at_searches(const ops::rank& self, std::size_t first_participant);
  void look_at_pairs(rank_id who, rank_id peer);

  run_record& record_;
  world& world_;
  std::unique_ptr<census> census_;
  watchers watchers_;
  window_book windows_;
  runtime::breach_watch breaches_;
  bool ending_ = false;
  bool generations_ended_ = false;
  bool cutting_ = false;  // the job ends early
};

}  // namespace parley::simulation
