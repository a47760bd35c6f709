#pragma once
/// The trace of one run: a line for every message when it is sent and when it is delivered, and for every call that ended.
///
///     trace lines(stage);
///     weather.tap(lines);
///     lines.add(when_ns, "rank 1: receive 7 ended …");
///     lines.print(std::cout);                             // in the order of their times
#include <parley/simulation/world/timeline.hpp>
#include <parley/simulation/world/weather.hpp>

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <utility>

namespace parley::simulation {

class trace final : public wire_tap {
 public:
  explicit trace(const timeline& line) : line_(line) {}
  void on_send(const parcel& p, const fate& f) override;
  bool on_deliver(parcel& p) override;
  void add(time_ns when, std::string text) { lines_.emplace(when, std::move(text)); }
  void print(std::ostream& out) const;
  /// The low 32 bits in hexadecimal, such as `1a2b3c4d`, as the trace prints configs.
  static std::string short_digest(std::uint64_t digest);

 private:
  const timeline& line_;
  std::multimap<time_ns, std::string> lines_;  // lines of one time are in the order in which they were added
};

}  // namespace parley::simulation
