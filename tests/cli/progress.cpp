#include <parley/cli/progress.hpp>

#include <boost/json/parse.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

using namespace parley;

namespace {

cli::spec two_ranks() {
  return cli::parse_spec(
      R"json({"name": "job", "ranks": 2, "ops": [{"op": "transfer", "name": "x", "edges": [[0, 1]],
      "configs": ["direct"], "messages": [{"bytes": 16, "count": 9}]}]})json",
      "job.json", {});
}

boost::json::object report(int done, const std::string& agreed = "") {
  return boost::json::parse(R"({"done": )" + std::to_string(done) +
                            R"(, "of": 200, "open": 1, "settled": 2, "trials": 7, "agreed": [)" + agreed + "]}")
      .as_object();
}

/// The file that a display writes to, and the text that was written.
struct output {
  int written = -1;
  int read_from = -1;
  output() = default;
  output(const output&) = delete;
  output& operator=(const output&) = delete;
  ~output() {
    ::close(written);
    ::close(read_from);
  }
  std::string text() const {
    std::string all;
    std::array<char, 4096> piece{};
    for (ssize_t n = 0; (n = ::read(read_from, piece.data(), piece.size())) > 0;)
      all.append(piece.data(), static_cast<std::size_t>(n));
    return all;
  }
};

struct a_pipe : output {
  a_pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_NONBLOCK) != 0) throw std::runtime_error("no pipe");
    read_from = ends[0];
    written = ends[1];
  }
};

struct a_terminal : output {
  a_terminal() {
    read_from = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (read_from < 0 || ::grantpt(read_from) != 0 || ::unlockpt(read_from) != 0)
      throw std::runtime_error("no terminal");
    written = ::open(::ptsname(read_from), O_RDWR | O_NOCTTY);
  }
};

}  // namespace

TEST_CASE("without a terminal, progress is printed as plain lines, at most one in a second") {
  a_pipe out;
  cli::progress_display shown(two_ranks(), out.written);
  shown.on_report(0, report(100));
  const std::string first = out.text();
  CHECK(first.find("job:  50 % of 200 microbatches, 2 of 3 keys agreed, 7 trials, ") == 0);
  CHECK(first.back() == '\n');
  CHECK(first.find('\x1b') == std::string::npos);
  shown.on_report(1, report(50));  // within the same second, so it is not printed yet
  CHECK(out.text().empty());
  shown.close();
  CHECK(out.text().empty());  // no status line has to be erased
}

TEST_CASE("the last status is always printed and follows the slowest rank, unless no rank has reported") {
  a_pipe out;
  cli::progress_display shown(two_ranks(), out.written);
  shown.on_report(0, report(100));
  shown.on_report(1, report(50));
  static_cast<void>(out.text());
  shown.finish();
  CHECK(out.text().starts_with("job:  25 % of 200 microbatches, 4 of 6 keys agreed, 14 trials, "));
  cli::progress_display silent(two_ranks(), out.written);
  silent.finish();
  CHECK(out.text().empty());
}

TEST_CASE("an agreement is printed at once, with its edge and its source") {
  a_pipe out;
  cli::progress_display shown(two_ranks(), out.written);
  shown.on_report(0, report(10));
  static_cast<void>(out.text());
  shown.on_report(
      0,
      report(11, R"({"op": "x", "sender": 0, "receiver": 1, "participants": [0, 1], "key": "16B", "decision": "direct",
                                    "from_results": false},
                                   {"op": "x", "sender": 1, "receiver": 0, "participants": [1, 0], "key": "32B", "decision": "direct",
                                    "from_results": true})"));
  CHECK(out.text() == "x 0->1 16B: agreed on direct\nx 1->0 32B: the results file says direct\n");
}

TEST_CASE("on a terminal, progress rewrites one line and erases it before any other line") {
  a_terminal out;
  cli::progress_display shown(two_ranks(), out.written);
  shown.on_report(1, report(20));
  const std::string first = out.text();
  CHECK(first.find("\r\x1b[Kjob:  10 % of 200 microbatches, 2 of 3 keys agreed, 7 trials, ") == 0);
  CHECK(first.find('\n') == std::string::npos);
  shown.line("[rank 1] said this");
  CHECK(out.text() == "\r\x1b[K[rank 1] said this\r\n");  // a line on a terminal ends with \r\n
  shown.close();
  CHECK(out.text().empty());  // the status line was erased before
}
