#pragma once
/// Worked case 3: transfers of pairs.
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/place.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/registration.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::worked_cases {

using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

inline task<> take_one(here* h, transfer t, const array<std::byte>* into) {
  const std::uint64_t came = co_await t.receive(*into, {.from = h->me - 1});
  CHECK(came == into->size());
}

/// If configs are tried that write into the receiver's buffer, all receives are posted before a message is sent.
inline task<> move_one(here* h, transfer t, std::size_t bytes, std::uint64_t seed) {
  array<std::byte> buffer(h->at, bytes);
  const auto known = t.registered(buffer.bytes());
  const std::vector<std::byte> data = pattern(bytes, seed);
  if (h->me % 2 == 0) {
    co_await bring(h->at, buffer, std::span(data));
    if (h->until_each_ran) co_await meet(h);
    co_await t.send(buffer, {.to = h->me + 1});
    co_return;
  }
  scope& now = co_await this_scope;
  scope receiving(now);
  receiving.spawn(take_one(h, t, &buffer));
  co_await yield;
  if (h->until_each_ran) co_await meet(h);
  co_await receiving.join();
  const std::vector<std::byte> seen = co_await taken(h->at, buffer);
  CHECK(seen == data);
}

inline task<> move_until_decided(here* h, transfer t, std::size_t bytes) {
  bool enough = false;
  for (const deadline limit; !enough;) {
    for (std::uint64_t i = 0; i < 10; ++i) co_await move_one(h, t, bytes, i);
    enough = co_await on_all_ranks(h, t.decision(bytes).decided || limit.is_over());
  }
}

/// Takes the times of a script at each end, in turn.
class scripted final : public paired_config {
 public:
  using script = std::array<time_ns, 3>;
  scripted(const char* name, script at_sender, script at_receiver)
      : paired_config({.name = name, .wire_class = name}), sends_(at_sender), receives_(at_receiver) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    co_await wait_here(sends_[sent_++ % 3]);
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await in.receive(0, data);
    co_await wait_here(receives_[received_++ % 3]);
  }

 private:
  script sends_;
  script receives_;
  mutable std::size_t sent_ = 0;
  mutable std::size_t received_ = 0;
};

/// Traps for other designs: a config that one end lacks, taking the median of each rank before the longest of these, and configs that are
/// chosen for each role but paired by their places.
inline task<> traps(here* h) {
  const bool sends = h->me % 2 == 0;
  auto op = pair_of({direct()});
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  op.role = [](rank_id r) { return r % 2 == 0 ? role::sender : role::receiver; };
  op.name = "lacking";
  if (!sends) op.configs.push_back(chunked(64_KiB, 2));
  const transfer lacking(h->self, op);
  co_await move_until_decided(h, lacking, 4'096);
  CHECK(lacking.decision(4'096).config == "direct");

  op.name = "uneven";
  const auto steadily = [](const char* name, time_ns takes) {
    return std::make_shared<scripted>(name, scripted::script{takes, takes, takes}, scripted::script{0, 0, 0});
  };
  op.configs = {
      steadily("slow", 16_ms),
      std::make_shared<scripted>("uneven", scripted::script{1_ms, 1_ms, 9_ms}, scripted::script{1_ms, 9_ms, 1_ms}),
      steadily("steady", 5_ms)};
  const transfer uneven(h->self, op);
  co_await move_until_decided(h, uneven, 1'000);
  check_choice(h, uneven.decision(1'000), "steady");

  const auto takes = [](time_ns span) -> operation_function {
    return [span](std::span<std::byte>) { return wait_here(span); };
  };
  const role_op by_role =
      register_asymmetric_autotuning(h->self, "by role", {{"sender", takes(6_ms)}, {"receiver", takes(2_ms)}},
                                     {{"sender", "other", takes(2_ms)}, {"receiver", "other", takes(6_ms)}},
                                     [&op](rank_id r) { return std::string(name(op.role(r))); });
  std::vector<std::byte> data(1'000);
  for (const deadline limit; !by_role.decision(data.size()).decided && !limit.is_over();) {
    role_op mine = by_role;
    co_await mine.run(data);
  }
  check_choice(h, by_role.decision(data.size()), sends ? "other" : "operation");
}

inline task<> transfers(here* h) {
  auto op = pair_of({chunked(1_MiB)});
  op.timeout = std::chrono::nanoseconds(h->patience);
  op.memory = h->at.memory();
  op.role = [](rank_id r) { return r % 3 == 0 ? role::sender : r % 3 == 1 ? role::receiver : role::idle; };
  if (h->ranks == 4) CHECK_THROWS_WITH_AS(transfer(h->self, op), doctest::Contains("senders are 0, 3"), failure);
  op.role = [](rank_id r) { return r % 2 == 0 ? role::sender : role::receiver; };  // as many pairs as there are
  const transfer whole(h->self, op);
  std::uint64_t seed = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20U, (std::size_t{1} << 20U) + 1,
                                  (std::size_t{64} << 20U) + 12'345, std::size_t{0}})
    co_await move_one(h, whole, bytes, ++seed);

  // Trials. Each end lists its configs in its own order; configs are paired by their identity.
  op.name = "tried";
  op.configs = h->with_others({direct(), chunked(64_KiB, 2), chunked(256_KiB, 4)});
  if (h->me % 2 == 1) std::swap(op.configs[1], op.configs[2]);
  transfer tried(h->self, op);
  const std::array<std::size_t, 3> sizes{4'096, 65'536, 1'048'576};
  bool all_decided = false;
  const time_ns until = h->self.where().deadline_in(h->patience);
  while (!all_decided) {
    for (int i = 0; i < 10; ++i) {
      for (const std::size_t bytes : sizes) co_await move_one(h, tried, bytes, ++seed);
    }
    bool mine = true;
    for (const std::size_t bytes : sizes) mine = mine && tried.decision(bytes).decided;
    all_decided = co_await on_all_ranks(h, mine || h->self.where().now() > until);
  }
  if (h->until_each_ran) CHECK(not_run(h, op.name).empty());
  std::string decisions;
  for (const std::size_t bytes : sizes) {
    const decision d = tried.decision(bytes);
    CHECK(d.decided);
    decisions += d.key + " " + d.config + "\n";
  }
  op.name = "decisions";
  op.configs = {direct()};
  op.memory = nullptr;
  transfer tell(h->self, op);
  std::string theirs(1000, ' ');
  if (h->me % 2 == 0) {
    co_await tell.send(decisions, {.to = h->me + 1});
  } else {
    const std::uint64_t came = co_await tell.receive(theirs, {.from = h->me - 1});
    CHECK(theirs.substr(0, came) == decisions);
  }
}

}  // namespace parley::tests::worked_cases
