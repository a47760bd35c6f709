#include <parley/simulation/scenarios/many_seeds.hpp>

#include <parley/error.hpp>
#include <parley/number_text.hpp>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

namespace parley::simulation {

namespace {

constexpr std::uint64_t sent_often = 5'000;         // messages of a type in one state
constexpr std::uint64_t sent_often_in_all = 1'000;  // messages of a type in all states, if it is rare in each

struct cell {
  const char* name;
  std::uint64_t message_counts::* count;
};
constexpr cell cells[] = {{"lost", &message_counts::lost},
                          {"doubled", &message_counts::doubled},
                          {"reordered", &message_counts::reordered},
                          {"delayed", &message_counts::delayed}};

// For each message type, the op states in which every run of many seeds sends it. In other states the type is rare or impossible. Messages
// of rounds and neighbours belong to ops without an agreement, so their state is always `offering`. docs/simulation.md lists the types that
// no scenario sends.
struct usual_states {
  std::string_view type;
  std::vector<op_state> states;
};
const std::vector<usual_states>& usual() {
  using enum op_state;
  static const std::vector<usual_states> all{
      {"accepted", {none}},
      {"ack", {offering, warming, preparing, running, collecting, idle}},
      {"credit", {warming, running, collecting, idle}},
      {"data", {offering, warming, running, collecting, idle}},
      {"data kept at sender", {offering, warming, running, collecting, idle}},
      {"data landed", {warming, running, collecting, idle}},
      {"data to be got", {warming, running, collecting, idle}},
      {"decide", {warming, running, collecting, idle}},
      {"exposed", {offering, warming, running, collecting, idle}},
      {"gen_end", {offering}},
      {"known", {offering, warming, running, collecting, idle}},
      {"lease_leaving", {warming, running, collecting, idle}},
      {"lease_let_go", {warming, running, collecting, idle}},
      {"lease_prepare", {warming, preparing, collecting, idle}},
      {"lease_reply", {preparing, running, collecting}},
      {"lease_schedule", {preparing, running, collecting}},
      {"lease_waiting", {preparing}},
      {"matched", {offering, warming, running, collecting, idle}},
      {"merged", {offering, warming, running, collecting, idle, ended}},
      {"nack", {running, collecting}},
      {"neighbour_failure", {offering}},
      {"neighbour_question", {offering}},
      {"offer", {offering, warming, running, collecting, idle, ended}},
      {"peer_question", {offering, ended}},
      {"poison", {warming, running, collecting, idle}},
      {"rehearsal data", {warming}},
      {"rehearse", {warming, running, collecting}},
      {"rehearsed", {preparing, running, collecting}},
      {"report", {running, collecting, idle}},
      {"revoke", {warming, running, collecting, idle}},
      {"revoked", {warming, running, collecting, idle}},
      {"round_outcome", {offering}},
      {"round_question", {offering}},
      {"round_said", {offering}},
      {"taken", {warming, running, collecting, idle}},
      {"tuning_request", {warming, running, collecting, idle}},
      {"warm", {warming, running, collecting, idle, ended}},
      {"warmed", {warming, running, collecting, idle}},
  };
  return all;
}

// Faults that messages of these types never meet, even in very many seeds, and why.
struct spared {
  std::string_view type;
  op_state state;
  std::uint64_t message_counts::* count;
};
constexpr spared spared_cells[] = {
    {"offer", op_state::ended, &message_counts::reordered},  // it is the first message to a restarted peer
    {"warm", op_state::ended, &message_counts::reordered},   // 2,000 seeds of each scenario: 5 of 6,000 are late
    // Only pairs rehearse again in these states, and their rehearsals are too large for a link to double.
    {"rehearsal data", op_state::running, &message_counts::doubled},
    {"rehearsal data", op_state::collecting, &message_counts::doubled},
    {"rehearsal data", op_state::idle, &message_counts::doubled},
    // Memory is withdrawn once all calls are over, when the weather has been calm for a long time.
    {"exposed", op_state::ended, &message_counts::lost},
    {"known", op_state::ended, &message_counts::lost},
    {"known", op_state::ended, &message_counts::reordered},
    {"known", op_state::ended, &message_counts::delayed},
};

bool is_of_data(std::string_view type) { return type.find("data") != std::string_view::npos || type == "poison"; }

// Data is never lost while both ends live, and a payload that stays with its sender arrives once.
bool possible(std::string_view type, const cell& c) {
  if (is_of_data(type) && c.count == &message_counts::lost) return false;
  return type != "data kept at sender" || c.count != &message_counts::doubled;
}

// False if the scenarios do not allow this fault. Late and reordered messages also have other causes, but must occur only
// if delays are allowed.
bool is_allowed(std::string_view type, const cell& c, const fault_limits* allowed) {
  if (allowed == nullptr) return true;
  const bool is_data = is_of_data(type);
  if (c.count == &message_counts::lost) return allowed->lose != 0;
  if (c.count == &message_counts::doubled) return (is_data ? allowed->double_data : allowed->double_control) != 0;
  return (is_data ? allowed->delay_data : allowed->delay_control) != 0;
}

bool is_spared(std::string_view type, op_state s, const cell& c) {
  return std::any_of(std::begin(spared_cells), std::end(spared_cells),
                     [&](const spared& one) { return one.type == type && one.state == s && one.count == c.count; });
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

std::vector<std::string> coverage_gaps(const coverage& seen, scenarios_run which, const fault_limits* allowed) {
  std::vector<std::string> gaps;
  const auto gap = [&](std::string_view type, op_state s, const std::string& what) {
    gaps.push_back(std::string(type) + ", " + std::string(name(s)) + ": was never " + what);
  };
  for (const usual_states& u : usual()) {
    if (which == scenarios_run::some) break;
    const auto at = seen.find(std::string(u.type));
    for (const op_state s : u.states) {
      if (at == seen.end() || at->second[static_cast<std::size_t>(s)].sent == 0) gap(u.type, s, "sent");
    }
  }
  for (const auto& [type, by_state] : seen) {
    message_counts all;
    for (const message_counts& n : by_state) all += n;
    if (type == nameless_type && all.sent != 0)
      gaps.push_back(type + ": has no row of its own in simulation/world/weather.cpp");
    for (const cell& one : cells) {
      if (which == scenarios_run::some || all.sent < sent_often_in_all || all.*one.count != 0 || !possible(type, one))
        continue;
      gaps.push_back(type + ": was never " + one.name);
    }
    for (std::size_t i = 0; i < op_state_count; ++i) {
      const auto state = static_cast<op_state>(i);
      if (by_state[i].sent < sent_often) continue;
      for (const cell& one : cells) {
        if (by_state[i].*one.count != 0 || !possible(type, one) || is_spared(type, state, one)) continue;
        if (is_allowed(type, one, allowed)) gap(type, state, one.name);
      }
    }
  }
  return gaps;
}

std::string coverage_table(const coverage& seen) {
  std::string text = padded("message", 22) + padded("its op is", 12) + padded("sent", 12);
  for (const cell& c : cells) text += padded(c.name, 12);
  text += "\n";
  for (const auto& [type, by_state] : seen) {
    for (std::size_t i = 0; i < op_state_count; ++i) {
      const auto state = static_cast<op_state>(i);
      const message_counts& counts = by_state[i];
      if (counts.sent == 0 && counts.reordered == 0) continue;
      text += padded(type, 22) + padded(std::string(name(state)), 12) + padded(std::to_string(counts.sent), 12);
      for (const cell& c : cells) text += padded(possible(type, c) ? std::to_string(counts.*c.count) : "-", 12);
      text += "\n";
    }
  }
  return text;
}

std::string write_coverage(const coverage& seen) {
  std::string text;
  for (const auto& [type, by_state] : seen) {
    for (std::size_t i = 0; i < op_state_count; ++i) {
      const message_counts& n = by_state[i];
      if (n.sent == 0 && n.reordered == 0) continue;
      text += type + "," + std::string(name(static_cast<op_state>(i)));
      for (const std::uint64_t count : {n.sent, n.lost, n.doubled, n.reordered, n.delayed})
        text += "," + std::to_string(count);
      text += "\n";
    }
  }
  return text;
}

coverage read_coverage(std::string_view text) {
  coverage seen;
  while (!text.empty()) {
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto refuse = [&]() {
      runtime::raise({runtime::errc::malformed, "`" + line + "` is not a line of a coverage file"});
    };
    std::vector<std::string> fields(1);
    for (const char c : line) {
      if (c == ',') {
        fields.emplace_back();
      } else {
        fields.back() += c;
      }
    }
    std::size_t state = 0;
    while (state < op_state_count && (fields.size() != 7 || name(static_cast<op_state>(state)) != fields[1])) ++state;
    if (state == op_state_count) refuse();
    message_counts& n = seen[fields[0]][state];
    std::size_t field = 2;
    for (std::uint64_t* const count : {&n.sent, &n.lost, &n.doubled, &n.reordered, &n.delayed}) {
      const std::string& digits = fields[field++];
      const auto number = runtime::read_number<std::uint64_t>(digits, {0, std::numeric_limits<std::uint64_t>::max()});
      if (!number) refuse();
      *count = *number;
    }
  }
  return seen;
}

small shrink(const scenario& s, const tape& t, std::uint64_t seed, const std::string& invariant, const run_options& o) {
  small best{s};
  best.play.saved = t;
  const auto still_fails = [&](const scenario& candidate) {
    try {
      static_cast<void>(read_scenario(write_scenario(candidate)));
    } catch (const runtime::failure&) {
      return false;
    }
    ++best.runs;
    const outcome out = run(candidate, *candidate.saved, seed, o);
    return std::any_of(out.violations.begin(), out.violations.end(),
                       [&](const violation& v) { return v.invariant == invariant; });
  };
  const auto attempt = [&](const std::function<bool(scenario&)>& change) {
    scenario candidate = best.play;
    if (!change(candidate) || !still_fails(candidate)) return false;
    best.play = std::move(candidate);
    ++best.fewer;
    return true;
  };
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t i = 0; i < best.play.ops.size() && best.play.ops.size() > 1;) {
      const bool gone = attempt([&](scenario& c) {
        c.ops.erase(c.ops.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      });
      smaller = smaller || gone;
      i += gone ? 0 : 1;
    }
    for (std::size_t i = 0; i < best.play.saved->mishaps.size();) {
      const bool gone = attempt([&](scenario& c) {
        c.saved->mishaps.erase(c.saved->mishaps.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      });
      smaller = smaller || gone;
      i += gone ? 0 : 1;
    }
    for (std::uint64_t tape::* rate :
         {&tape::lose, &tape::double_control, &tape::delay_control, &tape::delay_data, &tape::double_data,
          &tape::disk_fails, &tape::noise, &tape::drift, &tape::stragglers, &tape::window, &tape::window_bytes,
          &tape::control_window, &tape::hurry, &tape::early_timeouts, &tape::disk_room, &tape::disk_locks,
          &tape::disk_tears}) {
      smaller = attempt([&](scenario& c) { return std::exchange(*c.saved.*rate, 0) != 0; }) || smaller;
    }
    smaller =
        attempt([](scenario& c) { return std::exchange(c.saved->order, ordering::arrival) != ordering::arrival; }) ||
        smaller;
    smaller = attempt([](scenario& c) { return std::exchange(c.saved->skewed, false); }) || smaller;
    smaller = attempt([](scenario& c) { return std::exchange(c.saved->promise_margin, {}).has_value(); }) || smaller;
    smaller = attempt([](scenario& c) {
                const std::uint64_t before = std::exchange(c.jobs, (c.jobs + 1) / 2);
                if (c.validators.size() > c.jobs) c.validators.resize(c.jobs);
                return before != c.jobs;
              }) ||
              smaller;
    for (std::size_t i = 0; i < best.play.ops.size(); ++i) {
      for (std::uint64_t op_spec::* count :
           {&op_spec::calls, &op_spec::in_flight, &op_spec::streams, &op_spec::depth}) {
        smaller = attempt([&](scenario& c) {
                    std::uint64_t& n = c.ops[i].*count;
                    const std::uint64_t least = count == &op_spec::calls ? 0 : 1;
                    // A search that gets too few calls does not hang, so `calls` stays if L1 is broken. `calm` always stays, because
                    // searches end by it: so the saved run passes once its fault is fixed.
                    if (n <= least || (invariant == "L1" && least == 0)) return false;
                    n = std::max(n / 2, least);
                    return true;
                  }) ||
                  smaller;
      }
      for (std::size_t k = 1; k < best.play.ops[i].configs.size();) {
        const bool gone = attempt([&](scenario& c) {
          auto& configs = c.ops[i].configs;
          configs.erase(configs.begin() + static_cast<std::ptrdiff_t>(k));
          return true;
        });
        smaller = smaller || gone;
        k += gone ? 0 : 1;
      }
      smaller = attempt([&](scenario& c) {
                  if (c.ops[i].sizes.size() < 2) return false;
                  c.ops[i].sizes.pop_back();
                  return true;
                }) ||
                smaller;
    }
    smaller = attempt([](scenario& c) {
                rank_id used = 2;
                for (const op_spec& op : c.ops) {
                  for (const rank_id r : op.members) used = std::max(used, r + 1);
                }
                const bool fewer = used < c.ranks;
                c.ranks = used;
                if (c.saved->starved >= used) c.saved->starved = 0;
                return fewer;
              }) ||
              smaller;
  }
  return best;
}

}  // namespace parley::simulation
