// Explores all orders in which news about ranks can arrive, for all ranks of a small job at once (news_world.hpp). In each order:
//
//   D1  A rank tells its ops once that a process has ended.
//   D2  It tells them the truth: never that a rank is dead when this rank has heard that it returned.
//   D3  A rank publishes no death of a rank that lives and has kept their connection, nor of a rank that it has cut off itself.
//   D4  A rank that the others consider dead ends its ops once.
//   D5  A loss names the rank with which it began, unless this rank knows nothing of that rank yet.
//   D6  A rank accepts a newer process once, and only after the link has finished with the older one.
//   D7  When all news has arrived, each rank has the right standing for every other rank.
//   D8  No verdict on the page is missed.
//   D9  The link has finished with every rank that is gone.
#include <parley/tests/actors/membership/news_world.hpp>

#include <doctest/doctest.h>

using namespace parley::tests;

namespace parley::tests {

void news_world::check_told(process& y, rank_id x, effect how, const peer_report& what, const actors::loss* l) {
  const std::uint8_t life = std::max(y.known[x], y.coming[x]);
  for (const told_of& t : y.told) {
    if (t.who == x && t.life == life) breaks("D1: the ops of " + ranks_text(y, x) + " are told once more");
  }
  y.told.push_back(
      {x, life, l == nullptr ? departure::died : l->how, l == nullptr ? x : l->began_with.rank, unheard(y, x)});
  const process* const at = known_to(y, x);
  if (l == nullptr) return;  // l is null for a newer process that was never accepted
  if (!y.first_failure && l->how != departure::returned) y.first_failure = l->began_with;
  const bool says_dead = how == effect::tell_dead || how == effect::tell_vanished;
  const bool is_verdict = at->is_held_dead();
  if (says_dead && (y.heard_bye[x] || (at->returned && !is_verdict && !unheard(y, x))))
    breaks("D2: " + ranks_text(y, x) + ", which has returned: told that it is dead");
  if (how == effect::tell_returned && !at->returned) breaks("D2: " + ranks_text(y, x) + ": told that it returned");
  if (how == effect::tell_cut_off && !y.cut[x]) breaks("D2: " + ranks_text(y, x) + ": told that it is cut off");
  const rank_id named = l->began_with.rank;
  if (how == effect::tell_ended && named != what.began_with.rank)
    breaks("D5: " + ranks_text(y, x) + ": names another one than it said");
  const auto verdicts = y.verdicts();
  const bool is_on_page =
      std::any_of(verdicts.begin(), verdicts.end(), [at](const auto& v) { return v.first == at->root; });
  const bool knows = at->root != x && (is_on_page || y.gone.has_failed(at->root));
  if (says_dead && named != at->root && knows)
    breaks("D5: " + ranks_text(y, x) + " names rank " + std::to_string(named));
  if (how == effect::tell_dead && named != x)
    breaks("D5: " + ranks_text(y, x) + " names rank " + std::to_string(named));
}

// A rank that leaves has told rank 0. Until rank 0 has told the others or ended, another rank may see the broken link first.
bool news_world::unheard(const process& y, rank_id left) const {
  const bool was_told = zero_.gone[left] && zero_.gone[left]->is == word::left;
  return left == 0 || !was_told || !y.is_beside(0) || processes_[0]->over();
}

void news_world::check_published(const process& y, rank_id x) {
  const process& at = *known_to(y, x);
  const bool is_well = &now_in(x) == &at && at.takes_part() && !at.is_held_dead();
  const bool keeps = !at.suspected && at.known[y.self] == y.life && at.ties[y.self] == tie::up;
  if (is_well && (keeps || y.cut[x])) breaks("D3: " + ranks_text(y, x) + " publishes a death that is none");
}

void news_world::check_settled(const process& y, rank_id x) {
  const process& now = now_in(x);
  const standing s = y.peers.of(x);
  const bool is_over = s == standing::lost || s == standing::ended || s == standing::returned;
  const auto wrong = [&](const char* expected) {
    breaks("D7: " + ranks_text(y, x) + ": it is " + std::string(name(s)) + ", not " + expected);
  };
  for (const auto& [dead, why] : y.verdicts()) {
    if (dead == x && !is_over) breaks("D8: " + ranks_text(y, x) + ": a verdict is left out");
  }
  if (s != standing::in_touch && y.ties[x] != tie::down) breaks("D9: " + ranks_text(y, x) + ": the link still has it");
  if (now.is_held_dead() || now.fences != 0) return is_over ? void() : wrong("lost");
  if (now.takes_part()) {
    if (now.life > y.known[x]) breaks("D6: " + ranks_text(y, x) + ": the newer process is not taken in");
    const bool kept = now.known[y.self] == y.life && now.ties[y.self] == tie::up;
    const standing right = y.cut[x] ? standing::cut_off : kept ? standing::in_touch : standing::lost;
    return s == right ? void() : wrong(std::string(name(right)).c_str());
  }
  const bool told_first =
      std::any_of(y.told.begin(), y.told.end(), [x](const told_of& t) { return t.who == x && t.unheard; });
  if (now.state == is::killed || now.state == is::stopped) {
    if (s != standing::lost) wrong("lost");
  } else if (s != standing::lost || !told_first) {
    const standing right = now.returned ? standing::returned : standing::ended;
    if (s != right) wrong(std::string(name(right)).c_str());
  }
}

}  // namespace parley::tests

namespace {

using layout = std::array<std::uint8_t, news_setup::most_ranks>;
const std::vector<std::pair<std::string, layout>>& layouts() {
  static const std::vector<std::pair<std::string, layout>> all{{"one host", {0, 0, 0, 0}},
                                                               {"two hosts", {0, 0, 1, 1}},
                                                               {"rank 0 alone on a host", {0, 1, 1, 1}},
                                                               {"a host for each rank", {0, 1, 2, 3}}};
  return all;
}

using plot = std::vector<happening>;
using named_plots = std::vector<std::pair<std::string, plot>>;
/// All that can happen to rank `who`; `other` is the rank that it may harm.
named_plots all_of(rank_id who, rank_id other) {
  const std::string of = "rank " + std::to_string(who) + " ";
  const std::string harmed = " rank " + std::to_string(other);
  named_plots all{{of + "is killed", {{fate::is_killed, who}}},
                  {of + "returns", {{fate::returns, who}}},
                  {of + "ends with an error", {{fate::ends_with_error, who}}},
                  {of + "ends because of a loss", {{fate::ends_because, who}}},
                  {of + "is stopped and goes on", {{fate::is_stopped, who}, {fate::goes_on, who}}},
                  {of + "cuts" + harmed, {{fate::cuts, who, other}}},
                  {of + "suspects" + harmed, {{fate::suspects, who, other}}}};
  if (who != 0) all.push_back({of + "is started again", {{fate::is_killed, who}, {fate::comes_back, who}}});
  return all;
}

/// Restarts multiply the orders. On one host and on two hosts, pairs of plots with one restart always run; the other pairs with restarts
/// need PARLEY_SCOPE=deep.
bool takes_long(const std::string& job, const plot& one, const plot& other) {
  const auto is_restart = [](const plot& p) { return p.back().what == fate::comes_back; };
  const bool is_usual = job == "one host" || job == "two hosts";
  return int{is_restart(one)} + int{is_restart(other)} > (is_usual ? 1 : 0);
}

/// Runs searches and counts them and their states.
struct tally {
  std::size_t searches = 0;
  std::size_t states = 0;
  void all_orders(const std::string& name, const news_setup& s) {
    const auto make = [&] { return std::make_unique<news_world>(s); };
    const findings f = explore("news, " + name, make, {.by_state = true, .quiet = true});
    CHECK_MESSAGE(f.safe(), f.how());
    ++searches;
    states += f.states;
  }
  ~tally() { MESSAGE(searches, " searches, ", states, " states"); }
};

}  // namespace

TEST_CASE("news in all orders: D1 to D9 hold when one rank ends, or two") {
  tally all;
  for (const auto& [name, host] : layouts()) {
    news_setup s;
    s.host = host;
    for (const rank_id who : {0U, 2U}) {
      std::size_t n = 0;
      for (const auto& [what, one] : all_of(who, 1)) {
        s.plots = {one};
        all.all_orders(name + ": " + what, s);
        const named_plots others = all_of(1, 2);
        // Except in the job "two hosts", ranks 1 and 2 are interchangeable, so each pair is searched once.
        const bool are_alike = who == 2 && name != "two hosts";
        for (std::size_t i = are_alike ? n : 0; i < others.size(); ++i) {
          if (takes_long(name, one, others[i].second) && !deep()) continue;
          s.plots = {one, others[i].second};
          all.all_orders(name + ": " + what + ", " + others[i].first, s);
        }
        ++n;
      }
    }
  }
}

TEST_CASE("news in all orders: D1 to D9 hold when a failed call asks for news first") {
  tally all;
  for (const auto& [name, host] : layouts()) {
    for (const auto& [what, one] : all_of(2, 1)) {
      news_setup s;
      s.host = host;
      s.looks_for_news = true;
      s.plots = {one};
      all.all_orders(name + ": " + what, s);
    }
  }
}

TEST_CASE("news in all orders: D1 to D9 hold when the hosts have no heartbeat page") {
  tally all;
  for (const rank_id who : {0U, 2U}) {
    for (const auto& [what, one] : all_of(who, 1)) {
      news_setup s;
      s.has_page = false;
      s.plots = {one};
      all.all_orders("no page: " + what, s);
    }
  }
}

TEST_CASE("news in all orders: D1 to D9 hold when a stopped rank is replaced, and when it then resumes") {
  tally all;
  for (const auto& [name, host] : layouts()) {
    news_setup s;
    s.host = host;
    s.plots = {{{fate::is_stopped, 2}, {fate::is_replaced, 2}}};
    all.all_orders(name + ": replaced", s);
    s.plots.push_back({{fate::older_goes_on, 2}});
    all.all_orders(name + ": replaced, and the older one goes on", s);
  }
}

// Rank 3 tells rank 1 about the older process, because rank 0 is gone. Takes 15 s, so it runs only with PARLEY_SCOPE=deep.
TEST_CASE("news in all orders: D1 to D9 hold when rank 0 dies while a newer process of another rank is accepted") {
  if (!deep()) return;
  tally all;
  news_setup s;
  s.ranks = 4;
  s.host = {0, 0, 1, 1};
  s.deaf = 2;
  s.plots = {{{fate::is_killed, 2}, {fate::comes_back, 2}, {fate::is_killed, 0}}};
  all.all_orders("rank 2 is started again, rank 0 is killed", s);
}

// Rank 2 is killed, and rank 1 ends because of that death, with or without waiting until rank 0 has told the others.
TEST_CASE("news in all orders: a rank that ends because of a death is not taken for its cause") {
  tally all;
  for (const auto& [name, host] : layouts()) {
    for (const auto farewell : {news_setup::farewell::until_heard, news_setup::farewell::in_haste}) {
      news_setup s;
      s.host = host;
      s.farewell = farewell;
      s.plots = {{{fate::is_killed, 2}}, {{fate::ends_because, 1}}};
      all.all_orders(name + ": a chain of two", s);
      s.ranks = 4;
      all.all_orders(name + ": a chain of two beside two", s);
    }
  }
}

namespace {

/// The transition table with one step replaced.
template <standing now, evidence of, standing to, effect does>
parley::actors::step broken(standing s, evidence e) noexcept {
  return s == now && e == of ? parley::actors::step{to, does} : parley::actors::next(s, e);
}

void check_caught(const std::string& name, membership::rules table, const std::string& invariant, news_setup s) {
  s.rules = table;
  const findings f =
      explore("broken, " + name, [&] { return std::make_unique<news_world>(s); }, {.by_state = true, .quiet = true});
  if (f.runs != 0) CHECK_MESSAGE(f.broken.starts_with(invariant + ":"), name, ": ", f.how());
}

}  // namespace

TEST_CASE("news in all orders: the search finds each planted fault of the table") {
  using s = standing;
  using e = evidence;
  using f = effect;
  const plot killed{{fate::is_killed, 2}};
  const plot stopped{{fate::is_stopped, 2}};
  const plot restarted{{fate::is_killed, 2}, {fate::comes_back, 2}};
  const plot returns{{fate::returns, 2}};
  const plot cuts{{fate::cuts, 1, 2}};
  news_setup one_host;
  const auto with = [&](std::vector<plot> plots) {
    news_setup given = one_host;
    given.plots = std::move(plots);
    return given;
  };
  check_caught("told twice", &broken<s::lost, e::said_dead, s::lost, f::tell_dead>, "D1", with({killed}));
  check_caught("a return is a death", &broken < s::leaving, e::link_broke, s::lost, f::publish | f::tell_vanished >,
               "D2", with({returns}));
  check_caught("a cut is a death", &broken < s::in_touch, e::link_cut, s::lost, f::publish | f::tell_vanished >, "D3",
               with({cuts}));
  check_caught("a cut rank is found dead", &broken < s::cut_off, e::found_dead, s::lost, f::publish | f::close_link >,
               "D3", with({{{fate::cuts, 1, 2}, {fate::suspects, 1, 2}}}));
  news_setup away_from_zero = with({killed, {{fate::ends_because, 1}}});
  away_from_zero.ranks = 4;
  away_from_zero.host = {0, 1, 1, 1};
  away_from_zero.farewell = news_setup::farewell::in_haste;
  check_caught("the page is not read first", &broken<s::in_touch, e::link_broke, s::lost, f::tell_vanished>, "D5",
               away_from_zero);
  check_caught("taken in at once", &broken<s::lost, e::newer_process, s::in_touch, f::take_in>, "D6",
               with({restarted}));
  check_caught("never taken in", &broken<s::replaced, e::link_broke, s::replaced, f::none>, "D6", with({restarted}));
  check_caught("an older death ends a newer process", &broken<s::replaced, e::fell_silent, s::lost, f::tell_dead>, "D6",
               with({restarted}));
  check_caught("silence is left out", &broken<s::in_touch, e::fell_silent, s::in_touch, f::none>, "D8",
               with({stopped}));
  check_caught("the link is kept", &broken < s::in_touch, e::fell_silent, s::lost, f::publish | f::tell_dead >, "D9",
               with({stopped}));
  news_setup stale = with({restarted});
  stale.ignores_lives = true;
  check_caught("what was posted of an older process counts", &parley::actors::next, "D3", stale);
  news_setup two_hosts = with({stopped});
  two_hosts.host = {0, 1, 1};
  check_caught("other hosts are not told", &broken < s::in_touch, e::fell_silent, s::lost,
               f::publish | f::close_link | f::tell_dead >, "D7", two_hosts);
}
