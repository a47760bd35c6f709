#include <parley/schedule.hpp>
#include <parley/tuning/text.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using kind = pipeline_action::kind;

namespace {

struct action_name {
  std::string_view text;
  kind what;
};
constexpr std::array<action_name, 6> names{{{"F", kind::forward},
                                            {"B", kind::backward},
                                            {"SEND_F", kind::send_forward},
                                            {"SEND_B", kind::send_backward},
                                            {"RECV_F", kind::receive_forward},
                                            {"RECV_B", kind::receive_backward}}};

/// The action that `a` depends on, apart from the earlier actions of its list. For a receive that is the neighbouring stage's send,
/// otherwise an action of the same stage.
std::optional<pipeline_action> need_of(const pipeline_schedule& s, const pipeline_action& a) {
  const std::uint32_t last = s.stages - 1;
  switch (a.what) {
    case kind::forward:
      if (a.stage == 0) return std::nullopt;
      return pipeline_action{a.stage, kind::receive_forward, a.microbatch};
    case kind::backward:
      if (a.stage == last) return pipeline_action{a.stage, kind::forward, a.microbatch};
      return pipeline_action{a.stage, kind::receive_backward, a.microbatch};
    case kind::send_forward: return pipeline_action{a.stage, kind::forward, a.microbatch};
    case kind::send_backward: return pipeline_action{a.stage, kind::backward, a.microbatch};
    case kind::receive_forward: return pipeline_action{a.stage - 1, kind::send_forward, a.microbatch};
    case kind::receive_backward: return pipeline_action{a.stage + 1, kind::send_backward, a.microbatch};
  }
  return std::nullopt;
}

using action_key = std::tuple<std::uint32_t, kind, std::uint32_t>;
action_key key_of(const pipeline_action& a) { return {a.stage, a.what, a.microbatch}; }

bool has_boundary(const pipeline_schedule& s, const pipeline_action& a) {
  if (a.what == kind::send_forward || a.what == kind::receive_backward) return a.stage + 1 < s.stages;
  if (a.what == kind::receive_forward || a.what == kind::send_backward) return a.stage > 0;
  return true;
}

// Adds each send behind the computation of its data, and each receive one computation ahead of the computation that needs its data.
void add_messages(pipeline_schedule& s) {
  for (auto& list : s.ranks) {
    std::vector<pipeline_action> all;
    const auto receive_for = [&](const pipeline_action& a) {
      const pipeline_action r{a.stage, a.what == kind::forward ? kind::receive_forward : kind::receive_backward,
                              a.microbatch};
      if (has_boundary(s, r)) all.push_back(r);
    };
    if (!list.empty()) receive_for(list.front());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i + 1 < list.size()) receive_for(list[i + 1]);
      all.push_back(list[i]);
      const pipeline_action send{
          list[i].stage, list[i].what == kind::forward ? kind::send_forward : kind::send_backward, list[i].microbatch};
      if (has_boundary(s, send)) all.push_back(send);
    }
    list = std::move(all);
  }
}

// A stage is on the rank that lists its first computation.
void place_stages(pipeline_schedule& s) {
  std::map<std::uint32_t, rank_id> found;
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    for (const pipeline_action& a : s.ranks[r]) {
      if (a.computes()) found.try_emplace(a.stage, static_cast<rank_id>(r));
    }
  }
  std::vector<rank_id> places;
  bool usual = true;
  for (std::uint32_t stage = 0; stage < s.stages; ++stage) {
    const auto at = found.find(stage);
    places.push_back(at == found.end() ? s.rank_of(stage) : at->second);
    usual = usual && places.back() == s.rank_of(stage);
  }
  if (!usual) s.places = std::move(places);
}

pipeline_schedule made_of(std::uint32_t ranks, std::uint32_t microbatches, std::uint32_t stages) {
  if (ranks == 0 || microbatches == 0 || stages == 0)
    runtime::raise({errc::bad_argument, "a pipeline needs at least one rank, one stage and one microbatch"});
  pipeline_schedule s;
  s.stages = stages;
  s.microbatches = microbatches;
  s.ranks.resize(ranks);
  return s;
}

}  // namespace

std::uint64_t pipeline_schedule::messages() const noexcept {
  std::uint64_t n = 0;
  for (const auto& list : ranks)
    n += static_cast<std::uint64_t>(std::count_if(list.begin(), list.end(), [](const auto& a) { return a.sends(); }));
  return n;
}

pipeline_schedule gpipe(std::uint32_t ranks, std::uint32_t microbatches) {
  pipeline_schedule s = made_of(ranks, microbatches, ranks);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    for (const kind what : {kind::forward, kind::backward}) {
      for (std::uint32_t m = 0; m < microbatches; ++m) s.ranks[r].push_back({r, what, m});
    }
  }
  add_messages(s);
  return s;
}

pipeline_schedule one_forward_one_backward(std::uint32_t ranks, std::uint32_t microbatches) {
  pipeline_schedule s = made_of(ranks, microbatches, ranks);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const std::uint32_t ahead = std::min(ranks - r - 1, microbatches);
    for (std::uint32_t m = 0; m < ahead; ++m) s.ranks[r].push_back({r, kind::forward, m});
    for (std::uint32_t m = 0; m < microbatches; ++m) {
      if (m + ahead < microbatches) s.ranks[r].push_back({r, kind::forward, m + ahead});
      s.ranks[r].push_back({r, kind::backward, m});
    }
  }
  add_messages(s);
  return s;
}

pipeline_schedule interleaved(std::uint32_t ranks, std::uint32_t microbatches, std::uint32_t chunks) {
  pipeline_schedule s = made_of(ranks, microbatches, ranks * chunks);
  if (chunks == 1) return one_forward_one_backward(ranks, microbatches);
  if (microbatches % ranks != 0)
    runtime::raise({errc::bad_argument, "an interleaved pipeline of " + std::to_string(ranks) +
                                            " ranks takes a multiple of that many microbatches, not " +
                                            std::to_string(microbatches)});
  // Microbatches move in groups of `ranks`. Each group passes through all chunks of a rank before the next group.
  const std::uint32_t all = microbatches * chunks;
  const auto nth = [&](std::uint32_t r, kind what, std::uint32_t n) {
    const std::uint32_t place = n % (ranks * chunks) / ranks;
    const std::uint32_t chunk = what == kind::forward ? place : chunks - 1 - place;
    return pipeline_action{chunk * ranks + r, what, n / (ranks * chunks) * ranks + n % ranks};
  };
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const std::uint32_t ahead = std::min((ranks - r - 1) * 2 + (chunks - 1) * ranks, all);
    for (std::uint32_t n = 0; n < ahead; ++n) s.ranks[r].push_back(nth(r, kind::forward, n));
    for (std::uint32_t n = 0; n < all; ++n) {
      if (n + ahead < all) s.ranks[r].push_back(nth(r, kind::forward, n + ahead));
      s.ranks[r].push_back(nth(r, kind::backward, n));
    }
  }
  add_messages(s);
  return s;
}

// ---- text -------------------------------------------------------------------------------------------------------------

std::string text_of(const pipeline_action& a) {
  const auto named = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.what == a.what; });
  return std::to_string(a.stage) + std::string(named->text) + std::to_string(a.microbatch);
}

std::string text_of(const pipeline_schedule& s) {
  std::string text;
  for (const auto& list : s.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + text_of(list[i]);
    text += '\n';
  }
  return text;
}

namespace {

std::optional<std::uint32_t> number_at(std::string_view text, std::size_t& at) {
  std::uint32_t value = 0;
  const auto [end, failed] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  at = static_cast<std::size_t>(end - text.data());
  return value;
}

std::optional<pipeline_action> action_at(std::string_view line, std::size_t& at) {
  const auto stage = number_at(line, at);
  const auto named =
      std::find_if(names.begin(), names.end(), [&](const auto& n) { return line.substr(at).starts_with(n.text); });
  if (!stage || named == names.end()) return std::nullopt;
  at += named->text.size();
  const auto microbatch = number_at(line, at);
  if (!microbatch) return std::nullopt;
  return pipeline_action{*stage, named->what, *microbatch};
}

constexpr std::uint32_t most_stages = 65'536;
constexpr std::uint32_t most_microbatches = 1'000'000;

}  // namespace

runtime::result<pipeline_schedule> parse_schedule(std::string_view text) {
  pipeline_schedule s;
  bool messages = false;
  std::size_t number = 0;
  constexpr std::string_view blank = " \t\r\n";
  text = text.substr(0, text.find_last_not_of(blank) + 1);  // blank lines at the end are no ranks
  while (!text.empty()) {
    const std::string_view line = tuning::take_until('\n', text);
    ++number;
    const auto wrong = [&](std::size_t at, const std::string& what) {
      return error{errc::malformed, "schedule:" + std::to_string(number) + ":" + std::to_string(at + 1) + ": " + what};
    };
    auto& list = s.ranks.emplace_back();
    std::size_t at = 0;
    while (at < line.size()) {
      if (line[at] == ' ' || line[at] == '\t' || line[at] == '\r' || line[at] == ',') {
        ++at;
        continue;
      }
      const std::size_t begin = at;
      const auto a = action_at(line, at);
      if (!a)
        return wrong(begin, "\"" + std::string(line.substr(begin, line.find(',', begin) - begin)) +
                                "\" is not an action; write a stage, F, B, SEND_F, RECV_F, SEND_B or RECV_B, and a "
                                "microbatch, such as 0F0");
      if (at < line.size() && line[at] != ',' && line[at] != ' ' && line[at] != '\t' && line[at] != '\r')
        return wrong(at, "a comma belongs between two actions");
      if (a->stage >= most_stages || a->microbatch >= most_microbatches)
        return wrong(begin, text_of(*a) + " has a number that is too large");
      s.stages = std::max(s.stages, a->stage + 1);
      s.microbatches = std::max(s.microbatches, a->microbatch + 1);
      messages = messages || !a->computes();
      list.push_back(*a);
    }
    if (list.empty())
      return wrong(0, "rank " + std::to_string(s.ranks.size() - 1) +
                          " has no action here, and each rank of a pipeline has a stage; leave this line out, and "
                          "say in `ranks` of the op which ranks the others are");
  }
  if (s.ranks.empty()) return error{errc::malformed, "schedule:1:1: it has no action"};
  place_stages(s);
  if (!messages) add_messages(s);
  if (auto sound = check(s); !sound) return sound.reason();
  return s;
}

// ---- checks and estimates ---------------------------------------------------------------------------------------------

namespace {

// A value for each action.
template <class T>
class by_action {
 public:
  explicit by_action(const pipeline_schedule& s)
      : stages_(s.stages), microbatches_(s.microbatches), all_(std::size_t{s.stages} * names.size() * s.microbatches) {}
  T& operator[](const pipeline_action& a) {
    if (a.stage >= stages_ || a.microbatch >= microbatches_)
      runtime::raise({errc::bad_argument, "schedule: " + text_of(a) + " is outside of it"});
    return all_[(a.stage * names.size() + static_cast<std::size_t>(a.what)) * microbatches_ + a.microbatch];
  }

 private:
  std::size_t stages_;
  std::size_t microbatches_;
  std::vector<T> all_;
};

// Advances through all lists as ranks would, each as far as possible. Returns true if all lists are finished.
template <class Done>
bool walk(const pipeline_schedule& s, const Done& done, std::vector<std::size_t>& reached) {
  by_action<char> happened(s);
  reached.assign(s.ranks.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < s.ranks.size(); ++r) {
      const auto& list = s.ranks[r];
      while (reached[r] < list.size()) {
        const pipeline_action& a = list[reached[r]];
        char& this_one = happened[a];
        // Ranks only post a receive and continue. The action that needs the received data waits for the receive, and so for its send.
        auto wanted = need_of(s, a);
        if (!a.computes() && !a.sends()) wanted.reset();
        if (wanted && happened[*wanted] == 0) break;
        if (wanted && !wanted->computes() && !wanted->sends()) {
          const auto sent = need_of(s, *wanted);
          if (happened[*sent] == 0) break;
        }
        done(static_cast<rank_id>(r), a);
        this_one = 1;
        ++reached[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    if (reached[r] != s.ranks[r].size()) return false;
  }
  return true;
}

}  // namespace

runtime::result<> check(const pipeline_schedule& s) {
  const auto wrong = [](const std::string& what) { return error{errc::bad_argument, "schedule: " + what}; };
  if (s.ranks.empty() || s.stages == 0 || s.microbatches == 0) return wrong("it is empty");
  if (s.stages < s.ranks.size())
    return wrong("it has " + std::to_string(s.stages) + " stages for " + std::to_string(s.ranks.size()) + " ranks");
  if (!s.places.empty() && s.places.size() != s.stages)
    return wrong("it has places for " + std::to_string(s.places.size()) + " of its " + std::to_string(s.stages) +
                 " stages");
  std::set<action_key> seen;
  // For each boundary and direction: the microbatches in the order of sending and of receiving.
  std::map<std::pair<std::uint32_t, bool>, std::vector<std::uint32_t>> sent;
  std::map<std::pair<std::uint32_t, bool>, std::vector<std::uint32_t>> received;
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    for (const pipeline_action& a : s.ranks[r]) {
      const std::string who = text_of(a) + " on rank " + std::to_string(r);
      if (a.stage >= s.stages || a.microbatch >= s.microbatches) return wrong(who + " is outside of it");
      if (s.rank_of(a.stage) != r) return wrong(who + ": that stage is on rank " + std::to_string(s.rank_of(a.stage)));
      if (!has_boundary(s, a)) return wrong(who + " crosses no boundary");
      if (!seen.insert(key_of(a)).second) return wrong(who + " is listed twice");
      const bool forward = a.what == kind::send_forward || a.what == kind::receive_forward;
      const std::uint32_t lower =
          a.what == kind::send_forward || a.what == kind::receive_backward ? a.stage : a.stage - 1;
      if (!a.computes()) (a.sends() ? sent : received)[{lower, forward}].push_back(a.microbatch);
    }
  }
  for (std::uint32_t stage = 0; stage < s.stages; ++stage) {
    for (std::uint32_t m = 0; m < s.microbatches; ++m) {
      for (const auto& [name, what] : names) {
        const pipeline_action a{stage, what, m};
        if (has_boundary(s, a) && !seen.contains(key_of(a)))
          return wrong(text_of(a) + " is missing" +
                       (a.computes() ? "" : "; if messages are listed, all of them must be"));
      }
    }
  }
  for (const auto& [boundary, order] : sent) {
    if (received[boundary] != order)
      return wrong(std::string(boundary.second ? "activations" : "gradients") + " between stages " +
                   std::to_string(boundary.first) + " and " + std::to_string(boundary.first + 1) +
                   " are sent in another order than they are received");
  }
  std::vector<std::size_t> reached;
  if (walk(s, [](rank_id, const pipeline_action&) {}, reached)) return {};
  std::string stuck;
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    if (reached[r] == s.ranks[r].size()) continue;
    const pipeline_action& at = s.ranks[r][reached[r]];
    auto wanted = need_of(s, at);
    if (wanted && !wanted->computes() && !wanted->sends()) wanted = need_of(s, *wanted);  // what a receive waits for
    stuck += (stuck.empty() ? "" : ", ") + std::string("rank ") + std::to_string(r) + " at " + text_of(at) +
             (wanted ? ", which needs " + text_of(*wanted) : "");
  }
  return wrong("it can never end: " + stuck);
}

pipeline_estimate estimate(const pipeline_schedule& s, const pipeline_times& t) {
  pipeline_estimate answer;
  by_action<double> ended(s);
  std::vector<double> free_at(s.ranks.size());
  std::vector<std::uint32_t> alive(s.stages);
  answer.alive.resize(s.ranks.size());
  double busy = 0;
  std::vector<double> busy_of(s.ranks.size());
  const auto at = [&](const std::optional<pipeline_action>& a) { return a ? ended[*a] : 0.0; };
  std::vector<std::size_t> reached;
  const bool whole = walk(
      s,
      [&](rank_id r, const pipeline_action& a) {
        if (!a.computes() && !a.sends()) return;
        auto wanted = need_of(s, a);
        if (wanted && !wanted->computes()) wanted = need_of(s, *wanted);
        if (a.sends()) {
          ended[a] = at(wanted);
          return;
        }
        const double takes = a.what == kind::forward ? t.forward : t.backward;
        free_at[r] = std::max(free_at[r], at(wanted)) + takes;
        busy += takes;
        busy_of[r] += takes;
        ended[a] = free_at[r];
        answer.makespan = std::max(answer.makespan, free_at[r]);
        if (a.what == kind::backward) {
          --alive[a.stage];
        } else {
          answer.alive[r] = std::max(answer.alive[r], ++alive[a.stage]);
        }
      },
      reached);
  if (!whole)
    runtime::raise({errc::bad_argument, "schedule: it can never end, because ranks wait for each other or for a "
                                        "missing action; check() names the actions"});
  for (std::size_t r = 0; r < s.ranks.size(); ++r)
    answer.ranks.push_back({free_at[r], free_at[r] > 0 ? 1 - busy_of[r] / free_at[r] : 0});
  answer.idle_share = 1 - busy / (answer.makespan * static_cast<double>(s.ranks.size()));
  return answer;
}

}  // namespace parley::ops
