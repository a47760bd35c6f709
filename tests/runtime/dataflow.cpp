#include <parley/tests/support/errors.hpp>

#include <parley/dataflow.hpp>
#include <parley/runtime/time/virtual_time.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley::runtime;
using namespace parley::tests;

namespace {

struct memory {
  std::array<std::byte, 64> bytes{};
  std::span<const std::byte> part(std::size_t from, std::size_t size) const {
    return std::span(bytes).subspan(from, size);
  }
};

// A log of starts (`<a`) and ends (`>a`) of steps, by the letter of the step.
struct log_of_steps {
  std::string text;
  bool before(std::string_view a, std::string_view b) const {
    const auto at = text.find(a);
    return at != std::string::npos && at < text.find(b);
  }
};

class logged final : public flow_step {
 public:
  logged(log_of_steps& log, char letter, time_ns takes_ns) : log_(log), letter_(letter), takes_ns_(takes_ns) {}
  std::string title() const override { return std::string("step ") + letter_; }
  task<> run() override {
    log_.text += std::string("<") + letter_;
    scope& here = co_await this_scope;
    auto woken = co_await sleep_until(here.where().deadline_in(takes_ns_));
    log_.text += std::string(">") + letter_;
    if (!woken) raise(woken.reason());
    if (fails) raise({errc::config_failed, "it was told to"});
  }
  bool fails = false;
  bool is_ordered_by_a_device = false;

 private:
  bool comes_after(const flow_step&, const buffer_access&) override { return is_ordered_by_a_device; }
  log_of_steps& log_;
  char letter_;
  time_ns takes_ns_;
};

// A step that is not a coroutine.
class plain final : public flow_step {
 public:
  explicit plain(std::string& log) : log_(log) {}
  std::string title() const override { return "a plain step"; }

 private:
  void go() noexcept override {
    log_ += '.';
    note_begun();
    end();
  }
  std::string& log_;
};

struct flowing {
  flow_work step(char letter, std::vector<buffer_access> uses, time_ns takes_ns = 1000, step_options o = {}) {
    return flow.add(new_step<logged>(log, letter, takes_ns), uses, o);
  }
  flow_work failing(char letter, std::vector<buffer_access> uses) {
    auto s = new_step<logged>(log, letter, 1000);
    s->fails = true;
    return flow.add(std::move(s), uses);
  }
  void run_all() {
    run_until(clock, [&] { return flow.running() == 0; });
  }
  // Returns as a value what `join` throws.
  result<> join() {
    result<> outcome;
    const auto joined = [](dataflow& f, result<>& o) -> task<> {
      std::exception_ptr thrown;
      try {
        co_await f.join();
      } catch (...) {
        thrown = std::current_exception();
      }
      if (thrown) o = describe(thrown);
    };
    run(clock, joined(flow, outcome));
    return outcome;
  }
  virtual_time clock;
  memory m;
  log_of_steps log;
  dataflow flow{clock};
};

struct named_step {
  int number;
};

}  // namespace

TEST_CASE("a step waits for the writers of its input, and for all users of the memory that it writes") {
  flowing f;
  const auto a = f.step('a', {writes(f.m.part(0, 16))}, 5000);
  const auto b = f.step('b', {reads(f.m.part(8, 16))});  // its part overlaps the part that a writes
  const auto c = f.step('c', {reads(f.m.part(0, 4))});
  // waits for c, which reads the same part
  const auto d = f.step('d', {writes(f.m.part(0, 4))});
  const auto e = f.step('e', {writes(f.m.part(32, 8))});  // overlaps no other step's part
  f.run_all();
  CHECK(f.log.before(">a", "<b"));
  CHECK(f.log.before(">a", "<c"));
  CHECK(f.log.before(">c", "<d"));
  CHECK(f.log.before(">e", ">a"));
}

TEST_CASE("steps that only read the same memory run concurrently") {
  flowing f;
  const auto a = f.step('a', {reads(f.m.bytes)});
  const auto b = f.step('b', {reads(f.m.bytes)});
  f.run_all();
  CHECK(f.log.text == "<a<b>a>b");
}

TEST_CASE(
    "a step that reads and writes memory waits for its readers, delays later readers, and does not wait for itself") {
  flowing f;
  const auto a = f.step('a', {reads(f.m.bytes)}, 3000);
  const auto b = f.step('b', {updates(f.m.part(0, 8))});
  const auto c = f.step('c', {reads(f.m.part(4, 1))});
  f.run_all();
  CHECK(f.log.text == "<a>a<b>b<c>c");
}

TEST_CASE("an access to zero bytes orders no steps") {
  flowing f;
  const auto a = f.step('a', {writes(f.m.part(8, 0))});
  const auto b = f.step('b', {writes(f.m.part(8, 0)), writes(f.m.part(0, 64))});
  f.run_all();
  CHECK(f.log.text == "<a<b>a>b");
}

TEST_CASE("buffer_order finds the same predecessors as a list of all earlier uses, whatever the overlaps") {
  std::mt19937 dice(7);
  std::array<std::byte, 40> bytes{};
  for (int round = 0; round < 200; ++round) {
    buffer_order<std::shared_ptr<named_step>> order;
    struct use {
      std::shared_ptr<named_step> who;
      std::size_t from;
      std::size_t size;
      buffer_use how;
      std::set<int> waits_for;
      decltype(order)::mark at{};
    };
    std::vector<use> live;
    for (int number = 0; number < 60; ++number) {
      if (!live.empty() && dice() % 3 == 0) {
        const auto gone = live.begin() + static_cast<std::ptrdiff_t>(dice() % live.size());
        const auto waited_for = [&](const use& u) { return gone->waits_for.contains(u.who->number); };
        if (std::any_of(live.begin(), live.end(), waited_for)) continue;  // the step has not started, so it cannot end
        order.remove(*gone->who, {std::span(bytes).subspan(gone->from, gone->size), gone->how}, gone->at,
                     buffer_order<std::shared_ptr<named_step>>::afterwards::forgotten);
        live.erase(gone);
        continue;
      }
      use mine{std::make_shared<named_step>(number), dice() % 40, 0, static_cast<buffer_use>(dice() % 3), {}, {}};
      mine.size = dice() % (41 - mine.from);
      std::set<int> found;
      mine.at = order.add(mine.who, {std::span(bytes).subspan(mine.from, mine.size), mine.how},
                          [&](const auto& earlier, bool) { found.insert(earlier->number); });
      // The expected result, byte by byte, among steps that have not ended: the last writer, and everyone who has read since then.
      std::set<int> expected;
      for (std::size_t at = mine.from; at < mine.from + mine.size; ++at) {
        for (auto u = live.rbegin(); u != live.rend(); ++u) {
          if (at < u->from || at >= u->from + u->size) continue;
          if (u->how != buffer_use::read) {
            expected.insert(u->who->number);
            break;
          }
          if (mine.how != buffer_use::read) expected.insert(u->who->number);
        }
      }
      CHECK(found == expected);
      mine.waits_for = found;
      live.push_back(mine);
    }
    for (const use& u : live)
      order.remove(*u.who, {std::span(bytes).subspan(u.from, u.size), u.how}, u.at,
                   buffer_order<std::shared_ptr<named_step>>::afterwards::forgotten);
    CHECK(order.size() == 0);
  }
}

TEST_CASE("a step that names overlapping memory several times never waits for itself, and its removal leaves nothing") {
  std::array<std::byte, 4000> bytes{};
  const std::span all(bytes);
  buffer_order<std::shared_ptr<named_step>> order;
  using order_type = decltype(order);
  for (int number = 0; number < 500; ++number) {
    const auto step = std::make_shared<named_step>(number);
    const auto place = static_cast<std::size_t>(number % 37);
    std::vector<std::pair<buffer_access, order_type::mark>> named;
    for (const buffer_access& a : {reads(all), writes(all.subspan(40, 9)), updates(all.subspan(place * 100, 150)),
                                   reads(all.subspan(place * 100, 150)), writes(all)})
      named.emplace_back(a, order.add(step, a, [](const auto&, bool) { FAIL("nobody is there"); }));
    for (const auto& [a, at] : named) order.remove(*step, a, at, order_type::afterwards::forgotten);
    REQUIRE(order.size() == 0);
  }
}

TEST_CASE("a step whose input failed does not run and names the first failure; a step that overwrites the input runs") {
  flowing f;
  auto a = f.failing('a', {writes(f.m.part(0, 8))});
  auto b = f.step('b', {reads(f.m.part(0, 8)), writes(f.m.part(8, 8))});
  auto c = f.step('c', {reads(f.m.part(8, 8))});
  auto d = f.step('d', {writes(f.m.part(0, 8))});
  auto e = f.step('e', {updates(f.m.part(0, 8))});
  f.run_all();
  CHECK(f.log.text == "<a>a<d>d<e>e");
  CHECK(c.outcome().code() == errc::config_failed);
  CHECK(b.outcome().reason().text() ==
        "step b was not done, because it needs what step a would have brought: config_failed: it was told to");
  // However long the chain of dependents is, the text names the first failure, and only once.
  CHECK(c.outcome().reason().text() ==
        "step c was not done, because it needs what step a would have brought: config_failed: it was told to");
  CHECK(d.outcome());
  CHECK(e.outcome());
  CHECK(f.join());  // the caller already heard of the failure from c
}

TEST_CASE("a step that reads the output of an earlier failed step fails, until another step has written that output") {
  flowing f;
  const auto a = f.failing('a', {writes(f.m.part(0, 8))});
  f.run_all();
  auto b = f.step('b', {reads(f.m.part(4, 8))});
  f.run_all();
  CHECK(b.outcome().code() == errc::config_failed);
  const auto c = f.step('c', {writes(f.m.part(0, 8))});
  auto d = f.step('d', {reads(f.m.part(4, 4))});
  f.run_all();
  CHECK(d.outcome());
}

TEST_CASE("join throws a failure that no caller has seen yet") {
  flowing f;
  const auto a = f.failing('a', {});
  auto b = f.step('b', {});
  CHECK(f.join().code() == errc::config_failed);
  CHECK(f.join());  // a failure is reported once
  CHECK(b.outcome());
}

TEST_CASE("a batch ends when all its parts have ended, and throws its first failure") {
  flowing f;
  std::vector<flow_work> parts;
  parts.push_back(f.step('a', {}, 100));
  parts.push_back(f.failing('b', {}));
  parts.push_back(f.step('c', {}, 9000));
  flow_work all = f.flow.together(parts);
  CHECK_FALSE(all.done());
  flow_work first = all[0];
  first.wait();
  CHECK(f.clock.now() == 100);
  CHECK(all.outcome().code() == errc::config_failed);
  CHECK(f.clock.now() == 9000);
  CHECK(all[2].outcome());
  CHECK(all[1].outcome().code() == errc::config_failed);
  CHECK_THROWS_AS(static_cast<void>(all[3]), failure);
  CHECK(f.join());
}

namespace {
task<bool> outcome_of(flow_work* work) {
  try {
    co_await *work;
  } catch (const failure&) {
    co_return false;
  }
  co_return true;
}
task<> note_who_may_begin(flowing* f, std::vector<bool>* may) {
  const auto ask = [&](buffer_access use, step_options o = {}) { may->push_back(f->flow.may_begin(use, o)); };
  begin_sequence in_turn;
  compute_queue queue;
  auto reading = f->step('r', {reads(f->m.part(0, 16))});
  ask(reads(f->m.part(8, 16)));
  ask(writes(f->m.part(8, 16)));
  ask(writes(f->m.part(16, 16)), {.after = &queue, .sequence = &in_turn});
  auto writing = f->step('w', {writes(f->m.part(32, 8))});
  ask(reads(f->m.part(30, 4)));
  ask(reads(f->m.part(36, 20)));
  ask(reads(f->m.part(40, 20)));
  writing.wait_on(queue);
  ask(reads(f->m.part(60, 4)), {.after = &queue});
  auto late = f->step('l', {reads(f->m.part(32, 8))}, 1000, {.sequence = &in_turn});
  ask(reads(f->m.part(60, 4)), {.sequence = &in_turn});
  co_await f->flow.join();
  ask(updates(f->m.bytes), {.sequence = &in_turn});
  auto failed = f->failing('f', {writes(f->m.part(0, 4))});
  const bool went_well = co_await outcome_of(&failed);
  CHECK_FALSE(went_well);
  ask(reads(f->m.part(0, 4)));  // nothing has written this part
}
}  // namespace

TEST_CASE("a step may begin at once only if nothing precedes it: in its memory, its sequence or its queue") {
  flowing f;
  std::vector<bool> may;
  run(f.clock, note_who_may_begin(&f, &may));
  CHECK(may == std::vector<bool>{true, false, true, false, false, true, false, false, true, false});
  CHECK_FALSE(f.flow.may_begin(reads(f.m.bytes), {}));  // outside the loop's turns, no step may begin
}

TEST_CASE("parts that have already ended count as parts of a batch, and can be waited for like the others") {
  flowing f;
  const std::vector<flow_part> some{{.bytes = 5}, {.step = new_step<logged>(f.log, 'a', 100)}, {.bytes = 7}};
  f.flow.put(some[1].step, {});
  flow_work all = f.flow.together(some);
  CHECK(all.size() == 3);
  CHECK(all.bytes() == 12);
  CHECK_FALSE(all.done());
  for (const std::size_t i : {0U, 2U}) {
    flow_work one = all[i];
    CHECK(one.done());
    CHECK(one.bytes() == some[i].bytes);
    CHECK(one.outcome());
    one.cancel();
  }
  std::vector<flow_work> both;
  both.push_back(std::move(all));
  both.push_back(f.step('b', {}, 200));
  flow_work whole = f.flow.together(both);
  CHECK(whole.size() == 4);
  CHECK(whole.bytes() == 12);
  CHECK(whole.outcome());
  CHECK(f.log.text == "<a<b>a>b");
  CHECK(f.flow.together(std::span(some).first(1)).outcome());
}

TEST_CASE("waiting for a work that was moved away fails with bad_argument") {
  flowing f;
  flow_work a = f.step('a', {});
  flow_work b = std::move(a);
  CHECK(b.outcome());
  CHECK(a.outcome().code() == errc::bad_argument);  // NOLINT(bugprone-use-after-move): that is the case
}

TEST_CASE("cancelling a work ends its own waits and no other work's") {
  flowing f;
  flow_work a = f.step('a', {writes(f.m.bytes)}, 50'000);
  flow_work b = f.step('b', {writes(f.m.bytes)}, 10);  // waits for a
  flow_work c = f.step('c', {}, 60'000);
  b.cancel();
  CHECK(b.outcome().code() == errc::cancelled);
  CHECK(b.outcome().reason().what().find("had not begun") != std::string::npos);
  CHECK(f.clock.now() < 50'000);
  a.cancel();
  CHECK(a.outcome().code() == errc::cancelled);
  CHECK(c.outcome());
  CHECK(f.log.text == "<a<c>a>c");
}

TEST_CASE("a step behind a cancelled or timed-out step still waits for the steps that the latter waited for") {
  flowing f;
  begin_sequence sequence;
  flow_work a = f.step('a', {reads(f.m.bytes)}, 50'000, {.sequence = &sequence});
  flow_work b = f.step('b', {writes(f.m.bytes)}, 10, {.sequence = &sequence});
  flow_work c = f.step('c', {writes(f.m.bytes)}, 10, {.timeout_ns = 5'000});  // times out while it waits for b
  flow_work d = f.step('d', {updates(f.m.part(0, 8))}, 10);
  b.cancel();
  CHECK(b.outcome().code() == errc::cancelled);
  flow_work e = f.step('e', {writes(f.m.bytes)}, 10, {.sequence = &sequence});
  CHECK(c.outcome().code() == errc::timeout);
  f.run_all();
  CHECK(f.log.text == "<a>a<e>e");
  CHECK(d.outcome().code() == errc::timeout);  // d updates what c was to write
  CHECK(e.outcome());
  CHECK(f.clock.now() == 50'010);
}

TEST_CASE(
    "a step behind a device-ordered step still waits for the steps that the device-ordered one did not wait for") {
  flowing f;
  flow_work a = f.step('a', {writes(f.m.bytes)}, 50'000);
  const auto by_device = new_step<logged>(f.log, 'b', 10);
  by_device->is_ordered_by_a_device = true;
  flow_work b = f.flow.add(by_device, std::array{writes(f.m.bytes)});
  CHECK(b.outcome());
  CHECK(f.clock.now() == 10);
  flow_work c = f.step('c', {writes(f.m.bytes)}, 10);
  CHECK(c.outcome());
  CHECK(f.log.text == "<a<b>b>a<c>c");
}

TEST_CASE("thousands of steps that wait for one another may be cancelled at once") {
  flowing f;
  std::vector<flow_work> all;
  for (int i = 0; i < 20'000; ++i) all.push_back(f.step('a', {writes(f.m.bytes)}, 50'000));
  f.clock.turn();
  f.flow.cancel();
  f.run_all();
  for (flow_work& w : all) CHECK(w.outcome().code() == errc::cancelled);
  CHECK(f.log.text == "<a>a");
}

TEST_CASE("a flow frees each step that has ended, whether it read, wrote or updated the buffer") {
  struct counted final : flow_step {
    explicit counted(int& alive) : alive_(alive) { ++alive_; }
    ~counted() override { --alive_; }
    std::string title() const override { return "a counted step"; }
    task<> run() override { co_return; }
    int& alive_;
  };
  flowing f;
  int alive = 0;
  for (const buffer_access& use : {reads(f.m.bytes), writes(f.m.bytes), updates(f.m.bytes)}) {
    for (int i = 0; i < 3; ++i) static_cast<void>(f.flow.add(new_step<counted>(alive), std::array{use}));
    f.run_all();
    CHECK(alive == 0);
  }
}

TEST_CASE("destroying a flow leaves no step in a shared sequence waiting for the flow's steps") {
  virtual_time clock;
  memory m;
  log_of_steps log;
  begin_sequence sequence;
  const std::array use{reads(m.bytes)};
  {
    scope outer(clock);
    dataflow torn(outer);
    const auto a = torn.add(new_step<logged>(log, 'a', 1000), use, {.sequence = &sequence});
    const auto b = torn.add(new_step<logged>(log, 'b', 1000), use, {.sequence = &sequence});
  }
  dataflow flow(clock);
  flow_work c = flow.add(new_step<logged>(log, 'c', 1000), use, {.sequence = &sequence});
  CHECK(c.outcome());
  CHECK(log.text == "<c>c");
}

TEST_CASE("destroying a flow lets steps of another flow begin that waited behind its steps in a sequence") {
  virtual_time clock;
  memory m;
  memory other;
  log_of_steps log;
  begin_sequence sequence;
  dataflow flow(clock);
  std::optional<flow_work> c;
  std::optional<flow_work> d;
  {
    scope outer(clock);
    dataflow torn(outer);
    const auto a = torn.add(new_step<logged>(log, 'a', 1000), std::array{writes(m.bytes)});
    const auto b = torn.add(new_step<logged>(log, 'b', 1000), std::array{reads(m.bytes)}, {.sequence = &sequence});
    c = flow.add(new_step<logged>(log, 'c', 1000), std::array{reads(other.bytes)}, {.sequence = &sequence});
    // A step of the destroyed flow in the middle of the sequence does not block the steps behind it.
    const auto e = torn.add(new_step<logged>(log, 'e', 1000), std::array{reads(m.bytes)}, {.sequence = &sequence});
    d = flow.add(new_step<logged>(log, 'd', 1000), std::array{reads(other.bytes)}, {.sequence = &sequence});
    CHECK(log.text.find('c') == std::string::npos);
  }
  CHECK(c->outcome());
  CHECK(d->outcome());
  CHECK(log.before("<c", "<d"));
}

TEST_CASE("a step without a coroutine runs at once when a coroutine adds it, and in the next turn when added from "
          "elsewhere") {
  flowing f;
  std::string log;
  flow_work outside = f.flow.add(new_step<plain>(log), {});
  CHECK(log.empty());
  CHECK(outside.outcome());
  CHECK(log == ".");
  const auto inside = [](dataflow& flow, std::string& l) -> task<> {
    const flow_work work = flow.add(new_step<plain>(l), {});
    l += work.done() ? "done" : "not yet";
    co_await work;
  };
  run(f.clock, inside(f.flow, log));
  CHECK(log == "..done");
}

TEST_CASE("a chain of 200,000 steps, each of which lets the next one begin, does not overflow the stack") {
  constexpr std::size_t many = 200'000;
  flowing f;
  begin_sequence sequence;
  std::string log;
  flow_work a = f.step('a', {writes(f.m.bytes)});
  const std::array use{reads(f.m.bytes)};
  f.flow.put(new_step<plain>(log), use, {.sequence = &sequence});  // waits for a, and the steps below wait for it
  for (std::size_t i = 1; i < many; ++i) f.flow.put(new_step<plain>(log), {}, {.sequence = &sequence});
  f.run_all();
  CHECK(log.size() == many);
}

TEST_CASE("a step's timeout counts from the moment it is added, including waits for other steps") {
  flowing f;
  flow_work a = f.step('a', {writes(f.m.bytes)}, 50'000);
  flow_work b = f.step('b', {reads(f.m.bytes)}, 10, {.timeout_ns = 20'000});
  CHECK(b.outcome().code() == errc::timeout);
  CHECK(f.clock.now() == 20'000);
  CHECK(a.outcome());
}

TEST_CASE("a compute queue runs in its order, and after the works that it must wait for") {
  flowing f;
  compute_queue queue;
  std::string order;
  flow_work a = f.step('a', {}, 5000);
  flow_work first = f.flow.compute({}, [&] { order += "1"; }, {.queue = &queue, .modelled_ns = 100});
  a.wait_on(queue);
  flow_work second = f.flow.compute({}, [&] { order += "2"; }, {.queue = &queue, .modelled_ns = 100});
  flow_work third = f.flow.compute({}, [&] { order += "3"; }, {.queue = &queue});
  flow_work after = f.step('z', {}, 1, {.after = &queue});
  CHECK(first.outcome());
  CHECK(f.clock.now() == 100);
  CHECK(second.outcome());
  CHECK(f.clock.now() == 5100);
  CHECK(after.outcome());
  CHECK(third.done());
  CHECK(order == "123");
}

TEST_CASE("a compute queue runs nothing after a failure") {
  flowing f;
  compute_queue queue;
  flow_work a = f.flow.compute({}, [] { throw std::runtime_error("the kernel is on fire"); }, {.queue = &queue});
  bool ran = false;
  flow_work b = f.flow.compute({}, [&] { ran = true; }, {.name = "softmax", .queue = &queue});
  const auto outcome = b.outcome();
  CHECK_FALSE(ran);
  for (const char* words : {"softmax", "the kernel is on fire"})
    CHECK(is(outcome, {.code = errc::exception, .quotes = words}));
}

namespace {
task<> twice(int* value, time_ns takes_ns) {
  scope& here = co_await this_scope;
  auto woken = co_await sleep_until(here.where().deadline_in(takes_ns));
  static_cast<void>(woken);
  *value *= 2;
}

task<> add_and_throw(dataflow& flow, int* value) {
  auto doubled = flow.compute({writes(std::span(value, 1))}, [value] { return twice(value, 1000); });
  co_await doubled;
  auto never_heard_of = flow.compute({writes(std::span(value, 1))}, [value] { return twice(value, 1000); });
  raise({errc::exception, "the program gives up"});
}

task<> wait_in_vain(dataflow& flow, int* value) {
  auto slow = flow.compute({writes(std::span(value, 1))}, [value] { return twice(value, 1'000'000); });
  co_await slow;
}
}  // namespace

TEST_CASE("a computation may be a coroutine, and with_dataflow joins the flow even if its body throws") {
  virtual_time clock;
  int value = 3;
  CHECK_THROWS_WITH_AS(run(clock, with_dataflow(add_and_throw, &value)), "exception: the program gives up", failure);
  CHECK(value == 12);  // join cancelled the second step and waited for it
  CHECK(clock.now() == 1000);
}

namespace {
// The first step fails. The second step of its sequence waits for it. Another step takes long.
task<> fail_in_a_sequence(dataflow& flow, log_of_steps* log, begin_sequence* sequence, bool stops) {
  if (stops) flow.stop_at_failure();
  auto fails = new_step<logged>(*log, 'a', 1000);
  fails->fails = true;
  static_cast<void>(flow.add(fails, {}, {.sequence = sequence}));
  static_cast<void>(flow.add(new_step<logged>(*log, 'b', 1000), {}, {.sequence = sequence}));
  auto last = flow.add(new_step<logged>(*log, 'c', 1'000'000), {});
  co_await last;
}
}  // namespace

TEST_CASE("a flow that stops at a failure starts no further step, ends all waits, and throws the first failure") {
  for (const bool stops : {false, true}) {
    CAPTURE(stops);
    virtual_time clock;
    log_of_steps log;
    begin_sequence sequence;
    CHECK_THROWS_WITH_AS(run(clock, with_dataflow(fail_in_a_sequence, &log, &sequence, stops)),
                         "config_failed: it was told to", failure);
    CHECK(log.text == (stops ? "<a<c>a>c" : "<a<c>a<b>b>c"));
    CHECK(clock.now() == (stops ? 1000 : 1'000'000));
  }
}

TEST_CASE("when a deadline ends the wait for a work the work ends with its flow") {
  virtual_time clock;
  int value = 3;
  scope all(clock, {.deadline = 5000});
  std::exception_ptr thrown;
  const auto guarded = [](int* v, std::exception_ptr& t) -> task<> {
    try {
      co_await with_dataflow(wait_in_vain, v);
    } catch (...) {
      t = std::current_exception();
    }
  };
  all.spawn(guarded(&value, thrown));
  run_until(clock, [&] { return all.running() == 0; });
  REQUIRE(thrown);
  CHECK(describe(thrown).code() == errc::timeout);
  CHECK(clock.now() == 5000);
}

TEST_CASE("destroying a flow over an executor ends the steps that still run") {
  virtual_time clock;
  log_of_steps log;
  {
    dataflow flow(clock);
    const auto a = flow.add(new_step<logged>(log, 'a', 1'000'000), {});
    run_until(clock, [&] { return !log.text.empty(); });
  }
  CHECK(log.text == "<a>a");
  CHECK(clock.now() < 1'000'000);
}

TEST_CASE("destroying a flow with its scope frees its running and its waiting steps") {
  auto watched = std::make_shared<int>(1);
  virtual_time clock;
  {
    scope all(clock);
    dataflow flow(all);
    memory m;
    const auto sleeps = [watched] { return twice(watched.get(), 1'000'000); };
    const auto a = flow.compute({writes(m.bytes)}, sleeps);
    const auto b = flow.compute({reads(m.bytes)}, sleeps);
    clock.turn();
    CHECK(watched.use_count() == 4);
  }
  CHECK(watched.use_count() == 1);
}
