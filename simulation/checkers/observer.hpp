#pragma once
/// Writes down what checkers read: what goes over the wire of a world, what its ranks know before they end, and what the product
/// itself notices.
///
///     run_record record;                         // `play` and `faults` are set
///     observer watching(record, w, window);
///     watching.listen(sky, mutant.get());        // all that the wire shows; the mutant goes first
///     watching.begin_job(); w.start_all(…); …
///     watching.end_job();                        // asks every rank, then ends the world's job
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
  /// The record and the world outlive it.
  observer(run_record& into, world& w, actors::window_limits window,
           std::uint32_t control_window = runtime::router::options{}.window, std::uint64_t first_invocation = 0);
  observer(const observer&) = delete;
  observer& operator=(const observer&) = delete;
  /// Ends the world's job, if that still goes on: nobody listens any more.
  ~observer();

  void listen(weather& sky, wire_tap* mutant = nullptr);
  void begin_job() { watchers_.begin_job(); }
  /// Where a job ends before its time nobody is asked what it has decided.
  enum class ending : std::uint8_t { whole, cut_short };
  void end_job(ending how = ending::whole);
  /// Whether it is the job that ends, with all of its ranks.
  bool job_ends() const noexcept { return ending_; }
  /// Of ops whose generation ends on a rank.
  void look_at_ended(rank_id who, const std::function<bool(const actors::op_declaration&)>& which);
  /// Besides, of a rank that is about to end.
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
  bool cutting_ = false;  // before its time
};

}  // namespace parley::simulation
