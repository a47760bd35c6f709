// Stops a scenario that uses everything at once after every number of steps, and destroys it. A sanitizer finds leaks and late accesses.
#include <parley/actor.hpp>
#include <parley/compute.hpp>
#include <parley/when.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <variant>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

struct job {
  int size = 0;
  std::shared_ptr<int> payload;
  reply_to<std::shared_ptr<int>> reply;
};
struct note {
  std::shared_ptr<int> payload;
};
using worker_address = address<job, note>;

task<> worker(actor<job, note>& self, std::shared_ptr<int> alive) {
  for (;;) {
    auto m = co_await self.receive();
    if (!m) co_return;
    auto* j = std::get_if<job>(&*m);
    if (j == nullptr) continue;
    const int size = j->size;
    if (size == 13) raise({errc::config_failed, "thirteen"});
    auto work = [size, alive] { return size * 2; };
    int value = co_await compute(work, 1_us * size);
    if (size % 5 == 0) continue;  // no answer to these jobs
    j->reply.send(std::make_shared<int>(value));
  }
}
task<int> ask_worker(worker_address to, std::shared_ptr<int> payload, int size) {
  scope& here = co_await this_scope;
  executor& ex = here.where();
  job question{size, payload, {}};
  auto answer = co_await ask(to, std::move(question), ex.deadline_in(30_us));
  co_return answer ? **answer : -1;
}
task<int> give_up_at(time_ns when) {
  auto woken = co_await sleep_until(when);
  co_return woken ? 0 : -2;
}
task<> flood(worker_address to, std::shared_ptr<int> payload) {
  for (int i = 0; i < 4; ++i) {
    note n{payload};
    auto sent = co_await to.send(std::move(n), 20_us);
    if (!sent) co_return;
  }
}
task<> customer(worker_address to, std::shared_ptr<int> alive, int first) {
  scope& here = co_await this_scope;
  executor& ex = here.where();
  for (int size = first; size < first + 4; ++size) {
    auto one = co_await when_any(ask_worker(to, alive, size), give_up_at(ex.deadline_in(4_us)));
    static_cast<void>(one);
    auto two = co_await when_all(ask_worker(to, alive, size + 1), flood(to, alive));
    static_cast<void>(two);
    auto three = co_await with_deadline(ex.deadline_in(3_us), ask_worker(to, alive, size + 2));
    static_cast<void>(three);
    scope inner(here, {.deadline = ex.deadline_in(2_us)});
    inner.spawn(flood(to, alive));
    inner.spawn(flood(to, alive));
    co_await inner.join();
  }
}
task<> watcher(actor<down>& self, std::shared_ptr<int> alive) {
  for (;;) {
    auto m = co_await self.receive(100_us);
    if (!m) co_return;
    *alive += 1;
  }
}

enum class ending { destroy, cancel };

// Returns true if the scenario had ended by itself.
bool play_for(std::size_t steps, ending how, const std::shared_ptr<int>& alive) {
  script play;
  auto watching = spawn_actor<down>(*play.stage, watcher, alive);
  auto a = spawn_actor_with<job, note>(*play.stage, 2, worker, alive);
  auto b = spawn_actor_with<job, note>(*play.stage, 3, worker, alive);
  a.monitor(watching, 1);
  b.monitor(watching, 2);
  play.stage->spawn(customer(a, alive, 1));
  play.stage->spawn(customer(b, alive, 9));
  play.stage->spawn(customer(a, alive, 4));
  bool ended = false;
  for (std::size_t i = 0; i < steps && !ended; ++i) {
    if (play.clock.step() == 0) ended = !play.clock.wait();
  }
  if (how == ending::cancel) {
    play.stage->cancel();
    play.finish();
  }
  return ended;
}

}  // namespace

TEST_CASE("a program may be destroyed after any step") {
  auto alive = std::make_shared<int>(0);
  std::size_t steps = 0;
  while (!play_for(steps, ending::destroy, alive)) {
    REQUIRE(alive.use_count() == 1);
    ++steps;
    REQUIRE(steps < 20'000);
  }
  CHECK(steps > 100);
  MESSAGE("destroyed after each of " << steps << " steps");
}

TEST_CASE("a program that is cancelled after any step ends by itself") {
  auto alive = std::make_shared<int>(0);
  std::size_t steps = 0;
  while (!play_for(steps, ending::cancel, alive)) {
    REQUIRE(alive.use_count() == 1);
    ++steps;
    REQUIRE(steps < 20'000);
  }
}
