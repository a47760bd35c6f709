#pragma once
/// The base of all checkers: the records of a run by op, generation and invocation, and a list of violations.
///
///     struct one_assignment final : checker {
///       using checker::checker;
///       void look() const { … violated(book_.where(flight) + ": began twice"); }
///     };
///     one_assignment(book, found, "S1").look();
#include <parley/simulation/world/run_record.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace parley::simulation {

/// Bits of `flight_record::flags`.
inline constexpr std::uint8_t timed = 1;
inline constexpr std::uint8_t rehearsal = 4;

inline std::string hex(std::uint64_t n) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += digits[n >> static_cast<unsigned>(shift) & 15U];
  return text;
}

/// Job, op, generation.
using generation_key = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;

inline bool is_rehearsal(const runtime::flight_record& one) noexcept { return (one.flags & rehearsal) != 0; }
inline bool ran_well(const flight_view& f) {
  return f.record.what == runtime::flight_event::sent || f.record.what == runtime::flight_event::received;
}
inline bool is_sender(const flight_view& f) {
  return f.record.what == runtime::flight_event::sent || f.record.what == runtime::flight_event::send_failed;
}

/// The flights of all ranks with one tag in one generation, sorted by invocation.
struct flown {
  generation_key generation;
  std::vector<const flight_view*> flights;

  /// Calls `visit(flights)` for each invocation.
  template <class Visit>
  void each_invocation(const Visit& visit) const {
    for (std::size_t first = 0, behind = 0; first < flights.size(); first = behind) {
      while (behind < flights.size() && number_of(flights[behind]) == number_of(flights[first])) ++behind;
      visit(std::span(flights).subspan(first, behind - first));
    }
  }
  static std::pair<std::uint64_t, bool> number_of(const flight_view* f) noexcept {
    return {f->record.invocation, is_rehearsal(f->record)};
  }
};

/// The records of a run, indexed by op, generation, rank and invocation.
struct record_book {
  explicit record_book(const run_record& run) : r(run) {
    if (r.play != nullptr) {
      for (const op_spec& op : r.play->ops) ops.emplace(op.name, &op);
    }
    for (const participant_view& p : r.participants) {
      participants.emplace(std::tuple(p.job, p.id, p.generation, p.rank), &p);
      members[{p.job, p.id, p.generation}].push_back(&p);
      declared.emplace(p.job, p.id, p.rank);
      if (p.leads) leaders.emplace(std::pair(p.job, p.op), &p);
      for (const auto& [digest, wire_class] : p.classes) classes.emplace(digest, wire_class);
    }
    // A mixture that is not a config itself has the wire class that all its parts share.
    for (const participant_view& p : r.participants) {
      for (const auto& [mixture, own] : p.instead) classes.emplace(mixture, class_of(own));
    }
    sort_flights();
  }
  // Sorts the flights by stream and invocation. A rank records its flights in its own order, usually several of one op in a row.
  void sort_flights() {
    using stream = std::tuple<std::size_t, std::uint64_t, std::uint64_t, std::uint32_t>;
    std::map<stream, std::vector<const flight_view*>> streams;
    std::optional<stream> latest;
    std::vector<const flight_view*>* its = nullptr;
    rank_id rank = 0;
    owners.reserve(r.flights.size());
    for (const flight_view& f : r.flights) {
      const runtime::flight_record& one = f.record;
      const stream key(f.job, one.op, one.generation, one.tag);
      if (latest != key || rank != f.rank) {
        const auto owner = participants.find(std::tuple(f.job, one.op, one.generation, f.rank));
        owners.push_back(owner == participants.end() ? nullptr : owner->second);
        its = &streams[key];
        latest = key;
        rank = f.rank;
      } else {
        owners.push_back(owners.back());
      }
      its->push_back(&f);
    }
    for (auto& [key, flights] : streams) {
      std::stable_sort(flights.begin(), flights.end(), [](const flight_view* a, const flight_view* b) {
        return flown::number_of(a) < flown::number_of(b);
      });
      all_flown.push_back({{std::get<0>(key), std::get<1>(key), std::get<2>(key)}, std::move(flights)});
    }
  }
  /// Calls `visit(generation, flights)` for each invocation.
  template <class Visit>
  void each_invocation(const Visit& visit) const {
    for (const flown& f : all_flown)
      f.each_invocation([&](std::span<const flight_view* const> flights) { visit(f.generation, flights); });
  }
  /// The participant that recorded `f`, a flight of this record. Null: the rank had no such op, or not in that generation.
  const participant_view* find(const flight_view& f) const {
    return owners[static_cast<std::size_t>(&f - r.flights.data())];
  }
  const op_spec* find(std::string_view op) const {
    const auto at = ops.find(op);
    return at == ops.end() ? nullptr : at->second;
  }
  /// All ranks of the op that a participant belongs to. A pipeline has more ranks than one of its edges.
  const std::vector<rank_id>& ranks_of(const participant_view& p) const {
    const op_spec* const op = op_of(p);
    return op == nullptr ? p.members : op->members;
  }
  const op_spec* op_of(const participant_view& p) const {
    for (const auto& [name, op] : ops) {
      if (is_of(p.op, name)) return op;
    }
    return nullptr;
  }
  const std::string& class_of(std::uint64_t digest) const {
    const auto at = classes.find(digest);
    return at == classes.end() ? classes.emplace(digest, "unknown " + hex(digest)).first->second : at->second;
  }
  /// True if members have declared defaults of different wire classes. parley refuses that as soon as the members meet.
  bool is_misdeclared(const generation_key& generation) const {
    const auto at = members.find(generation);
    if (at == members.end()) return false;
    const std::vector<const participant_view*>& all = at->second;
    return std::any_of(all.begin(), all.end(),
                       [&](const participant_view* p) { return class_of(p->c0) != class_of(all.front()->c0); });
  }
  /// Like that, for any job and generation of the op.
  bool is_misdeclared(std::uint64_t op) const {
    return std::any_of(members.begin(), members.end(),
                       [&](const auto& m) { return std::get<1>(m.first) == op && is_misdeclared(m.first); });
  }
  std::string where(const flight_view& f) const {
    const participant_view* const p = find(f);
    return (p == nullptr ? "op " + hex(f.record.op) : p->title) + ", on rank " + std::to_string(f.rank) + ", " +
           (is_rehearsal(f.record) ? "rehearsal " : "invocation ") + std::to_string(f.record.invocation);
  }
  const run_record& r;
  std::map<std::string_view, const op_spec*> ops;  // of the scenario, by name
  std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t, rank_id>, const participant_view*> participants;
  std::map<generation_key, std::vector<const participant_view*>> members;
  std::set<std::tuple<std::size_t, std::uint64_t, rank_id>> declared;  // ops, by job and rank
  std::map<std::pair<std::size_t, std::string>, const participant_view*>
      leaders;  // the first leader, by job and name of the op
  std::vector<flown> all_flown;
  std::vector<const participant_view*> owners;  // of each flight of the record
  mutable std::map<std::uint64_t, std::string> classes;
};

/// The base of the checker of one invariant. Stops adding violations once 50 were found, which is as many as one can read.
class checker {
 public:
  checker(const record_book& b, std::vector<violation>& found, const char* invariant)
      : book_(b), found_(found), invariant_(invariant) {}

 protected:
  void violated(std::string text) const {
    if (found_.size() < 50) found_.push_back({invariant_, std::move(text)});
  }
  const record_book& book_;

 private:
  std::vector<violation>& found_;
  const char* invariant_;
};

}  // namespace parley::simulation
