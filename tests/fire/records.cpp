#include <parley/tests/fire/records.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/simulation/checkers/rank_views.hpp>

#include <boost/describe/class.hpp>
#include <boost/json.hpp>
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace json = boost::json;

// The JSON form of what `check_flights` reads.
namespace parley::actors {
BOOST_DESCRIBE_STRUCT(wire_evidence, (), (digest, repetitions, status))
BOOST_DESCRIBE_STRUCT(decision_record, (), (key, digest, version, evidence))
}  // namespace parley::actors

namespace parley::simulation {
BOOST_DESCRIBE_STRUCT(participant_view, (),
                      (rank, ended, op, title, id, generation, c0, leads, members, candidates, ready, instead,
                       available, classes, decisions))
BOOST_DESCRIBE_STRUCT(search_view, (), (op, generation, title, key, winner, digest))
}  // namespace parley::simulation

namespace parley::runtime {

// An array and not an object, because there are hundreds of them.
static void tag_invoke(const json::value_from_tag&, json::value& to, const flight_record& r) {
  to = json::array{
      r.op,   r.generation, r.tag, r.invocation, r.digest, r.bytes, r.began_ns, r.ended_ns, static_cast<int>(r.what),
      r.flags};
}
static flight_record tag_invoke(const json::value_to_tag<flight_record>&, const json::value& from) {
  const json::array& all = from.as_array();
  flight_record r;
  r.op = all.at(0).to_number<std::uint64_t>();
  r.generation = all.at(1).to_number<std::uint64_t>();
  r.tag = all.at(2).to_number<std::uint32_t>();
  r.invocation = all.at(3).to_number<std::uint64_t>();
  r.digest = all.at(4).to_number<std::uint64_t>();
  r.bytes = all.at(5).to_number<std::uint64_t>();
  r.began_ns = all.at(6).to_number<time_ns>();
  r.ended_ns = all.at(7).to_number<time_ns>();
  r.what = static_cast<flight_event>(all.at(8).to_number<std::uint8_t>());
  r.flags = all.at(9).to_number<std::uint8_t>();
  return r;
}

}  // namespace parley::runtime

namespace fire {

using namespace parley::simulation;

namespace {

struct left_by_one {
  rank_id rank = 0;
  std::uint64_t flights_lost = 0;
  bool rehearses = false;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> rehearsed{};
  std::vector<participant_view> participants{};
  std::vector<search_view> decided{};
  std::vector<parley::runtime::flight_record> flights{};
};
BOOST_DESCRIBE_STRUCT(left_by_one, (), (rank, flights_lost, rehearses, rehearsed, participants, decided, flights))

}  // namespace

std::string record_line(const parley::ops::rank& self, const std::optional<rehearsals>& rehearsed) {
  run_record all;
  add_views(all, self);
  left_by_one mine;
  mine.rank = self.id();
  for (const auto& [whose, n] : all.flights_lost) mine.flights_lost += n;
  mine.rehearses = rehearsed.has_value();
  if (rehearsed) mine.rehearsed.assign(rehearsed->begin(), rehearsed->end());
  mine.participants = std::move(all.participants);
  std::copy_if(all.searches.begin(), all.searches.end(), std::back_inserter(mine.decided),
               [](const search_view& c) { return c.where == parley::actors::search::stage::decided; });
  for (const flight_view& f : all.flights) mine.flights.push_back(f.record);
  return std::string(record_word) + json::serialize(json::value_from(mine));
}

left_records::left_records(const std::vector<std::string>& lines) {
  std::optional<rehearsals> complete;  // the least number of rehearsals of each config, over all ranks that rehearse
  for (const std::string& line : lines) {
    auto one = json::value_to<left_by_one>(json::parse(std::string_view(line).substr(record_word.size())));
    if (one.flights_lost != 0) record_.flights_lost[{0, one.rank}] += one.flights_lost;
    if (one.rehearses) {
      const rehearsals its(one.rehearsed.begin(), one.rehearsed.end());
      if (!complete) complete = its;
      for (auto& [digest, n] : *complete) n = std::min(n, its.contains(digest) ? its.at(digest) : 0);
    }
    for (participant_view& p : one.participants) record_.participants.push_back(std::move(p));
    for (search_view& c : one.decided) {
      c.where = parley::actors::search::stage::decided;
      record_.searches.push_back(std::move(c));
    }
    for (const auto& r : one.flights) record_.flights.push_back({0, one.rank, r});
  }
  if (complete) record_.rehearsed = *complete;
}

void left_records::check() const {
  for (const violation& v : violations()) FAIL_CHECK(v.invariant << ": " << v.text);
}

std::size_t left_records::told_again() const {
  constexpr unsigned rehearsal = 4;
  using invocation = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t>;
  std::map<invocation, std::set<rank_id>> told;
  for (const flight_view& f : record_.flights) {
    // An invocation without a digest ended before its rank knew its config.
    if (f.record.digest == 0 || (f.record.flags & rehearsal) != 0) continue;
    told[{f.record.op, f.record.generation, f.record.tag, f.record.invocation}].insert(f.rank);
  }
  std::size_t again = 0;
  for (const auto& [which, ranks] : told) again += ranks.size() - 1;
  return again;
}

std::size_t left_records::decided_again() const {
  using decision = std::tuple<std::uint64_t, std::uint64_t, std::string, std::uint32_t>;
  std::map<decision, std::set<rank_id>> told;
  for (const participant_view& p : record_.participants) {
    for (const auto& d : p.decisions) told[{p.id, p.generation, d.key, d.version}].insert(p.rank);
  }
  std::size_t again = 0;
  for (const auto& [which, ranks] : told) again += ranks.size() - 1;
  return again;
}

}  // namespace fire
