#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/coroutines/run.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>

namespace parley::tests::processes {

namespace {

using rank_process = std::function<int(job_options&)>;

/// All scenarios by name. Global objects of other files add to them before `main` begins.
std::map<std::string, rank_process>& scenarios() {
  static std::map<std::string, rank_process> all;
  return all;
}

void add(const char* name, rank_process does) {
  if (!scenarios().emplace(name, std::move(does)).second)
    throw std::logic_error(std::string("two scenarios are named ") + name);
}

bool has_decided(const rank& self) {
  for (const auto& agreed : self.agreements()) {
    for (const auto& c : agreed.assigned->searches()) {
      if (c->is_decided()) return true;
    }
  }
  return false;
}

}  // namespace

scenario::scenario(const char* name, void (*program)(job&)) {
  add(name, [program](job_options& o) { return ops::run(program, o); });
}
scenario::scenario(const char* name, int (*process)(job_options&)) { add(name, process); }

void expect(bool holds, const std::string& what) {
  if (!holds) raise({errc::exception, "not so: " + what});
}

void run_to_its_error(job& here, task<> what) {
  try {
    run(here.loop(), std::move(what));
  } catch (const failure& f) {
    say_error("last call", f.reason());
    throw;
  }
}

task<> rest(executor& ex, time_ns span) {
  auto woken = co_await sleep_until(ex.deadline_in(span));
  static_cast<void>(woken);
}

task<> move_all(rank& self, transfer t, std::vector<std::size_t> sizes, std::size_t spare) {
  std::vector<std::byte> buffer;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (self.id() == 0) {
      const auto data = pattern(sizes[i], i);
      co_await t.send(data, {.to = 1});
    } else if (self.id() == 1) {
      buffer.assign(sizes[i] + spare, std::byte{0xEE});
      const auto got = co_await t.receive(buffer, {.from = 0});
      expect(got == sizes[i], "message " + std::to_string(i) + " has its size");
      for (std::size_t at = sizes[i]; at < buffer.size(); ++at)
        expect(buffer[at] == std::byte{0xEE}, "the rest is untouched");
      buffer.resize(sizes[i]);
      expect(buffer == pattern(sizes[i], i), "message " + std::to_string(i) + " has its bytes");
    }
  }
}

/// The number of calls of a search depends on how soon its rehearsals get their turn, so an empty message marks the last call.
task<> move_until_decided(rank& self, transfer t) {
  constexpr std::size_t size = 200'000;
  std::vector<std::byte> buffer(size);
  const deadline limit;
  for (std::size_t i = 0;; ++i) {
    if (self.id() == 0) {
      const bool last = i >= 300 && (has_decided(self) || limit.is_over());
      const auto data = pattern(last ? 0 : size, i);
      co_await t.send(data, {.to = 1});
      if (last) co_return;
    } else if (self.id() == 1) {
      const auto got = co_await t.receive(buffer, {.from = 0});
      if (got == 0) co_return;
      expect(got == size && buffer == pattern(size, i), "message " + std::to_string(i) + " has its bytes");
    }
  }
}

void tune_with(job& here, std::vector<config_ptr> at_sender, std::vector<config_ptr> at_receiver) {
  transfer t(here.self(), pair_of(here.self().id() == 0 ? std::move(at_sender) : std::move(at_receiver)));
  run(here.loop(), move_until_decided(here.self(), t));
  say_searches(here.self());
  say_flights(here.self());
}

task<> send_three(transfer t) {
  for (int i = 0; i < 3; ++i) {
    const auto data = pattern(100, 0);
    co_await t.send(data, {.to = 1});
  }
}

transfer_options towards_rank_0() {
  transfer_options op;
  op.name = "activations";
  op.edges = {{1, 0}};
  return op;
}

task<> wait_for_a_message(transfer t) {
  std::vector<std::byte> buffer(1000);
  co_await t.receive(buffer, {.from = 1});
}

void say_searches(const rank& self) {
  for (const auto& agreed : self.agreements()) {
    for (const auto& c : agreed.assigned->searches()) {
      say("search " + c->key() + " trials " + std::to_string(c->trials()) +
          (c->chosen().from_results() ? " remembered " : " tried ") + (c->is_decided() ? "decided " : "open ") +
          c->chosen().config);
    }
    std::string ids;
    for (const auto& id : agreed.assigned->ids()) ids += " " + id;
    say("candidates" + ids + ".");
  }
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("this program as one rank of a job" * doctest::skip()) {
  const char* name = std::getenv(scenario_variable);
  if (name == nullptr) return;
  const auto at = scenarios().find(name);
  REQUIRE(at != scenarios().end());
  job_options o;
  o.settings.plan.budget_fraction = 1e9;
  o.settle_limit = 60s;  // on a busy machine the other rank may get its turn late
  const int status = at->second(o);
  REQUIRE(status == 0);
}

}  // namespace parley::tests::processes
