#pragma once
/// What one participant of an op measures: a row per timed invocation, and when the invocation before ended.
#include <parley/actors/messages.hpp>
#include <parley/runtime/executor.hpp>

#include <functional>
#include <utility>
#include <vector>

namespace parley::actors {

class row_log {
 public:
  explicit row_log(runtime::executor& ex) noexcept : executor_(ex) {}

  /// While a campaign runs, times are read from the clock; otherwise the loop's cached present is good enough.
  void set_measuring(bool on) noexcept { measuring_ = on; }
  bool measuring() const noexcept { return measuring_; }
  runtime::time_ns clock() noexcept { return measuring_ ? executor_.precise_now() : executor_.now(); }

  /// Called when the rows so far should be reported.
  void on_flush(std::function<void()> f) { flush_ = std::move(f); }
  void add(wire_row row) {
    row.previous_end_ns = last_end_ns_;
    rows_.push_back(row);
    if (flushing_ && flush_) flush_();
  }
  /// The round is complete: this row and those that are late go out at once.
  void flush() {
    flushing_ = true;
    if (flush_ && !rows_.empty()) flush_();
  }
  void new_round() noexcept { flushing_ = false; }
  void ended(runtime::time_ns at) noexcept { last_end_ns_ = at; }
  std::vector<wire_row> take() { return std::exchange(rows_, {}); }

 private:
  runtime::executor& executor_;
  std::function<void()> flush_;
  std::vector<wire_row> rows_;
  runtime::time_ns last_end_ns_ = 0;
  bool measuring_ = false;
  bool flushing_ = false;
};

}  // namespace parley::actors
