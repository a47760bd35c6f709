// Ranks that declare an op of several ranks with other members each: calls that wait in vain say so, with both declarations.
#include "../support/groups.hpp"
#include "../support/library.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

using sets = std::vector<std::vector<rank_id>>;  // the members, as each rank declares them

struct told {
  std::vector<std::optional<error>> ranks;
};

task<> call_until_it_fails(symmetric op, executor& ex, std::optional<error>& outcome) {
  std::vector<std::byte> data(4096);
  while (!outcome && ex.now() < 4'000'000'000) {
    auto slept = co_await sleep_until(ex.now() + 1'000'000);
    if (!slept) co_return;
    auto ended = co_await attempt(op.run(std::span(data)));
    if (!ended) outcome = ended.reason();
  }
}

told declare_leased(const sets& members) {
  world w(3);
  library lib(w.clock, 3);
  const auto over = lib.make();
  told all;
  all.ranks.resize(3);
  std::vector<symmetric> handles;
  for (rank_id r = 0; r < 3; ++r) {
    symmetric_op op;
    op.name = "gradients";
    op.configs = {takes("library", 40'000), takes("ring", 20'000)};
    op.members = members[r];
    op.timeout_ns = 4'000'000'000;  // of who meets nobody
    op.over = std::make_shared<library_communicator>(over);
    handles.push_back(w[r].declare(op));
  }
  scope calls(w.clock);
  for (rank_id r = 0; r < 3; ++r) {
    if (!handles[r].idle()) calls.spawn(call_until_it_fails(handles[r], w.clock, all.ranks[r]));
  }
  const time_ns began = w.clock.now();
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.clock.now() - began < 6'000'000'000);
  return all;
}

told declare_groups(const sets& members) {
  world w(3);
  told all;
  all.ranks.resize(3);
  std::vector<rank_group> handles;
  for (rank_id r = 0; r < 3; ++r) {
    leader_worker op;
    op.name = "gradients";
    op.groups = {members[r]};
    op.configs = {star(), chain(1024)};
    op.timeout_ns = 4'000'000'000;
    handles.push_back(w[r].declare(op));
  }
  std::vector<std::vector<float>> x(3, std::vector<float>(100));
  std::vector<result<>> outcomes(3);
  scope calls(w.clock);
  for (rank_id r = 0; r < 3; ++r) {
    if (!handles[r].idle()) calls.spawn(reduce_one(handles[r], x[r], outcomes[r]));
  }
  const time_ns began = w.clock.now();
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.clock.now() - began < 6'000'000'000);
  for (rank_id r = 0; r < 3; ++r) {
    if (!outcomes[r]) all.ranks[r] = outcomes[r].reason();
  }
  return all;
}

void says_both(const std::optional<error>& why, const std::string& one, const std::string& other) {
  REQUIRE(why);
  CHECK(why->code() == errc::timeout);
  CHECK_MESSAGE(why->text().find(one) != std::string::npos, why->text());
  CHECK_MESSAGE(why->text().find(other) != std::string::npos, why->text());
}

}  // namespace

TEST_CASE("who declares fewer members than the others, and those, are told so") {
  const sets members{{0, 1, 2}, {0, 1, 2}, {0, 2}};
  for (const auto& why : declare_leased(members).ranks)
    says_both(why, "participants 0:member 1:member 2:member", "participants 0:member 2:member");
  for (const auto& why : declare_groups(members).ranks)
    says_both(why, "participants 0:leader 1:worker 2:worker", "participants 0:leader 2:worker");
}

TEST_CASE("who declares an op without itself is named to those who wait for it") {
  const sets members{{0, 1, 2}, {0, 1, 2}, {0, 1}};
  for (const auto& all : {declare_leased(members), declare_groups(members)}) {
    for (const rank_id r : {0, 1}) says_both(all.ranks[r], "0:", "rank 2 declares {op gradients, no part in it");
    CHECK(!all.ranks[2]);
  }
}

TEST_CASE("members whose leader is in none of their groups are told so") {
  const sets members{{0}, {0, 1, 2}, {0, 1, 2}};
  for (const auto& all : {declare_leased(members), declare_groups(members)}) {
    for (const rank_id r : {1, 2}) says_both(all.ranks[r], "participants 0:", "rank 0 declares {");
  }
}

TEST_CASE("a name may serve several groups, and a rank may declare one of them later than another") {
  world w(3);
  const auto declare = [&](rank_id r, std::vector<rank_id> members) {
    leader_worker op;
    op.name = "sum";
    op.groups.push_back(std::move(members));
    return w[r].declare(op);
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
