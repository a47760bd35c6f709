#pragma once
/// Shows a job's progress on standard error: on a terminal one line that is rewritten, elsewhere plain lines.
///
///     progress_display display(job_spec, 2);
///     display.on_report(rank, report);              // progress of a rank
///     display.line("[rank 2] …");                   // anything else that has to be said
///     display.close();
#include <parley/cli/spec/spec.hpp>

#include <boost/json/object.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace parley::cli {

class progress_display {
 public:
  progress_display(const spec& job, int descriptor);
  void on_report(rank_id rank, const boost::json::object& progress);
  void line(std::string_view text);
  /// Removes the status line.
  void close();
  /// Prints the last status as a line that stays.
  void finish();

 private:
  struct state {
    std::uint64_t done = 0;
    std::uint64_t of = 0;
    std::uint64_t open = 0;
    std::uint64_t settled = 0;
    std::uint64_t trials = 0;
  };
  std::string status() const;
  void show_status();
  void write(std::string_view text) const;

  std::string name_;
  int descriptor_;
  bool terminal_;
  bool shown_ = false;
  std::int64_t began_ns_;
  std::int64_t next_ns_ = 0;
  std::vector<state> ranks_;
};

}  // namespace parley::cli
