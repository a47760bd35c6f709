#include <parley/simulation/checkers/window_book.hpp>

#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/matched_streams.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/frame.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace parley::simulation {

using runtime::link;

namespace {

template <class M>
bool read_flow(const parcel& p, runtime::frame_header& h, M& m) {
  if (p.on != link::channel::control || p.header.size() != sizeof h) return false;
  std::memcpy(&h, p.header.data(), sizeof h);
  if (h.type != M::message_type) return false;
  auto decoded = runtime::decode<M>(p.replaced ? std::span<const std::byte>(p.instead) : p.payload);
  if (decoded) m = std::move(*decoded);
  return static_cast<bool>(decoded);
}

// The place of an invocation's stamp, or the place where it belongs. Usually that is the end, because invocations arrive in order.
template <class Stamps>
auto place_of(Stamps& stamps, std::uint64_t invocation) {
  if (stamps.empty() || stamps.back().first < invocation) return stamps.end();
  const std::uint64_t first = stamps.front().first;
  if (invocation >= first) {  // mostly no invocation is missing
    const auto at =
        stamps.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(invocation - first, stamps.size() - 1));
    if (at->first == invocation) return at;
  }
  return std::lower_bound(stamps.begin(), stamps.end(), invocation,
                          [](const auto& stamp, std::uint64_t i) { return stamp.first < i; });
}

bool says_counts(const actors::matched_streams& m) noexcept {
  using kind = actors::matched_streams::kind;
  return m.what == kind::report || m.what == kind::last_words;
}

std::uint64_t op_of(const runtime::frame_header& h) noexcept { return h.actor & ~std::uint64_t{3}; }

}  // namespace

window_book::stream& window_book::stream_of(const key& k) {
  stream*& place = places_[k];
  if (place == nullptr) place = &streams_[k];
  return *place;
}

void window_book::tell(const key& k, std::uint64_t count) {
  auto& told = stream_of(k).matched;
  if (told.empty() || told.back().second < count) told.emplace_back(line_.now(), count);
}

void window_book::note(const parcel& p, const actors::stamp& s) {
  auto& stamps = stream_of({{s.op, s.generation, p.from}, p.to, s.tag}).stamps;
  const std::uint64_t invocation = actors::unwrap(s.invocation, first_);
  const auto at = place_of(stamps, invocation);
  if (at == stamps.end() || at->first != invocation)
    stamps.insert(at, {invocation, stream::mark{s.total_bytes, line_.now()}});
}

void window_book::on_send(const parcel& p, const fate&) {
  actors::stamp s;
  runtime::frame_header h;
  actors::matched m;
  actors::matched_streams many;
  if (p.on == link::channel::data) {
    if (actors::read_stamp(p.header, s) && !has(s.flags, actors::stamp_flags::rehearsal)) note(p, s);
  } else if (read_flow(p, h, m) && m.what == actors::matched::kind::question) {
    stream_of({{op_of(h), h.generation, p.from}, p.to, m.stream}).questions.push_back(line_.now());
  } else if (read_flow(p, h, many) && many.what == actors::matched_streams::kind::question) {
    for (const actors::matched_stream& each : many.streams)
      stream_of({{op_of(h), h.generation, p.from}, p.to, each.stream}).questions.push_back(line_.now());
  }
}

bool window_book::on_deliver(parcel& p) {
  actors::stamp s;
  runtime::frame_header h;
  actors::matched m;
  actors::matched_streams many;
  if (p.on == link::channel::data) {
    // A rank that sends data of an invocation has begun it. The leader of a group treats that data as a report.
    if (actors::read_stamp(p.header, s) && !has(s.flags, actors::stamp_flags::rehearsal)) {
      tell({{s.op, s.generation, p.to}, p.from, s.tag}, actors::unwrap(s.invocation, first_) + 1);
      note(p, s);  // the stamp of a message that a fence delivers is first seen here
    }
  } else if (read_flow(p, h, m) && m.what == actors::matched::kind::report) {
    tell({{op_of(h), h.generation, p.to}, p.from, m.stream}, m.count);
  } else if (read_flow(p, h, many) && says_counts(many)) {
    for (const actors::matched_stream& each : many.streams)
      tell({{op_of(h), h.generation, p.to}, p.from, each.stream}, each.count);
  }
  return true;
}

// The sum of the bytes of those invocations from `first` to `last` that were sent.
std::uint64_t window_book::bytes_of(const stream& s, std::uint64_t first, std::uint64_t last) {
  auto& before = s.bytes_before;
  if (before.size() != s.stamps.size() + 1) {
    before.assign(1, 0);
    for (const auto& [invocation, mark] : s.stamps) before.push_back(before.back() + mark.bytes);
  }
  const auto index_of = [&](std::uint64_t invocation) {
    return static_cast<std::size_t>(place_of(s.stamps, invocation) - s.stamps.begin());
  };
  return before[index_of(last + 1)] - before[index_of(first)];
}

time_ns window_book::room_at(const stream& s, std::uint64_t invocation) const {
  // The number of invocations that must have been matched. An invocation of any size may be sent once all before it are matched.
  std::uint64_t least = invocation - first_ < limits_.invocations ? first_ : invocation + 1 - limits_.invocations;
  std::uint64_t most = invocation;
  if (bytes_of(s, least, invocation) <= limits_.bytes) most = least;
  while (least < most) {
    const std::uint64_t middle = least + (most - least) / 2;
    if (bytes_of(s, middle, invocation) <= limits_.bytes) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  if (least == first_) return 0;
  const auto too_few = [&](const auto& told) { return told.second < least; };
  const auto at = std::partition_point(s.matched.begin(), s.matched.end(), too_few);
  return at == s.matched.end() ? runtime::never : at->first;
}

time_ns window_book::room_at(const sender& s, std::uint64_t invocation) const {
  time_ns latest = 0;
  for (auto at = streams_.lower_bound({s, 0, 0}); at != streams_.end() && std::get<0>(at->first) == s; ++at) {
    const auto& stamps = at->second.stamps;
    const auto stamp = place_of(stamps, invocation);
    if (stamp != stamps.end() && stamp->first == invocation) latest = std::max(latest, room_at(at->second, invocation));
  }
  return latest;
}

bool window_book::asked(const sender& s, time_ns from, time_ns until) const {
  for (auto at = streams_.lower_bound({s, 0, 0}); at != streams_.end() && std::get<0>(at->first) == s; ++at) {
    const auto& all = at->second.questions;
    if (std::any_of(all.begin(), all.end(), [&](time_ns t) { return t >= from && t <= until; })) return true;
  }
  return false;
}

std::vector<window_book::early_stamp> window_book::overrun() const {
  std::vector<early_stamp> all;
  for (const auto& [k, s] : streams_) {
    for (const auto& [invocation, mark] : s.stamps) {
      const time_ns room = room_at(s, invocation);
      if (room > mark.left_ns)
        all.push_back(
            {std::get<0>(k), std::get<1>(k), invocation, room == runtime::never ? room : room - mark.left_ns});
    }
  }
  return all;
}

}  // namespace parley::simulation
