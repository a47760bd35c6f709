#pragma once
/// The reports that a rank of `parley tune` sends over a pipe to the process that started it: each is a JSON text behind
/// its length in 4 bytes, little-endian.
///
///     send_report(descriptor, progress);               // a rank; false when nobody listens any more
///     report_reader reader([](json::value&& v) { … }); // the launcher, one per rank
///     reader.take(bytes);                              // false: what came is no report, and the rest is ignored
#include <boost/json/value.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace parley::cli {

inline constexpr std::size_t largest_report = std::size_t{256} << 20U;

bool send_report(int descriptor, const boost::json::value& report);

class report_reader {
 public:
  using handler = std::function<void(boost::json::value&& report)>;
  explicit report_reader(handler on_report) : on_report_(std::move(on_report)) {}
  bool take(std::span<const std::byte> bytes);

 private:
  handler on_report_;
  std::string waiting_;
  bool broken_ = false;
};

}  // namespace parley::cli
