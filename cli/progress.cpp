#include <parley/cli/progress.hpp>

#include <parley/cli/table.hpp>

#include <boost/json/array.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace parley::cli {

namespace json = boost::json;

namespace {

constexpr std::int64_t terminal_every_ns = 100'000'000;
constexpr std::int64_t lines_every_ns = 1'000'000'000;
constexpr std::string_view clear_line = "\r\x1b[K";

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

progress_display::progress_display(const spec& job, int descriptor)
    : name_(job.name), descriptor_(descriptor), terminal_(::isatty(descriptor) == 1), began_ns_(now_ns()),
      ranks_(job.ranks) {}

void progress_display::on_report(rank_id rank, const json::object& progress) {
  state& s = ranks_.at(rank);
  const auto read = [&](std::string_view key) { return progress.at(key).to_number<std::uint64_t>(); };
  s = {read("done"), read("of"), read("open"), read("settled"), read("trials")};
  for (const json::value& a : progress.at("agreed").as_array()) {
    line(fmt::format(
        "{} {} {}: {} {}", a.at("op").as_string().c_str(), ranks_of(a.as_object()), a.at("key").as_string().c_str(),
        a.at("from_results").as_bool() ? "the results file says" : "agreed on", a.at("decision").as_string().c_str()));
  }
  show_status();
}

std::string progress_display::status() const {
  // The slowest rank determines the job's progress; ranks that have not reported yet do not count.
  double furthest_behind = 1;
  state sum;
  for (const state& s : ranks_) {
    if (s.of == 0) continue;
    furthest_behind = std::min(furthest_behind, static_cast<double>(s.done) / static_cast<double>(s.of));
    sum.of = std::max(sum.of, s.of);
    sum.open += s.open;
    sum.settled += s.settled;
    sum.trials += s.trials;
  }
  return fmt::format("{}: {:3.0f} % of {} microbatches, {} of {} keys agreed, {} trials, {:.1f} s", name_,
                     100 * furthest_behind, sum.of, sum.settled, sum.settled + sum.open, sum.trials,
                     static_cast<double>(now_ns() - began_ns_) / 1e9);
}

void progress_display::show_status() {
  if (now_ns() < next_ns_) return;
  next_ns_ = now_ns() + (terminal_ ? terminal_every_ns : lines_every_ns);
  if (terminal_) {
    write(std::string(clear_line) + status());
    shown_ = true;
  } else {
    write(status() + "\n");
  }
}

void progress_display::line(std::string_view text) {
  close();
  write(std::string(text) + "\n");
}

void progress_display::finish() {
  const bool heard = std::any_of(ranks_.begin(), ranks_.end(), [](const state& s) { return s.of != 0; });
  if (heard) line(status());
}

void progress_display::close() {
  if (shown_) write(clear_line);
  shown_ = false;
}

void progress_display::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace parley::cli
