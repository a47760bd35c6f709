#include "ranks.hpp"

#include "supervisor.hpp"

#include <parley/actors/messages.hpp>
#include <parley/runtime/run.hpp>

#include <sys/eventfd.h>

#include <array>
#include <cstdio>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;

namespace fire {
namespace {

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

bool input_has_ended() {
  pollfd in{0, POLLIN, 0};
  return ::poll(&in, 1, 0) > 0;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// ---- the fault --------------------------------------------------------------------------------------------------------

/// Asked on every turn of the loop. It never has an event of its own.
class fault final : public poller {
 public:
  explicit fault(job& here) : here_(here), event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    const std::string text = variable("PARLEY_TEST_FAULT");
    const auto first = text.find(':');
    const auto second = text.find(':', first + 1);
    if (second != std::string::npos && text.substr(second + 1) == std::to_string(here.self().id())) {
      signal_ = text.starts_with("kill") ? SIGKILL : SIGSTOP;
      step_ = text.substr(first + 1, second - first - 1);
    }
    here_.loop().attach(*this);
  }
  fault(const fault&) = delete;
  fault& operator=(const fault&) = delete;
  ~fault() override {
    here_.loop().detach(*this);
    ::close(event_);
  }

  bool poll() override {
    if (signal_ == 0 || !reached()) return false;
    ::raise(std::exchange(signal_, 0));
    return true;
  }
  arm_state arm() override { return arm_state::armed; }
  int event_fd() const override { return event_; }

 private:
  bool sent(std::uint16_t type) const { return here_.self().mail().sent_by_type()[type] > 0; }
  bool reached() {
    if (step_ == "start") return true;
    if (step_ == "offer") return sent(actors::offer::message_type);
    if (step_ == "merged") return sent(actors::merged::message_type);
    if (step_ == "warm") return sent(actors::warm::message_type);
    if (step_ == "warmed") return sent(actors::warmed::message_type);
    if (step_ == "report") return sent(actors::report::message_type);
    if (step_ == "decide") return sent(actors::decide::message_type);
    // The others show in what the rank has run.
    const auto& flight = here_.self().flight();
    if (flight.total() == seen_) return false;
    seen_ = flight.total();
    for (const flight_record& r : flight.in_order()) {
      const bool trial = is_transfer(r.what) && (r.flags & 1U) != 0;
      if (step_ == "rehearsal" && is_transfer(r.what) && (r.flags & 4U) != 0) return true;
      if (step_ == "trial" && trial) return true;
      if (r.what == flight_event::decided && step_ == "decided") return true;
      if (r.what == flight_event::decided) decided_ = true;
      if (step_ == "after" && decided_ && is_transfer(r.what) && !trial && r.invocation > 400) return true;
    }
    return false;
  }

  job& here_;
  int event_;
  int signal_ = 0;
  std::string step_;
  std::uint64_t seen_ = 0;
  bool decided_ = false;
};

// ---- what the ranks do ------------------------------------------------------------------------------------------------

constexpr std::size_t message_bytes = 200'000;

/// The sender ends when its input does, and says so with a message of one byte.
task<> stream(rank& self, transfer t, rank_id peer, bool sends) {
  std::vector<std::byte> data(message_bytes);
  for (;;) {
    if (sends) {
      const bool last = input_has_ended();
      co_await t.send(std::span(data).first(last ? 1 : data.size()), {.to = peer});
      if (last) break;
    } else {
      const auto got = co_await t.receive(data, {.from = peer});
      if (got == 1) break;
    }
  }
  say("fine on rank " + std::to_string(self.id()));
}

/// Two pairs that have nothing to do with each other: 1 sends to 2, 0 sends to 3.
void pairs(job& here) {
  const rank_id me = here.self().id();
  const bool inner = me == 1 || me == 2;
  paired_transfer op;
  op.name = inner ? "inner" : "outer";
  op.edges = {inner ? std::pair{rank_id{1}, rank_id{2}} : std::pair{rank_id{0}, rank_id{3}}};
  op.configs = {direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)};
  auto t = here.self().declare(op);
  run(here.loop(), stream(here.self(), t, 3 - me, me < 2));
}

task<> reduce(rank& self, rank_group group) {
  std::vector<std::uint32_t> values(20'000);
  for (;;) {
    // The leader decides when it is over, as the last thing that all learn.
    std::fill(values.begin(), values.end(), group.leads() && input_has_ended() ? 1U : 0U);
    co_await group.all_reduce(std::span(values));
    if (values[0] != 0) break;
  }
  say("fine on rank " + std::to_string(self.id()));
}
task<> rest_until_input_ends(rank& self) {
  while (!input_has_ended()) {
    auto slept = co_await sleep_until(self.where().now() + 5'000'000);
    if (!slept) break;
  }
  say("fine on rank " + std::to_string(self.id()));
}
/// 1 leads 2 and 3; 0 has no part in it.
void group(job& here) {
  leader_worker op{.name = "gradients", .configs = {star(), star(16_KiB), chain()}};
  op.role = [](rank_id r) { return std::string(r == 0 ? "idle" : r == 1 ? "leader" : "worker"); };
  auto g = here.self().declare(op);
  if (g.idle()) return run(here.loop(), rest_until_input_ends(here.self()));
  run(here.loop(), reduce(here.self(), g));
}

/// Rank 1 computes for long between two messages without ever polling.
task<> exchange_twice(rank& self, transfer t, clock::duration computing) {
  std::vector<std::byte> data(1000);
  for (int i = 0; i < 2; ++i) {
    if (self.id() == 0) {
      co_await t.send(data, {.to = 1});
    } else {
      co_await t.receive(data, {.from = 0});
      for (const auto until = clock::now() + computing; clock::now() < until;) {}
    }
  }
  say("fine on rank " + std::to_string(self.id()));
}
void computing(job& here) {
  auto t = here.self().declare(paired_transfer{.name = "input", .edges = {{0, 1}}});
  run(here.loop(), exchange_twice(here.self(), t, std::chrono::milliseconds(std::stoi(variable("PARLEY_TEST_MS")))));
}

}  // namespace

const std::map<std::string, void (*)(job&)>& scenarios() {
  static const std::map<std::string, void (*)(job&)> all{{"pairs", pairs}, {"group", group}, {"computing", computing}};
  return all;
}

int run_as_rank() {
  const auto scenario = scenarios().find(variable(scenario_variable));
  if (scenario == scenarios().end()) return 2;
  job_options o;
  o.settings.plan.budget_fraction = 1e9;
  o.settings.flight_records = 512;
  return ops::run(
      [&](job& here) {
        const fault strikes(here);
        say("here is rank " + std::to_string(here.self().id()));
        scenario->second(here);
      },
      o);
}

}  // namespace fire
