#pragma once
/// The measurements of one participant of an op: a row for each timed invocation, and the ends of the latest invocations.
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace parley::actors {

constexpr std::uint8_t row_status_of(runtime::errc outcome) noexcept {
  if (blames_config(outcome)) return static_cast<std::uint8_t>(tuning::row_status::failed);
  return outcome == runtime::errc::none ? static_cast<std::uint8_t>(tuning::row_status::ok) : cancelled_row;
}

class row_log {
 public:
  /// `skew`: see clock_book.hpp; must outlive this object.
  explicit row_log(runtime::executor& ex, const clock_skew* skew = nullptr) noexcept : executor_(ex), skew_(skew) {}

  /// While a search runs, times are read from the clock. Otherwise the loop's cached time is accurate enough.
  void set_measuring(bool on) noexcept { measuring_ = on; }
  /// For a receiver: the stamps say whether there are trials.
  void note_stamp(bool timed) noexcept {
    quiet_ = timed ? 0 : quiet_ + 1;
    measuring_ = quiet_ < quiet_after;
  }
  /// A receiver has learned of a decision: there are no more trials unless a stamp says otherwise.
  void expect_no_trials() noexcept {
    quiet_ = quiet_after;
    measuring_ = false;
  }
  bool measuring() const noexcept { return measuring_; }
  runtime::time_ns clock() noexcept {
    const runtime::time_ns t = measuring_ ? executor_.precise_now() : executor_.now();
    return skew_ == nullptr ? t : skew_->of(t);
  }

  /// `f` is called when the present rows should be reported.
  void on_flush(std::function<void()> f) { flush_ = std::move(f); }
  void add(wire_row row) {
    if (row.previous_end_ns == 0) row.previous_end_ns = end_ahead_of(row);           // else set when it ended
    if (row.tag == flushed_tag_ && row.invocation > flushed_at_) flushing_ = false;  // a row of the next round
    rows_.push_back(row);
    if ((flushing_ || rows_.size() % most_unsent == 0) && flush_) flush_();
  }
  /// The round is complete: this row, and rows that are late, are reported at once.
  void flush(std::uint32_t tag, std::uint64_t invocation) {
    flushing_ = true;
    flushed_tag_ = tag;
    flushed_at_ = invocation;
    if (flush_ && !rows_.empty()) flush_();
  }
  /// An invocation that began at `began_ns` has ended now.
  void ended(runtime::time_ns began_ns, std::uint64_t invocation, runtime::time_ns now) noexcept {
    if (!measuring_) {
      ends_[0] = {began_ns, invocation, now};
      known_ends_ = 1;
    } else {
      note_end({began_ns, invocation, now});
    }
  }
  /// The latest known end of the invocations that began before `row`; 0: not known. An invocation that began later and ended earlier, as a
  /// small message may overtake a large one, was not ahead of `row` in a queue.
  runtime::time_ns end_ahead_of(const wire_row& row) const noexcept {
    const ended_one asked{row.start_ns, row.invocation, 0};
    runtime::time_ns latest = 0;
    for (std::size_t i = 0; i < known_ends_ && ends_[i] < asked; ++i) latest = ends_[i].ended_ns;
    return latest;
  }
  std::vector<wire_row> take() { return std::exchange(rows_, {}); }

 private:
  struct ended_one {
    runtime::time_ns began_ns = 0;
    std::uint64_t invocation = 0;
    runtime::time_ns ended_ns = 0;
    bool operator<(const ended_one& o) const noexcept {
      return began_ns != o.began_ns ? began_ns < o.began_ns : invocation < o.invocation;
    }
  };
  // Puts `e` behind the invocations that began before it. Drops the invocations that began later: they also ended earlier, so no later row
  // needs them.
  void note_end(const ended_one& e) noexcept {
    while (known_ends_ != 0 && !(ends_[known_ends_ - 1] < e)) --known_ends_;
    if (known_ends_ == ends_.size()) std::move(ends_.begin() + 1, ends_.end(), ends_.begin());
    known_ends_ = std::min(known_ends_ + 1, ends_.size());
    ends_[known_ends_ - 1] = e;
  }
  static constexpr std::uint32_t quiet_after = 256;
  static constexpr std::size_t most_unsent = 4096;  // a report may have more, for example after long batches
  runtime::executor& executor_;
  const clock_skew* skew_;
  std::array<ended_one, 4> ends_{};  // sorted by their beginnings, and therefore by their ends
  std::size_t known_ends_ = 0;
  bool measuring_ = false;
  bool flushing_ = false;
  std::uint32_t quiet_ = 0;  // invocations since the last trial
  std::uint32_t flushed_tag_ = 0;
  std::uint64_t flushed_at_ = 0;
  std::function<void()> flush_;
  std::vector<wire_row> rows_;
};

}  // namespace parley::actors
