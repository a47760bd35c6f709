#pragma once
/// How much a measured time means: how far one repetition scatters, how far a median may be off, and whether two
/// candidates have been told apart.
///
///     const scatter all = scatter_of(aggregates, survivors);   // pooled, because two repetitions alone show little
///     if (surely_slower(a, b, {.relative = 0.03, .pooled = all})) …   // a is not the winner, whatever comes next
///
/// A few repetitions understate their scatter, and by luck may show none at all. So a candidate's own scatter counts as
/// at least the usual one of its field, and times that were measured only a few times must differ by more (Student). If a
/// candidate's own times scatter more than the others', its own scatter counts. Nothing here waits.
#include <cstddef>
#include <span>

#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

/// Standard deviation of a single repetition, from the median absolute deviation, corrected for few repetitions; 0 for one
/// repetition, which shows none.
double deviation_ns(const aggregate& a);
/// Standard error of the median of all repetitions.
double median_error_ns(const aggregate& a);

/// True if something else interrupts the measurement, such as more threads than there are processors: one repetition
/// took several times as long as another one of the same candidate. A median of a few repetitions is luck then.
bool is_disturbed(const aggregate& a) noexcept;

/// The usual scatter of a field of candidates.
struct scatter {
  double relative = 0;      ///< standard deviation of one repetition as a part of its time; the candidates' median
  std::size_t degrees = 0;  ///< of freedom: repetitions beyond each candidate's first
};
scatter scatter_of(std::span<const aggregate> all, std::span<const std::size_t> which);

struct significance {
  double relative = 0.03;  ///< closer than this is equal, however exactly it was measured
  scatter pooled{};
  double standard_errors = 2.6;  ///< that may be chance: with 2.6 one side in 200 is wrong, with 1.65 one in 20
};

/// The difference that a and b must exceed to mean anything; infinite as long as nothing is known of their scatter.
double significant_ns(const aggregate& a, const aggregate& b, const significance& s);
/// `a` takes longer than `b`, by more than counts as equal, and by more than may be chance.
bool surely_slower(const aggregate& a, const aggregate& b, const significance& s);
/// `a` is not faster than `b` by more than counts as equal, even if chance is added.
bool surely_no_better(const aggregate& a, const aggregate& b, const significance& s);
/// `a` takes no longer than `b` by more than counts as equal, even if chance is added; or repetitions have told them apart well enough:
/// chance is at most two thirds of what counts as equal. Errors of clocks do not count, because no repetition makes them smaller.
bool known_as_good(const aggregate& a, const aggregate& b, const significance& s);

}  // namespace parley::tuning
