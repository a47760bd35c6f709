#include <parley/cli/rank_report.hpp>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace parley::cli {

namespace {
constexpr std::size_t length_bytes = 4;
}

bool send_report(int descriptor, const boost::json::value& report) {
  const std::string text = boost::json::serialize(report);
  if (descriptor < 0 || text.size() > largest_report) return false;
  std::string frame;
  for (std::size_t i = 0; i < length_bytes; ++i) frame.push_back(static_cast<char>((text.size() >> (8 * i)) & 255U));
  frame += text;
  for (std::size_t sent = 0; sent < frame.size();) {
    const ssize_t n = ::write(descriptor, frame.data() + sent, frame.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

bool report_reader::take(std::span<const std::byte> bytes) {
  if (broken_) return false;
  for (const std::byte b : bytes) waiting_.push_back(static_cast<char>(b));
  std::size_t at = 0;
  while (waiting_.size() - at >= length_bytes) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < length_bytes; ++i)
      length |= std::size_t{static_cast<unsigned char>(waiting_[at + i])} << (8 * i);
    if (length > largest_report) {
      broken_ = true;
      return false;
    }
    if (waiting_.size() - at - length_bytes < length) break;
    boost::json::error_code ec;
    boost::json::value report = boost::json::parse(std::string_view(waiting_).substr(at + length_bytes, length), ec);
    if (ec || !report.is_object()) {
      broken_ = true;
      return false;
    }
    on_report_(std::move(report));
    at += length_bytes + length;
  }
  waiting_.erase(0, at);
  return true;
}

}  // namespace parley::cli
