// The standing of a peer: every pair of standing and evidence. membership/news_orders.cpp covers all orders of news.
#include <parley/actors/membership/losses.hpp>
#include <parley/actors/membership/membership.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace parley::actors;
using parley::runtime::errc;
using parley::runtime::error;
using parley::runtime::rank_id;
using parley::runtime::root_cause;

namespace {

std::vector<standing> all_standings() {
  std::vector<standing> all;
  for (std::size_t i = 0; i < standings; ++i) all.push_back(static_cast<standing>(i));
  return all;
}
std::vector<evidence> all_evidence() {
  std::vector<evidence> all;
  for (std::size_t i = 0; i < kinds_of_evidence; ++i) all.push_back(static_cast<evidence>(i));
  return all;
}

constexpr effect tells =
    effect::tell_returned | effect::tell_ended | effect::tell_cut_off | effect::tell_vanished | effect::tell_dead;

/// One line, such as `said_goodbye -> leaving: await_goodbye`, for each piece of evidence that changes the standing or has an effect.
std::string row_of(standing from) {
  const std::vector<std::pair<effect, const char*>> names{{effect::publish, "publish"},
                                                          {effect::close_link, "close_link"},
                                                          {effect::await_goodbye, "await_goodbye"},
                                                          {effect::tell_returned, "tell_returned"},
                                                          {effect::tell_ended, "tell_ended"},
                                                          {effect::tell_cut_off, "tell_cut_off"},
                                                          {effect::tell_vanished, "tell_vanished"},
                                                          {effect::tell_dead, "tell_dead"},
                                                          {effect::pass_on, "pass_on"},
                                                          {effect::take_in, "take_in"}};
  std::string row;
  for (const evidence e : all_evidence()) {
    const step s = next(from, e);
    if (s == step{from, effect::none}) continue;
    row += std::string(name(e)) + " -> " + std::string(name(s.to)) + ":";
    for (const auto& [one, word] : names) row += has(s.does, one) ? std::string(" ") + word : "";
    row += "\n";
  }
  return row;
}

}  // namespace

TEST_CASE("membership: each pair of standing and evidence leads to the standing and the effects of the table") {
  CHECK(row_of(standing::in_touch) == "said_goodbye -> leaving: await_goodbye\n"
                                      "said_error -> ended: close_link tell_ended\n"
                                      "said_dead -> lost: publish close_link tell_dead\n"
                                      "fell_silent -> lost: publish close_link tell_dead pass_on\n"
                                      "verdict -> lost: close_link tell_dead\n"
                                      "found_dead -> lost: publish close_link tell_dead\n"
                                      "link_broke -> lost: publish tell_vanished\n"
                                      "link_cut -> cut_off: tell_cut_off\n"
                                      "newer_process -> replaced: close_link\n"
                                      "no_address -> lost:\n");
  CHECK(row_of(standing::leaving) == "goodbye_is_over -> returned: close_link tell_returned\n"
                                     "found_dead -> returned: close_link tell_returned\n"
                                     "link_broke -> returned: tell_returned\n"
                                     "newer_process -> replaced: close_link\n");
  CHECK(row_of(standing::returned) == "newer_process -> replaced: close_link\n");
  CHECK(row_of(standing::ended) == "fell_silent -> ended: pass_on\n"
                                   "newer_process -> replaced: close_link\n");
  CHECK(row_of(standing::cut_off) == "said_goodbye -> returned:\n"
                                     "said_error -> ended:\n"
                                     "said_dead -> lost: publish close_link\n"
                                     "fell_silent -> lost: publish close_link pass_on\n"
                                     "verdict -> lost: close_link\n"
                                     "newer_process -> replaced: close_link\n");
  CHECK(row_of(standing::lost) == "fell_silent -> lost: pass_on\n"
                                  "newer_process -> replaced: close_link\n");
  CHECK(row_of(standing::replaced) == "said_goodbye -> leaving: await_goodbye\n"
                                      "said_error -> ended: close_link tell_ended\n"
                                      "said_dead -> lost: publish close_link tell_dead\n"
                                      "link_broke -> in_touch: take_in\n"
                                      "newer_process -> replaced: close_link\n");
}

TEST_CASE("membership: ops learn once that a process has ended, and only after its link is closed or down") {
  // All sequences of five pieces of evidence about one process.
  std::uint64_t walks = 0;
  struct walk {
    standing at = standing::in_touch;
    int told = 0;
    bool link_down = false;
  };
  const auto go = [&](auto& self, walk w, int more) -> void {
    ++walks;
    if (more == 0) return;
    for (const evidence e : all_evidence()) {
      if (e == evidence::newer_process || e == evidence::no_address) continue;
      const step s = next(w.at, e);
      walk after{s.to, w.told, w.link_down || e == evidence::link_broke || e == evidence::link_cut};
      after.link_down = after.link_down || has(s.does, effect::close_link);
      if (has(s.does, tells)) {
        ++after.told;
        REQUIRE(after.link_down);
      }
      REQUIRE(after.told <= 1);
      const bool is_over = s.to != standing::in_touch && s.to != standing::leaving;
      REQUIRE((after.told == 1) == is_over);
      self(self, after, more - 1);
    }
  };
  go(go, {}, 5);
  CHECK(walks > 60'000);
}

TEST_CASE("membership: later evidence, except of a newer process, does not undo a rank's own goodbye or error") {
  for (const evidence e : all_evidence()) {
    if (e == evidence::newer_process) continue;
    const standing after_goodbye = next(standing::leaving, e).to;
    CHECK((after_goodbye == standing::leaving || after_goodbye == standing::returned));
    CHECK(next(standing::returned, e).to == standing::returned);
    CHECK(next(standing::ended, e).to == standing::ended);
  }
  for (const standing s : all_standings()) CHECK(next(s, evidence::newer_process).to == standing::replaced);
}

namespace {

/// The surroundings of rank 0 of four ranks; records the calls that `membership` makes.
struct watched final : membership::outside {
  membership peers{4, 0, *this};
  std::map<rank_id, std::string> page;  // the heartbeat's page
  std::set<rank_id> down;
  std::vector<std::string> told;
  std::set<rank_id> passed_on;
  std::vector<rank_id> goodbyes;
  std::vector<rank_id> taken_in;
  std::string fenced;
  int ended_fenced = 0;
  bool has_page = true;
  bool has_address = true;

  void close_link(rank_id peer) noexcept override { down.insert(peer); }
  bool link_is_down(rank_id peer) const noexcept override { return down.contains(peer); }
  void await_goodbye(rank_id peer) override { goodbyes.push_back(peer); }
  void tell_ops(rank_id peer, effect how, const peer_report& what) noexcept override {
    const char* const words = how == effect::tell_returned   ? "returned"
                              : how == effect::tell_ended    ? "ended"
                              : how == effect::tell_cut_off  ? "cut off"
                              : how == effect::tell_vanished ? "vanished"
                                                             : "dead";
    told.push_back(std::to_string(peer) + " " + words + (how == effect::tell_dead ? ": " + what.why : ""));
  }
  void publish_death(rank_id peer) noexcept override {
    if (has_page) page.emplace(peer, "the page has it");
  }
  std::vector<std::pair<rank_id, std::string>> verdicts() const override { return {page.begin(), page.end()}; }
  void pass_on(rank_id dead, const std::string&) override { passed_on.insert(dead); }
  bool take_in(rank_id peer) override {
    down.erase(peer);
    if (has_address) taken_in.push_back(peer);
    return has_address;
  }
  std::string why_fenced() const override { return fenced; }
  void end_fenced(const std::string&) noexcept override { ++ended_fenced; }
};

/// Calls `visit(order)` for each order of `news` that keeps every pair of `before` (first, then) in that order.
template <class Visit>
int each_order(std::vector<evidence> news, const std::vector<std::pair<evidence, evidence>>& before, Visit visit) {
  int orders = 0;
  std::sort(news.begin(), news.end());
  do {
    const auto place = [&](evidence e) { return std::find(news.begin(), news.end(), e) - news.begin(); };
    const bool can_be =
        std::all_of(before.begin(), before.end(), [&](const auto& b) { return place(b.first) < place(b.second); });
    if (!can_be) continue;
    ++orders;
    visit(news);
  } while (std::next_permutation(news.begin(), news.end()));
  return orders;
}

}  // namespace

TEST_CASE("membership: in every order of news, ops learn once that a rank was killed, with the reason on the page") {
  using e = evidence;
  const int orders = each_order({e::said_dead, e::fell_silent, e::verdict, e::found_dead, e::link_broke}, {},
                                [](const std::vector<e>& news) {
                                  for (const bool has_page : {true, false}) {
                                    watched w;
                                    w.has_page = has_page;
                                    for (const e one : news) {
                                      // as another rank would have written it
                                      if (one == e::verdict) w.page.emplace(2, "the page has it");
                                      w.peers.hear(2, one, {one == e::verdict ? "the page has it" : "seen", {}});
                                    }
                                    REQUIRE(w.told.size() == 1);
                                    REQUIRE(w.peers.of(2) == standing::lost);
                                    REQUIRE(w.passed_on == std::set<rank_id>{2});
                                    if (has_page) REQUIRE(w.told.front() == "2 dead: the page has it");
                                    if (!has_page && news.front() == e::link_broke)
                                      REQUIRE(w.told.front() == "2 vanished");
                                  }
                                });
  CHECK(orders == 120);
}

TEST_CASE("membership: a local teardown cuts a rank off and publishes no death until another rank reports that death") {
  using e = evidence;
  watched w;
  for (const e one : {e::link_cut, e::link_broke, e::found_dead}) w.peers.hear(2, one, {"seen", {}});
  CHECK(w.told == std::vector<std::string>{"2 cut off"});
  CHECK(w.page.empty());
  w.peers.hear(2, e::said_dead, {"it was killed", {}});
  CHECK(w.told.size() == 1);
  CHECK(w.page.contains(2));
}

TEST_CASE("membership: a rank that ends because of a death is not named as its cause because the page is read first") {
  watched w;
  w.page.emplace(3, "it was stopped");  // only the page says so yet
  w.peers.hear(2, evidence::link_broke, {"its connection broke", {}});
  CHECK(w.told == std::vector<std::string>{"3 dead: it was stopped", "2 dead: the page has it"});
}

TEST_CASE("membership: evidence about the older process does not affect the newer one that waits to be accepted") {
  using e = evidence;
  struct slow final : membership::outside {  // closing the link takes time
    membership peers{3, 0, *this};
    int told = 0;
    int taken_in = 0;
    void close_link(rank_id) noexcept override {}
    bool link_is_down(rank_id) const noexcept override { return false; }
    void await_goodbye(rank_id) override {}
    void tell_ops(rank_id, effect, const peer_report&) noexcept override { ++told; }
    void publish_death(rank_id) noexcept override {}
    std::vector<std::pair<rank_id, std::string>> verdicts() const override { return {}; }
    void pass_on(rank_id, const std::string&) override {}
    bool take_in(rank_id) override { return ++taken_in != 0; }
    std::string why_fenced() const override { return {}; }
    void end_fenced(const std::string&) noexcept override {}
  } w;
  w.peers.hear(2, e::newer_process);
  for (const e stale : {e::fell_silent, e::verdict, e::found_dead, e::link_cut, e::goodbye_is_over}) {
    w.peers.hear(2, stale, {"seen", {}});
    CHECK(w.peers.of(2) == standing::replaced);
  }
  CHECK(w.told == 0);
  w.peers.hear(2, e::said_dead, {"that one was killed, too", {}});
  CHECK(w.peers.of(2) == standing::lost);
  CHECK(w.told == 1);
  w.peers.hear(2, e::newer_process);
  w.peers.hear(2, e::link_broke);
  CHECK(w.taken_in == 1);
}

TEST_CASE("membership: a newer process without an address is not accepted, and its rank stays lost") {
  watched w;
  w.has_address = false;
  w.peers.hear(2, evidence::said_dead, {"it was killed", {}});
  w.peers.hear(2, evidence::newer_process);
  CHECK(w.peers.of(2) == standing::lost);
  CHECK(w.told.size() == 1);
}

TEST_CASE("membership: a rank that the others hold dead tells its ops nothing about the others, and ends") {
  watched w;
  w.fenced = "it was stopped for 3 s";
  for (const evidence e : {evidence::link_broke, evidence::said_error, evidence::fell_silent, evidence::verdict})
    w.peers.hear(1, e, {"seen", {}});
  CHECK(w.told.empty());
  CHECK(w.ended_fenced == 1);
  CHECK(w.peers.of(1) == standing::in_touch);
  watched replaced;
  for (int i = 0; i < 2; ++i) replaced.peers.hear(0, evidence::said_dead, {"a newer process has come", {}});
  CHECK(replaced.ended_fenced == 1);
}

TEST_CASE("membership: a rank that has announced its end holds no peer dead that closes its connection afterwards") {
  watched w;
  w.peers.leave();
  for (const evidence e : {evidence::link_broke, evidence::fell_silent}) w.peers.hear(1, e, {"seen", {}});
  CHECK(w.page.empty());
  CHECK(w.told.empty());
}

TEST_CASE("losses: the first loss of a rank stands, and a vanished rank names the loss that it followed") {
  losses gone(0, false);
  const loss* const first = gone.add(2, "it was killed", departure::died, 5);
  REQUIRE(first != nullptr);
  CHECK(first->began_with == root_cause{2, " is gone: it was killed; restart the job to continue"});
  CHECK(gone.add(2, "its connection broke", departure::vanished, 6) == nullptr);
  const loss* const second = gone.add(1, "its connection broke", departure::vanished, 7);
  REQUIRE(second != nullptr);
  CHECK(second->began_with.rank == 2);
  CHECK(gone.add_ended(3, {2, " is gone"}, 8)->began_with.rank == 2);
  CHECK(gone.has_failed(1));
  gone.forget(2);
  CHECK(gone.add(2, {}, departure::returned, 9) != nullptr);
  CHECK_FALSE(gone.has_failed(2));
}

TEST_CASE("losses: a failed send is traced to a rank that was lost within the last second") {
  losses gone(0, false);
  gone.add(2, "it was killed", departure::died, 1'000'000'000);
  const error send(errc::send_failed, {.op = "acts 0->1", .rank = 0, .peer = 1}, "its sender gave up");
  const error traced = gone.traced(send, 1'500'000'000);
  REQUIRE(traced.began_with() != nullptr);
  CHECK(traced.began_with()->rank == 2);
  CHECK(traced.about() == send.about());
  CHECK(gone.traced(send, 2'500'000'000).began_with() == nullptr);
  CHECK(gone.traced(errc::timeout, 1'500'000'000).began_with() == nullptr);
  CHECK(gone.cause_of(traced).rank == 2);
  CHECK(gone.cause_of(send).rank == 0);
}
