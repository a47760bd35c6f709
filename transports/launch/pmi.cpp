#include <parley/transports/launch/pmi.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

constexpr std::size_t max_line_bytes = 2048;
constexpr char key[] = "parley_meeting";

/// The `value` of `name=value` in a line of blank-separated words.
std::optional<std::string> field(std::string_view line, std::string_view name) {
  while (!line.empty()) {
    const auto blank = std::min(line.find(' '), line.size());
    const auto word = line.substr(0, blank);
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=')
      return std::string(word.substr(name.size() + 1));
    line.remove_prefix(std::min(blank + 1, line.size()));
  }
  return std::nullopt;
}

/// Sends one request after another and waits for each reply, within one time limit.
class conversation {
 public:
  conversation(int fd, runtime::time_ns limit_ns)
      : fd_(fd), until_(std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit_ns)),
        limit_(std::to_string(limit_ns / 1'000'000) + " ms") {}

  /// Returns the reply's line, which must contain cmd=`kind`, and rc=0 if it contains rc at all.
  result<std::string> ask(const std::string& question, std::string_view kind) {
    step_ = question.substr(0, question.find(' '));
    const auto said = write(question + "\n");
    if (!said) return said.reason();
    auto line = read_line();
    if (!line) return line.reason();
    const auto code = field(*line, "rc");
    if (field(*line, "cmd") != kind || (code && *code != "0")) {
      return fault(errc::malformed, "answered \"" + shown(*line) + "\" where cmd=" + std::string(kind) + " was due");
    }
    return line;
  }

 private:
  error fault(errc code, const std::string& what) const {
    return {code,
            "the launcher behind PMI_FD=" + std::to_string(fd_) + ", asked " + step_ + ", " + what +
                "; to join without it, set PARLEY_RENDEZVOUS to host:port of rank 0 and PARLEY_KEY_FILE to a 0600 file "
                "with 32 random bytes on every rank"};
  }

  /// The part of a received line that may be shown to people: short and printable.
  static std::string shown(std::string line) {
    line.resize(std::min<std::size_t>(line.size(), 80));
    std::replace_if(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c - 0x20) >= 0x5f; }, '?');
    return line;
  }

  /// True once the descriptor is ready; false if the time is over.
  bool ready(short events) const {
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until_ - std::chrono::steady_clock::now()).count();
      if (left <= 0) return false;
      pollfd waiting{fd_, events, 0};
      const int count = ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left, 1000)));
      if (count > 0 || (count < 0 && errno != EINTR)) return true;
    }
  }

  result<> write(std::string_view text) {
    while (!text.empty()) {
      if (!ready(POLLOUT)) return fault(errc::timeout, "did not read within " + limit_);
      // Without MSG_NOSIGNAL a launcher that is gone would end this process by SIGPIPE.
      const ssize_t put = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (put <= 0) return fault(errc::io, std::string("cannot be written to: ") + std::strerror(errno));
      text.remove_prefix(static_cast<std::size_t>(put));
    }
    return {};
  }

  result<std::string> read_line() {
    std::string line;
    for (;;) {
      if (!ready(POLLIN)) return fault(errc::timeout, "did not answer within " + limit_ + "; a rank may be missing");
      char c = 0;
      const ssize_t got = ::recv(fd_, &c, 1, MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got < 0) return fault(errc::io, std::string("cannot be read from: ") + std::strerror(errno));
      if (got == 0) return fault(errc::io, "closed the connection");
      if (c == '\n') return line;
      if (line.size() == max_line_bytes) return fault(errc::malformed, "sent a line without an end");
      line += c;
    }
  }

  int fd_;
  std::chrono::steady_clock::time_point until_;
  std::string limit_;  // in words
  std::string step_;
};

}  // namespace

result<std::string> pmi_broadcast(int fd, runtime::rank_id rank, const std::string& value, runtime::time_ns limit_ns) {
  if (value.size() > max_pmi_value_bytes || value.find_first_of(" \n") != std::string::npos)
    return error(errc::bad_argument, "a value for PMI must be one word of at most 255 bytes");
  conversation with(fd, limit_ns);
  if (auto hello = with.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init"); !hello)
    return hello.reason();
  const auto space = with.ask("cmd=get_my_kvsname", "my_kvsname");
  if (!space) return space.reason();
  const std::string name = field(*space, "kvsname").value_or("");
  if (rank == 0) {
    const auto put = with.ask("cmd=put kvsname=" + name + " key=" + key + " value=" + value, "put_result");
    if (!put) return put.reason();
  }
  if (auto met = with.ask("cmd=barrier_in", "barrier_out"); !met) return met.reason();
  const auto got = with.ask("cmd=get kvsname=" + name + " key=" + key, "get_result");
  if (!got) return got.reason();
  if (auto bye = with.ask("cmd=finalize", "finalize_ack"); !bye) return bye.reason();
  return field(*got, "value").value_or("");
}

}  // namespace parley::transports
