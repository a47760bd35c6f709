#pragma once
/// Judges measured times: how far one repetition scatters, how far a median may be off, and whether two candidates can be distinguished.
///
///     const scatter all = scatter_of(aggregates, survivors);   // pooled, because two repetitions alone show little
///     if (surely_slower(a, b, {.relative = 0.03, .pooled = all})) …   // a is not the winner, whatever comes next
///
/// A few repetitions understate their scatter, and by luck may show none at all. So a candidate's scatter counts as at least the usual
/// scatter of its field, and times that were measured only a few times must differ by more (Student). If a candidate's times scatter more
/// than the others', its own scatter counts. Nothing here waits.
#include <cstddef>
#include <span>

#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

/// Standard deviation of a single repetition, from the median absolute deviation, corrected for few repetitions; 0 for one repetition,
/// which shows no scatter.
double deviation_ns(const aggregate& a);
/// Standard error of the median of all repetitions.
double median_error_ns(const aggregate& a);

/// True if something else interrupts the measurement, such as more threads than there are processors: one repetition took several times as
/// long as another one of the same candidate. Then the median of a few repetitions is a matter of luck.
bool is_disturbed(const aggregate& a) noexcept;
/// The same for the fastest and the slowest of some repetitions.
bool is_disturbed(double fastest_ns, double slowest_ns) noexcept;

/// The usual scatter of a field of candidates.
struct scatter {
  double relative = 0;      ///< standard deviation of one repetition as a part of its time; the candidates' median
  std::size_t degrees = 0;  ///< of freedom: repetitions beyond each candidate's first
};
scatter scatter_of(std::span<const aggregate> all, std::span<const std::size_t> which);

struct significance {
  double relative = 0.03;  ///< times closer than this count as equal, even if measured exactly
  scatter pooled{};
  double standard_errors = 2.6;  ///< this many may be chance: with 2.6 one side in 200 is wrong, with 1.65 one in 20
};

/// The difference between a and b that is needed to mean anything; infinite as long as their scatter is unknown.
double significant_ns(const aggregate& a, const aggregate& b, const significance& s);
/// True if `a` takes longer than `b`, by more than the margin of equal times, and by more than chance can explain.
bool surely_slower(const aggregate& a, const aggregate& b, const significance& s);
/// True if `a`, even with chance in its favour, is not faster than `b` by more than the margin of equal times.
bool surely_no_better(const aggregate& a, const aggregate& b, const significance& s);
/// True if `a`, even with chance against it, is not slower than `b` by more than the margin of equal times. Also true if there are enough
/// repetitions: chance is at most two thirds of that margin. Errors of clocks do not count, because repetitions do not reduce them.
bool known_as_good(const aggregate& a, const aggregate& b, const significance& s);

}  // namespace parley::tuning
