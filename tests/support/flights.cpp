#include <parley/tests/support/flights.hpp>

namespace parley::tests {

bool has_config(const runtime::flight_record& r) {
  using event = runtime::flight_event;
  return r.digest != 0 || (r.what != event::send_failed && r.what != event::receive_failed);
}

joined_flights join_flights(world& w) {
  constexpr unsigned rehearsal = 4;
  using key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t, bool>;
  std::map<key, std::uint64_t> sent;
  const auto key_of = [](const runtime::flight_record& r) {
    return key{r.op, r.generation, r.tag, r.invocation, (r.flags & rehearsal) != 0};
  };
  for (auto& rank : w.ranks) {
    for (const auto& r : rank->flight().in_order()) {
      const bool sends = r.what == runtime::flight_event::sent || r.what == runtime::flight_event::send_failed;
      if (sends && has_config(r)) sent[key_of(r)] = r.digest;
    }
  }
  joined_flights all;
  for (auto& rank : w.ranks) {
    for (const auto& r : rank->flight().in_order()) {
      if (r.what != runtime::flight_event::received && r.what != runtime::flight_event::receive_failed) continue;
      const auto at = sent.find(key_of(r));
      if (at == sent.end() || !has_config(r)) continue;
      ++all.pairs;
      if (at->second != r.digest) ++all.mismatches;
      if ((r.flags & 1U) != 0) ++all.timed;
    }
  }
  return all;
}

}  // namespace parley::tests
