#include <parley/tests/support/edges.hpp>

#include <parley/actors/letters/reminder.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// An edge that sends nothing: it supplies a rank's services and a virtual clock.
struct asker {
  asker() { question.begin(shared()); }
  services& shared() { return at.sending.shared; }
  void ask() noexcept {
    said_at.push_back(at.clock.now());
    if (said_at.size() < 5) question.go_on(shared());
  }

  edge_pair at;
  std::vector<time_ns> said_at;
  reminder_timer<&asker::ask, tempo{.first = 1'000'000, .longest = 4'000'000}> question{*this};
};

}  // namespace

TEST_CASE("a reminder is due at once and then after pauses that grow to the longest, and each repetition is counted") {
  edge_pair at;
  services& s = at.sending.shared;
  reminder<tempo{.first = 1'000'000, .longest = 4'000'000}> word;
  for (const time_ns longest : {1'000'000, 2'000'000, 4'000'000, 4'000'000}) {
    CHECK(word.is_due(s));
    const time_ns now = at.clock.now();
    word.said(s);
    CHECK_FALSE(word.is_due(s));
    CHECK(word.when() - now <= longest);
    CHECK(word.when() - now > longest / 2);
    at.pass(longest);
  }
  CHECK(s.repeated == 3);

  word.restart();  // a new message to repeat
  CHECK(word.is_due(s));
  word.said(s);
  CHECK(s.repeated == 3);
  word.hurry();
  CHECK(word.is_due(s));
  word.stop();  // the peer has answered
  at.pass(10'000'000);
  CHECK_FALSE(word.is_due(s));
  CHECK(word.when() == never);
}

TEST_CASE("a reminder timer repeats its message until it is stopped") {
  asker a;
  a.at.pass(20'000'000);
  REQUIRE(a.said_at.size() == 5);
  for (std::size_t i = 1; i < 5; ++i) CHECK(a.said_at[i] - a.said_at[i - 1] <= 4'000'000);
  CHECK(a.shared().repeated == 4);
  CHECK_FALSE(a.question.is_set());

  a.question.begin(a.shared());
  CHECK(a.question.is_set());
  a.question.stop();
  a.at.pass(20'000'000);
  CHECK(a.said_at.size() == 5);
}

TEST_CASE("two ranks that wait for one answer ask at different moments") {
  edge_pair at;
  services* const ranks[] = {&at.sending.shared, &at.receiving.shared};
  time_ns when[2];
  for (int i = 0; i < 2; ++i) {
    reminder<hurried> word;
    word.said(*ranks[i]);
    when[i] = word.when();
  }
  CHECK(when[0] != when[1]);
}
