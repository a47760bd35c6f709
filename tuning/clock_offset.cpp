#include <parley/tuning/clock_offset.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace parley::tuning {

namespace {

constexpr double drift = clock_offset::max_drift_ppm * 1e-6;
constexpr double wander = clock_offset::wander_ppm * 1e-6;
constexpr double rounding_ns = 2;
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t farthest_ns = std::int64_t{1} << 60;  // so that differences of differences do not overflow

bool possible(std::int64_t ns) noexcept { return ns > -farthest_ns && ns < farthest_ns; }

double span_ns(std::int64_t from, std::int64_t to) noexcept { return static_cast<double>(to - from); }

}  // namespace

bool clock_offset::add(const round_trip& s) {
  if (s.answered_ns < s.received_ns || s.returned_ns < s.sent_ns) return false;
  return add_ours_to_theirs(s.sent_ns, s.received_ns) && add_theirs_to_ours(s.answered_ns, s.returned_ns);
}

// Strictly, a bound holds at the moment when the message was at the other side, and that moment is not known by our clock. It also holds at
// our own end of the message: while the message travels, the offset moves by far less than the message's delay, and the bound is too wide
// by that delay.
bool clock_offset::add_ours_to_theirs(std::int64_t sent_ns, std::int64_t received_ns) {
  if (!possible(sent_ns) || !possible(received_ns)) return false;
  return add(side::upper, {sent_ns, received_ns - sent_ns});
}

bool clock_offset::add_theirs_to_ours(std::int64_t sent_ns, std::int64_t received_ns) {
  if (!possible(sent_ns) || !possible(received_ns)) return false;
  return add(side::lower, {received_ns, sent_ns - received_ns});
}

bool clock_offset::add(side s, bound b) {
  keep(s == side::upper ? upper_ : lower_, s, b);
  narrow_rate();
  if (!contradicts()) return true;
  ++contradictions_;
  upper_.clear();
  lower_.clear();
  keep(s == side::upper ? upper_ : lower_, s, b);
  narrow_rate();
  return true;
}

void clock_offset::keep(std::vector<bound>& list, side s, bound b) {
  const double sign = s == side::upper ? 1 : -1;
  // A bound is useless if another bound, carried through the time between both at any possible rate, is at least as narrow.
  const auto implied = [&](const bound& by, const bound& of) {
    const double carried = drift * std::abs(span_ns(by.when_ns, of.when_ns));
    return sign * span_ns(by.offset_ns, of.offset_ns) >= carried;
  };
  if (std::any_of(list.begin(), list.end(), [&](const bound& known) { return implied(known, b); })) return;
  std::erase_if(list, [&](const bound& known) { return implied(b, known); });
  if (list.size() == most_bounds) {  // drops every other one
    std::size_t place = 0;
    std::erase_if(list, [&](const bound&) { return place++ % 2 == 1; });
  }
  const auto later = [](const bound& x, const bound& y) { return x.when_ns < y.when_ns; };
  list.insert(std::upper_bound(list.begin(), list.end(), b, later), b);
}

// The offset stays below all upper and above all lower bounds, so two bounds, one of each side, limit its slope.
void clock_offset::narrow_rate() noexcept {
  slowest_ = -drift;
  fastest_ = drift;
  for (const bound& u : upper_) {
    for (const bound& l : lower_) {
      const double time = span_ns(l.when_ns, u.when_ns);
      const double room = span_ns(l.offset_ns, u.offset_ns);
      if (time > 0) fastest_ = std::min(fastest_, room / time + wander);
      if (time < 0) slowest_ = std::max(slowest_, room / time - wander);
    }
  }
}

bool clock_offset::contradicts() const noexcept {
  if (slowest_ > fastest_) return true;
  return std::any_of(upper_.begin(), upper_.end(), [&](const bound& u) {
    return std::any_of(lower_.begin(), lower_.end(), [&](const bound& l) {
      return span_ns(l.offset_ns, u.offset_ns) + drift * std::abs(span_ns(l.when_ns, u.when_ns)) < 0;
    });
  });
}

double clock_offset::limit(side s, std::int64_t ours_ns, std::int64_t base) const noexcept {
  double tightest = infinite;
  const double sign = s == side::upper ? 1 : -1;
  for (const bound& b : s == side::upper ? upper_ : lower_) {
    const double time = span_ns(b.when_ns, ours_ns);
    const double steepest = (time > 0) == (s == side::upper) ? fastest_ : slowest_;
    tightest = std::min(tightest, sign * (span_ns(base, b.offset_ns) + steepest * time));
  }
  return sign * tightest;
}

clock_offset::estimate clock_offset::near(std::int64_t ours_ns, std::int64_t base) const noexcept {
  const double most = limit(side::upper, ours_ns, base);
  const double least = limit(side::lower, ours_ns, base);
  return {(most + least) / 2, std::max(0.0, (most - least) / 2)};
}

std::optional<clock_offset::estimate> clock_offset::at(std::int64_t ours_ns) const noexcept {
  if (upper_.empty() || lower_.empty() || !possible(ours_ns)) return std::nullopt;
  // Relative to a bound, because a double resolves single nanoseconds over days, but not over years.
  const std::int64_t base = lower_.back().offset_ns;
  const estimate e = near(ours_ns, base);
  return estimate{static_cast<double>(base) + e.offset_ns, e.error_ns + rounding_ns};
}

clock_reading clock_offset::to_ours(std::int64_t theirs_ns) const noexcept {
  if (upper_.empty() || lower_.empty() || !possible(theirs_ns)) return {theirs_ns, infinite};
  const std::int64_t base = lower_.back().offset_ns;
  // The offset depends on our time, which is the unknown. The line is nearly level, so a few iterations suffice.
  std::int64_t ours_ns = theirs_ns - base;
  estimate e;
  for (int step = 0; step < 3; ++step) {
    e = near(ours_ns, base);
    ours_ns = theirs_ns - base - static_cast<std::int64_t>(std::llround(e.offset_ns));
  }
  return {ours_ns, e.error_ns * (1 + drift) + rounding_ns};
}

}  // namespace parley::tuning
