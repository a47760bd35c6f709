// Ranks that declare one op with different members: the errors of calls that wait in vain contain both declarations.
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/groups.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

using sets = std::vector<std::vector<rank_id>>;  // the members, as each rank declares them

struct told {
  std::vector<std::string> warnings = std::vector<std::string>(3);
  std::vector<result<>> calls = std::vector<result<>>(3);
};

void note_warnings(world& w, told& all) {
  for (rank_id r = 0; r < 3; ++r) {
    for (const std::string& one : w[r].warnings()) all.warnings[r] += one + "\n";
  }
}

// Declares a leased op and returns the warnings. No call is made: calls of a leased op would meet in the library, with the default.
told declare_leased(const sets& members) {
  world w(3);
  library lib(w.clock, 3);
  for (rank_id r = 0; r < 3; ++r) {
    symmetric_options op;
    op.name = "gradients";
    op.configs = {takes("library", 40'000), takes("ring", 20'000)};
    op.ranks = members[r];
    op.communicator = std::make_shared<library_communicator>(lib.make());
    static_cast<void>(symmetric(w[r], op));
  }
  wait_a_while(w, 3'000'000'000);
  told all;
  note_warnings(w, all);
  return all;
}

told declare_groups(const sets& members) {
  world w(3);
  told all;
  std::vector<collective> handles;
  for (rank_id r = 0; r < 3; ++r) {
    collective_options op;
    op.name = "gradients";
    op.groups = {members[r]};
    op.configs = {star(), chain(1024)};
    op.timeout = 4s;
    handles.emplace_back(w[r], op);
  }
  std::vector<std::vector<float>> x(3, std::vector<float>(100));
  scope calls(w.clock);
  for (rank_id r = 0; r < 3; ++r) {
    if (!handles[r].idle()) calls.spawn(reduce_one(handles[r], x[r], all.calls[r]));
  }
  const time_ns began = w.clock.now();
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.clock.now() - began < 6'000'000'000);
  note_warnings(w, all);
  return all;
}

void says_both(const std::string& text, const std::string& one, const std::string& other) {
  CHECK_MESSAGE(text.find(one) != std::string::npos, text);
  CHECK_MESSAGE(text.find(other) != std::string::npos, text);
}

// Checks the ranks `who`, each of which waits for a rank with another declaration: their warnings and the errors of their calls contain
// `ours` and `theirs`.
void both_say(const sets& members, std::initializer_list<rank_id> who, const std::string& ours,
              const std::string& theirs) {
  const told leased = declare_leased(members);
  const told groups = declare_groups(members);
  for (const rank_id r : who) {
    CAPTURE(r);
    says_both(leased.warnings[r], ours, theirs);
    says_both(groups.warnings[r], ours, theirs);
    CHECK(groups.calls[r].code() == errc::timeout);
    says_both(groups.calls[r].reason().text(), ours, theirs);
  }
}

}  // namespace

TEST_CASE("a rank that declares fewer members than the others and its leader both report the two declarations") {
  both_say({{0, 1, 2}, {0, 1, 2}, {0, 2}}, {0, 2}, " 0:", "declare the op alike on all its ranks");
  const told leased = declare_leased({{0, 1, 2}, {0, 1, 2}, {0, 2}});
  for (const rank_id r : {0, 2})
    says_both(leased.warnings[r], "participants 0:member 1:member 2:member", "participants 0:member 2:member");
}

TEST_CASE("a leader names the rank that it waits for and that declares the op without itself") {
  both_say({{0, 1, 2}, {0, 1, 2}, {0, 1}}, {0}, " 0:", "rank 2 declares {op gradients, no part in it");
}

TEST_CASE("members whose leader declares a group without them report the leader's declaration") {
  both_say({{0}, {0, 1, 2}, {0, 1, 2}}, {1, 2}, " 1:", "rank 0 declares participants 0:");
}

TEST_CASE("several groups may share one op name, and a rank may declare one of them later than another") {
  world w(3);
  const auto declare = [&](rank_id r, std::vector<rank_id> members) {
    collective_options op;
    op.name = "sum";
    op.groups.push_back(std::move(members));
    return collective(w[r], op);
  };
  auto zero = declare(0, {0, 2});
  const auto other = declare(1, {1, 2});
  auto two = declare(2, {1, 2});
  wait_a_while(w, 3'000'000'000);
  CHECK(w[0].warnings().size() == 1);
  two = declare(2, {0, 2});
  std::vector<float> x(10, 1.0F);
  std::vector<float> y(10, 2.0F);
  std::vector<result<>> outcomes(2);
  scope calls(w.clock);
  calls.spawn(reduce_one(zero, x, outcomes[0]));
  calls.spawn(reduce_one(two, y, outcomes[1]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(outcomes[0]);
  CHECK(x == std::vector<float>(10, 3.0F));
}
