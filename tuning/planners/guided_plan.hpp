#pragma once
/// A kernel's trials when it has too many implementations to try all of them: a model says which ones are worth it.
///
///     guided_plan plan(identities, settings, checks, {.hints = winners_of_other_keys});
///     while (auto next = plan.next()) { …run next->candidate…; plan.ended(began_ns, ended_ns); }     // as a kernel_plan
///     decision best = plan.decide(names);
///
/// With at most `most_of_all` implementations it is a `kernel_plan` of all of them. Otherwise it first explores: the default, the hints,
/// some at random, and then again and again those that the model (time_forest.hpp) expects to be the fastest, or that it knows least
/// about. An exploration has at least two runs, because the first run is cold, and on processors lasts about `kernel_plan::settling_ns`.
/// Exploring ends when its part of `max_search_duration_ms` is over, by the clock, without the default; or when all were explored; or when
/// the model has expected no faster one for a while. Then the best `finalists` and the default are compared by a `kernel_plan`, with its
/// numerical check. If all finalists turn out to be wrong, the next best ones follow.
///
/// An implementation that was not explored has no time; its detail says so. The plan reads no clock and is repeatable: the same times give
/// the same trials.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <parley/tuning/config.hpp>
#include <parley/tuning/planners/kernel_plan.hpp>
#include <parley/tuning/planners/time_forest.hpp>

namespace parley::tuning {

class guided_plan {
 public:
  static constexpr std::size_t most_of_all = 64;
  static constexpr std::size_t finalists = 8;

  struct options {
    std::vector<std::size_t> hints{};  ///< candidates that were good elsewhere
    std::uint64_t seed = 1;
    kernel_plan::place where = kernel_plan::place::processors;
  };

  guided_plan(std::vector<config_identity> candidates, const settings& limits, kernel_plan::checks c, options o);
  /// As `kernel_plan`.
  void drop(std::size_t candidate, std::string why);
  std::optional<trial> next() const noexcept;
  bool finished() const noexcept { return race_ && race_->finished(); }
  void ended(std::int64_t began_ns, std::int64_t ended_ns);
  void failed(std::string why);
  decision decide(std::span<const std::string> names) const;
  const aggregate& result_of(std::size_t candidate) const;
  std::size_t timed_runs() const noexcept { return explored_runs_ + (race_ ? race_->timed_runs() : 0); }
  /// How many candidates have run.
  std::size_t explored() const noexcept { return is_guided_ ? tried_.size() : candidates_.size(); }

 private:
  static constexpr std::size_t first_at_random = 24;
  // Explorations between two looks at the model: at least so many, and more once much was tried, because a look takes time, too.
  static constexpr std::size_t smallest_batch = 8;
  static constexpr std::size_t batch_of_tried = 10;  // a tenth
  static constexpr std::size_t at_random = 4;        // a quarter of a batch
  static constexpr std::size_t looked_at = 4096;     // candidates that the model is asked about for one batch
  static constexpr std::size_t patience = 8;         // batches without a better candidate
  static constexpr double part_of_exploration = 0.7;

  void explore_next();
  void plan_batch();
  void propose_by_model(std::size_t count);
  void propose_at_random(std::size_t count);
  void propose(std::size_t candidate);
  void note(double took_ns);
  void begin_race();
  void race_again_if_all_failed();
  void note_others();
  double exploration_ns() const noexcept;
  std::size_t in_race(std::size_t candidate) const noexcept;

  std::vector<config_identity> candidates_;
  settings limits_;
  kernel_plan::checks checks_;
  kernel_plan::place where_;
  bool is_guided_;
  std::optional<time_forest> forest_;
  draws chance_;
  std::uint64_t seed_;
  std::vector<aggregate> results_;    // outside of the race
  std::vector<bool> known_;           // explored, planned, or left out
  std::vector<std::size_t> planned_;  // the next one last
  std::vector<std::size_t> tried_;    // in their order, with their logarithms of times
  std::vector<double> log_times_;
  std::size_t batches_without_gain_ = 0;
  double best_log_ = infinite_ns;
  double best_before_ = infinite_ns;    // at the last look
  std::int64_t explores_since_ns_ = 0;  // since the end of the default's exploration; 0: that has not ended
  std::int64_t now_ns_ = 0;
  std::int64_t began_ns_ = 0;    // the exploration of this candidate; 0: it has not begun
  double run_ns_ = infinite_ns;  // the fastest run of the candidate that is explored now
  std::size_t runs_ = 0;
  std::size_t explored_runs_ = 0;
  std::vector<bool> raced_;
  std::vector<std::size_t> racing_;  // candidates of the race
  std::optional<kernel_plan> race_;
};

}  // namespace parley::tuning
