// The promises of links about the order of messages: there is none, and the layers above need none.
#include <parley/tests/links/contract.hpp>
#include <parley/tests/support/link_over.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/rank.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

namespace parley::tests {

namespace {

constexpr std::array both_channels{channel::control, channel::data};

// Lengths of messages that travel with their header, are copied, or stay with the sender until they are fetched.
std::size_t length_of(std::uint32_t number) {
  constexpr std::array<std::size_t, 6> lengths = {0, 90, 7'000, 300'000, 20, 60'000};
  return lengths[number % lengths.size()];
}

task<> in_any_order(end& self) {
  self.listen();
  constexpr std::uint32_t count = 60;
  if (self.rank == 0) {
    for (std::uint32_t number = 0; number < count; ++number) {
      const blob& payload = self.memory(pattern(length_of(number), number));
      for (const channel on : both_channels) {
        const errc started = self.wire().send(1, on, std::as_bytes(std::span(&number, 1)), payload, &self.operation());
        PARLEY_EXPECT(started == errc::none || started == errc::pending);
      }
    }
    co_await self.meet();
    co_return;
  }
  for (recorder* each : {&self.control, &self.data}) {
    std::array<int, count> seen{};
    std::uint32_t latest = 0;
    for (std::uint32_t came = 0; came < count; ++came) {
      co_await self.until([each] { return !each->got.empty(); });
      arrival message = std::move(each->got.front());
      each->got.erase(each->got.begin());
      std::uint32_t number = 0;
      PARLEY_EXPECT(message.header().size() == sizeof number);
      std::memcpy(&number, message.header().data(), sizeof number);
      ++seen.at(number);
      self.overtaken = self.overtaken || number < latest;
      latest = std::max(latest, number);
      blob& into = self.memory(blob(length_of(number)));
      awaited& fetched = self.operation();
      PARLEY_EXPECT(message.length() == into.size());
      const errc started = self.wire().fetch(std::move(message), into, &fetched);
      const errc outcome = co_await self.outcome(started, fetched);
      PARLEY_EXPECT(outcome == errc::none);
      PARLEY_EXPECT(into == pattern(into.size(), number));
    }
    PARLEY_EXPECT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
  co_await self.meet();
  PARLEY_EXPECT(self.control.got.empty());
  PARLEY_EXPECT(self.data.got.empty());
}

/// Holds arrivals back for a while, and delivers the latest first.
class overtaking_link final : public link_over {
 public:
  overtaking_link(link& below, runtime::executor& ex) : link_over(below), ex_(ex) {
    for (const channel on : both_channels) lanes_[static_cast<std::size_t>(on)].emplace(*this);
  }
  std::size_t overtaken = 0;

  void listen(channel on, handler* to) override {
    lane& l = *lanes_[static_cast<std::size_t>(on)];
    l.to = to;
    below_.listen(on, to == nullptr ? nullptr : &l);
  }

 private:
  struct lane final : handler, runtime::timer {
    explicit lane(overtaking_link& o) : timer(&on_due), of(o) {}
    void on_arrival(arrival&& message) noexcept override {
      kept.push_back(std::move(message));
      constexpr time_ns collects_for_ns = 100'000;
      if (!linked()) of.ex_.arm_in(*this, collects_for_ns);
    }
    static void on_due(timer& self) noexcept {
      auto& mine = static_cast<lane&>(self);
      std::vector<arrival> now = std::exchange(mine.kept, {});
      if (now.size() > 1) ++mine.of.overtaken;
      while (!now.empty()) {
        if (mine.to != nullptr) mine.to->on_arrival(std::move(now.back()));
        now.pop_back();
      }
    }
    overtaking_link& of;
    handler* to = nullptr;
    std::vector<arrival> kept;
  };
  runtime::executor& ex_;
  std::array<std::optional<lane>, link::channels> lanes_;
};

constexpr std::uint32_t at_once = 6;

task<> send_one(ops::transfer t, blob payload) { co_await t.send(payload, {.to = 1}); }
task<> receive_one(ops::transfer t, blob& into) {
  const std::size_t got = co_await t.receive(into, {.from = 0});
  into.resize(got);
}

/// Rank 0 sends several messages at once, with lengths that tell them apart; each receive must get the message of its own place. The
/// first byte is 1 in the last round, when the config that was agreed on has changed and been used. Returns whether this is the last one.
task<bool> move_some(end& self, ops::transfer t, std::uint32_t first, bool last) {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope some(here);
  std::deque<blob> came;
  const auto payload_of = [](std::uint32_t number) {
    blob payload = pattern(length_of(number) + 1, number);
    payload[0] = std::byte{0};
    return payload;
  };
  for (std::uint32_t i = 0; i < at_once; ++i) {
    blob payload = payload_of(first + i);
    payload[0] = std::byte{last};
    if (self.rank == 0) {
      some.spawn(send_one(t, std::move(payload)));
    } else {
      some.spawn(receive_one(t, came.emplace_back(300'001)));
    }
  }
  co_await some.join();
  for (std::uint32_t i = 0; i < came.size(); ++i) {
    last = came[i].at(0) != std::byte{0};
    came[i][0] = std::byte{0};
    PARLEY_EXPECT(came[i] == payload_of(first + i));
  }
  co_return last;
}

task<> ops_need_none(end& self) {
  overtaking_link over(self.wire(), self.loop());
  {
    ops::rank_settings settings;
    settings.plan.budget_fraction = 1e9;
    ops::rank me({self.loop(), over, nullptr, std::vector<std::uint64_t>{1000, 1001}}, settings);
    ops::transfer_options op;
    op.name = "activations";
    op.edges = {{0, 1}};
    op.configs = {configs::direct(), configs::chunked(4096, 2)};
    const ops::transfer t(me, op);
    bool last = false;
    for (std::uint32_t first = 0; !last; first += at_once) {
      const bool enough = self.rank == 0 && !me.decisions().empty() && first > 20 * at_once;
      last = co_await move_some(self, t, first, enough);
    }
    PARLEY_EXPECT(!me.decisions().empty());
    co_await me.settle(std::chrono::seconds(10));
    co_await self.meet();
  }
  PARLEY_EXPECT(over.overtaken > 0);
}

constexpr contract_case cases[] = {
    {"messages come in any order, on each channel, and each comes once", 2, &in_any_order},
    {"a transfer agrees and brings each message to its own receive although messages overtake one another", 2,
     &ops_need_none},
};

}  // namespace

std::span<const contract_case> ordering_contract() { return cases; }

}  // namespace parley::tests
