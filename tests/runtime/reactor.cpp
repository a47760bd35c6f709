#include <parley/runtime/time/reactor.hpp>

#include <parley/runtime/coroutines/mailbox.hpp>

#include <doctest/doctest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <parley/tests/runtime/script.hpp>
#include <parley/tests/support/deadline.hpp>

using namespace parley::runtime;
using parley::tests::deadline;

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr reactor::options hasty{.longest_spin_ns = 1'000};

bool readable(int descriptor, int timeout_ms) {
  pollfd p{descriptor, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}
void until_armed(reactor& loop) {
  const deadline limit;
  while (loop.poll() != reactor::readiness::armed) REQUIRE_FALSE(limit.is_over());
}
// Drives a loop the way an engine does that owns an epoll instance.
template <class Holds>
void drive(reactor& loop, Holds&& holds) {
  const deadline limit;
  while (!holds()) {
    REQUIRE_FALSE(limit.is_over());
    if (loop.poll() == reactor::readiness::armed && !holds()) REQUIRE(readable(loop.native_handle(), 60'000));
  }
}

// A miniature transport: other threads announce events, and `poll` takes them.
class fake_poller : public poller {
 public:
  enum class announcing { through_the_descriptor, not_at_all };
  explicit fake_poller(announcing a = announcing::through_the_descriptor) : announcing_(a) {}
  ~fake_poller() override { ::close(fd_); }
  bool poll() override {
    const int taken = waiting_.exchange(0);
    seen += taken;
    return taken != 0;
  }
  arm_state arm() override {
    ++arms;
    if (busy_answers > 0) {
      --busy_answers;
      return arm_state::busy;
    }
    std::uint64_t drained = 0;
    static_cast<void>(!::read(fd_, &drained, sizeof drained));
    if (waiting_ != 0) return arm_state::busy;
    if (std::exchange(happens_after_arming, false)) happen();
    return arm_state::armed;
  }
  int event_fd() const override { return fd_; }
  void happen() {
    ++waiting_;
    const std::uint64_t one = 1;
    if (announcing_ == announcing::through_the_descriptor) static_cast<void>(!::write(fd_, &one, sizeof one));
  }
  std::atomic<int> seen{0};
  std::atomic<int> arms{0};
  int busy_answers = 0;
  bool happens_after_arming = false;

 private:
  announcing announcing_;
  std::atomic<int> waiting_{0};
  int fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
};

task<time_ns> time_slept(executor& ex, time_ns span) {
  const time_ns begun = ex.precise_now();
  auto woken = co_await sleep_for(std::chrono::nanoseconds(span));
  woken.value();
  co_return ex.precise_now() - begun;
}
task<> sleep_and_say(executor& ex, std::string& log, time_ns when, std::string word) {
  auto woken = co_await sleep_until(when);
  woken.value();
  static_cast<void>(ex);
  log += word;
}
task<errc> receive_one(mailbox<int>& box, time_ns deadline) {
  auto m = co_await box.receive(deadline);
  co_return m.code();
}
// Blocks the thread, as a program does that computes in a coroutine and holds up all other coroutines of its rank.
void compute_for(executor& ex, time_ns span) {
  for (const time_ns until = ex.precise_now() + span; ex.precise_now() < until;) {}
}
void start_after(reactor& loop, std::chrono::steady_clock::duration span, std::shared_ptr<asio::steady_timer>& kept,
                 bool& rang) {
  kept = std::make_shared<asio::steady_timer>(loop.io(), span);
  kept->async_wait([&rang](boost::system::error_code) { rang = true; });
}

}  // namespace

TEST_CASE("a sleep lasts at least as long as asked, and sleepers wake in the order of their times") {
  reactor loop(hasty);
  for (time_ns span : {time_ns{0}, 50_us, 2_ms, 20_ms}) {
    const time_ns slept = run(loop, time_slept(loop, span));
    CHECK(slept >= span);
    CHECK(slept < span + 60_s);
  }
  // On a loaded machine the loop may get its turn only after the time has passed, and then does not sleep; so try longer spans.
  for (time_ns span = 40_ms; loop.statistics().sleeps == 0 && span < 60_s; span *= 2) run(loop, time_slept(loop, span));
  CHECK(loop.statistics().sleeps > 0);
  std::string log;
  scope stage(loop);
  const time_ns now = loop.precise_now();
  stage.spawn(sleep_and_say(loop, log, now + 3_ms, "c"));
  stage.spawn(sleep_and_say(loop, log, now + 1_ms, "a"));
  stage.spawn(sleep_and_say(loop, log, now + 2_ms, "b"));
  run_until(loop, [&] { return stage.running() == 0; });
  CHECK(log == "abc");
}

TEST_CASE("a deadline ends a receive on the real clock") {
  reactor loop(hasty);
  mailbox<int> box(loop);
  const time_ns deadline = loop.precise_now() + 3_ms;
  CHECK(run(loop, receive_one(box, deadline)) == errc::timeout);
  CHECK(loop.precise_now() >= deadline);
}

namespace {

/// Keeps this thread, and the threads that it starts meanwhile, on one processor.
class on_one_processor {
 public:
  on_one_processor() {
    ::sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    CPU_SET(first, &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }
  on_one_processor(const on_one_processor&) = delete;
  on_one_processor& operator=(const on_one_processor&) = delete;
  ~on_one_processor() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

task<> wait_often(executor& ex, int times) {
  for (int i = 0; i < times; ++i) {
    auto woken = co_await sleep_until(ex.precise_now() + 1_ms);
    static_cast<void>(woken);
  }
}

}  // namespace

// Each yield to a thread that computes costs a time slice of milliseconds. With 32 yields before a sleep, this test took 9 s.
TEST_CASE("while another thread computes on the same processor, waits of 1 ms take little longer") {
  const on_one_processor both;
  std::atomic<bool> enough = false;
  std::thread computes([&] {
    while (!enough.load(std::memory_order_relaxed)) {}
  });
  reactor loop({.cores = reactor::sharing::shared_core});
  constexpr int times = 200;
  time_ns begin = loop.precise_now();
  for (int i = 0; i < times; ++i) ::sched_yield();
  const time_ns yields_took = loop.precise_now() - begin;  // the cost of one yield per wait; more on a busy machine
  begin = loop.precise_now();
  run(loop, wait_often(loop, times));
  const time_ns took = loop.precise_now() - begin;
  enough = true;
  computes.join();
  CHECK(took < 2'000_ms + 8 * yields_took);
}

namespace {
// One wait of the loop: another thread posts a handler after a while.
void wait_for_a_post(reactor& loop, std::chrono::milliseconds later) {
  bool came = false;
  std::thread other([&] {
    std::this_thread::sleep_for(later);
    loop.post([&] { came = true; });
  });
  run_until(loop, [&] { return came; });
  other.join();
}
}  // namespace

TEST_CASE("after sleeping through a wait shorter than its longest spin, the reactor spins through the next ones") {
  reactor loop({.longest_spin_ns = 200_ms});
  for (int n = 0; n < 8; ++n)
    // after these long waits it spins for less than 1 ms
    wait_for_a_post(loop, std::chrono::milliseconds(260));
  // A busy machine may interrupt the spinning now and then.
  const deadline limit;
  for (int spun = 0; spun < 2;) {
    REQUIRE_FALSE(limit.is_over());
    const auto before = loop.statistics().sleeps;
    wait_for_a_post(loop, std::chrono::milliseconds(2));
    spun = loop.statistics().sleeps == before ? spun + 1 : 0;
  }
}

TEST_CASE("on a shared core the reactor rarely yields while answers arrive at once, and yields at each turn while they "
          "are slow") {
  // Has an event at every `every`-th poll: a small number stands for a peer on another core, a large one for a peer on this core.
  struct answering : poller {
    explicit answering(std::uint64_t e) : every(e) {}
    ~answering() override { ::close(fd); }
    bool poll() override { return ++polls % every == 0; }
    arm_state arm() override { return arm_state::busy; }
    int event_fd() const override { return fd; }
    std::uint64_t every;
    std::uint64_t polls = 0;
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  };
  constexpr std::uint64_t answers = 20'000;
  const auto yields_for = [](std::uint64_t every) {
    reactor loop({.cores = reactor::sharing::shared_core});
    answering other(every);
    loop.attach(other);
    run_until(loop, [&] { return other.polls >= answers * every; });
    const std::uint64_t yields = loop.statistics().yields;
    loop.detach(other);
    return yields;
  };
  const std::uint64_t quick = yields_for(3);
  CHECK(quick >= answers / 100);  // threads that share the core get their turn
  CHECK(quick <= answers / 20);
  const std::uint64_t slow = yields_for(40);
  CHECK(slow >= answers * 17);  // two polls per yield: one after the yield and one in the next turn
}

TEST_CASE("10,000 posts from four threads all run on the reactor's thread, even while the reactor sleeps") {
  for (auto cores : {reactor::sharing::own_core, reactor::sharing::shared_core}) {
    reactor loop({.cores = cores, .longest_spin_ns = 1'000});
    const auto mine = std::this_thread::get_id();
    int run_here = 0;
    int run_elsewhere = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 2'500; ++i) {
          loop.post([&] { ++(std::this_thread::get_id() == mine ? run_here : run_elsewhere); });
          if (i % 100 == 0) std::this_thread::yield();
        }
      });
    }
    run_until(loop, [&] { return run_here + run_elsewhere == 10'000; });
    for (std::thread& t : threads) t.join();
    CHECK(run_here == 10'000);
    CHECK(run_elsewhere == 0);

    // Now the events arrive one at a time, until the reactor has slept between them. On a busy machine the reactor runs so rarely that
    // the next event is already there, so the pauses grow.
    constexpr int most = 1'000;
    int woken = 0;
    std::atomic<bool> enough = false;
    std::thread slow([&] {
      for (int i = 0; i < most && !enough; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(300 << (i / 100)));
        loop.post([&] { ++woken; });
      }
    });
    run_until(loop, [&] { return woken == most || (woken >= 20 && loop.statistics().sleeps > 0); });
    enough = true;
    slow.join();
    CHECK(loop.statistics().sleeps > 0);
    CHECK(loop.statistics().missed_wakeups == 0);
  }
}

TEST_CASE("the native handle is not readable once all posted handlers have run") {
  constexpr int rounds = 500;
  reactor loop;
  std::atomic<int> round{0};
  std::atomic<int> posted{0};
  int seen = 0;
  std::thread poster([&] {
    for (int i = 1; i <= rounds; ++i) {
      while (round != i) std::this_thread::yield();
      loop.post([&] { ++seen; });
      posted = i;
    }
  });
  int noisy = 0;
  for (int i = 1; i <= rounds; ++i) {
    round = i;
    while (seen != i) static_cast<void>(loop.poll());
    while (posted != i) std::this_thread::yield();
    if (readable(loop.native_handle(), 0)) ++noisy;
  }
  poster.join();
  CHECK(noisy == 0);
}

TEST_CASE("poll returns armed when there is nothing to do, and never blocks") {
  reactor loop;
  fake_poller transport;
  loop.attach(transport);
  scope stage(loop);
  mailbox<int> box(loop);
  stage.spawn([](mailbox<int>& b) -> task<> {
    auto m = co_await b.receive();
    static_cast<void>(m);
  }(box));
  CHECK(loop.poll() == reactor::readiness::progressed);
  for (int i = 0; i < 1'000; ++i) REQUIRE(loop.poll() == reactor::readiness::armed);
  transport.busy_answers = 1;
  CHECK(loop.poll() == reactor::readiness::idle);
  CHECK(loop.poll() == reactor::readiness::armed);
  CHECK(loop.statistics().sleeps == 0);
  box.close();
}

TEST_CASE("the native handle becomes readable on a post, on a timer and on a poller's event") {
  reactor loop;
  fake_poller transport;
  loop.attach(transport);
  until_armed(loop);
  CHECK_FALSE(readable(loop.native_handle(), 0));

  bool posted = false;
  std::thread poster([&] { loop.post([&] { posted = true; }); });
  CHECK(readable(loop.native_handle(), 60'000));
  poster.join();
  CHECK(loop.poll() == reactor::readiness::progressed);
  CHECK(posted);

  std::thread peer([&] { transport.happen(); });
  until_armed(loop);
  peer.join();
  drive(loop, [&] { return transport.seen == 1; });

  std::string log;
  scope stage(loop);
  const time_ns when = loop.precise_now() + 5_ms;
  stage.spawn(sleep_and_say(loop, log, when, "woken"));
  drive(loop, [&] { return log == "woken"; });
  CHECK(loop.precise_now() >= when);

  until_armed(loop);
  CHECK_FALSE(readable(loop.native_handle(), 0));
  loop.detach(transport);
  transport.happen();
  CHECK_FALSE(readable(loop.native_handle(), 0));
}

TEST_CASE("a poller's event wakes the sleeping reactor, which tries to arm again while the poller is busy") {
  reactor loop(hasty);
  fake_poller transport;
  transport.busy_answers = 3;
  loop.attach(transport);
  std::thread peer([&] {
    int armed = 0;
    for (int i = 0; i < 50; ++i) {  // each event after the reactor has taken the one before and is about to sleep
      while (transport.seen < i || transport.arms == armed) std::this_thread::yield();
      armed = transport.arms;
      transport.happen();
    }
  });
  run_until(loop, [&] { return transport.seen == 50; });
  peer.join();
  CHECK(transport.arms >= 50);
  CHECK(transport.busy_answers == 0);
  CHECK(loop.statistics().missed_wakeups == 0);
}

TEST_CASE("the reactor counts a missed wake-up exactly when an event during its sleep was not announced") {
  for (auto kind : {fake_poller::announcing::through_the_descriptor, fake_poller::announcing::not_at_all}) {
    reactor loop({.longest_spin_ns = 1'000, .safety_tick_ns = 20'000'000});
    fake_poller transport(kind);
    loop.attach(transport);
    transport.happens_after_arming = true;
    run_until(loop, [&] { return transport.seen == 1; });
    CHECK(loop.statistics().missed_wakeups == (kind == fake_poller::announcing::not_at_all ? 1 : 0));
  }
}

TEST_CASE("a late safety tick counts no missed wake-up, if the event was announced") {
  reactor loop({.longest_spin_ns = 1'000, .safety_tick_ns = 1'000'000});
  fake_poller transport;
  loop.attach(transport);
  bool done = false;
  // A handler that runs inside the sleep and delays it beyond the tick.
  asio::steady_timer holdup(loop.io(), std::chrono::microseconds(300));
  holdup.async_wait([&](boost::system::error_code) {
    transport.happen();
    const time_ns until = loop.precise_now() + 3_ms;
    while (loop.precise_now() < until) {}
    done = true;
  });
  run_until(loop, [&] { return done && transport.seen == 1; });
  CHECK(loop.statistics().missed_wakeups == 0);
}

TEST_CASE("Asio's timers fire while the reactor runs, and while it is only polled") {
  reactor loop(hasty);
  std::shared_ptr<asio::steady_timer> timer;
  bool rang = false;
  SUBCASE("run") {
    start_after(loop, std::chrono::milliseconds(2), timer, rang);
    run_until(loop, [&] { return rang; });
  }
  SUBCASE("polled, with a timer that starts after Asio had run out of work") {
    until_armed(loop);
    start_after(loop, std::chrono::milliseconds(2), timer, rang);
    const deadline limit;
    while (!rang && !limit.is_over()) static_cast<void>(loop.poll());
  }
  CHECK(rang);
}

TEST_CASE("Asio's sockets work in the reactor's io_context") {
  reactor loop(hasty);
  tcp::acceptor acceptor(loop.io(), tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  tcp::socket server(loop.io());
  tcp::socket client(loop.io());
  std::array<char, 5> received{};
  bool done = false;
  acceptor.async_accept(server, [&](boost::system::error_code failed) {
    REQUIRE_FALSE(failed);
    asio::async_read(server, asio::buffer(received), [&](boost::system::error_code e, std::size_t) {
      REQUIRE_FALSE(e);
      done = true;
    });
  });
  const std::string text = "hello";
  client.async_connect(acceptor.local_endpoint(), [&](boost::system::error_code failed) {
    REQUIRE_FALSE(failed);
    asio::async_write(client, asio::buffer(text), [](boost::system::error_code, std::size_t) {});
  });
  mailbox<int> box(loop);
  scope stage(loop);
  run_until(loop, [&] { return done; });
  CHECK(std::string(received.data(), received.size()) == text);
}

TEST_CASE("the reactor shares a caller's io_context and leaves it usable") {
  asio::io_context io;
  bool handled = false;
  {
    reactor loop(io, hasty);
    CHECK(&loop.io() == &io);
    asio::post(io, [&] { handled = true; });
    run_until(loop, [&] { return handled; });
    run(loop, time_slept(loop, 1_ms));
    // A handler of the caller's ends the sleep, so the reactor's own handler is still waiting at that time.
    const auto slept_before = loop.statistics().sleeps;
    std::chrono::milliseconds span{2};
    for (; loop.statistics().sleeps == slept_before && span < std::chrono::seconds(60); span *= 2) {
      handled = false;
      asio::steady_timer timer(io, span);
      timer.async_wait([&](boost::system::error_code) { handled = true; });
      run_until(loop, [&] { return handled; });
    }
    CHECK(loop.statistics().sleeps > slept_before);
  }
  // The reactor's handlers must have ended without the reactor.
  io.restart();
  io.run();
  handled = false;
  asio::post(io, [&] { handled = true; });
  io.restart();
  io.run();
  CHECK(handled);
}

TEST_CASE("a reactor with ready coroutines still polls its pollers") {
  reactor loop;
  fake_poller transport;
  loop.attach(transport);
  scope stage(loop);
  stage.spawn([](fake_poller& t) -> task<> {
    t.happen();
    while (t.seen == 0) co_await yield;
  }(transport));
  run_until(loop, [&] { return stage.running() == 0; });
  CHECK(transport.seen == 1);
}

TEST_CASE("a deadline counts from the current time, even if its coroutine has computed since its turn began") {
  reactor loop;
  run(loop, [](executor& ex) -> task<> {
    for (const time_ns span : {0_ns, 1_us, 5_ms, 1_s}) {
      compute_for(ex, 2_ms);
      const time_ns then = ex.precise_now();
      CHECK(ex.deadline_in(span) >= then + span - span / 1'000);
    }
    CHECK(ex.deadline_in(never) == never);
    compute_for(ex, 2_ms);
    const time_ns then = ex.precise_now();
    auto slept = co_await sleep_for(1ms);
    slept.value();
    CHECK(ex.precise_now() >= then + 1_ms);
  }(loop));
}

TEST_CASE("after a long computation the reactor delivers waiting messages before time-outs end the waits for them") {
  // One message per poll; the loop reads its clock before it has received them all.
  constexpr int messages = 300;
  struct backlog final : fake_poller {
    explicit backlog(mailbox<int>& to) : box(to) {}
    bool poll() override {
      if (next == last) return false;
      ++next;
      CHECK(box.deliver(int{next}) == errc::none);
      return true;
    }
    mailbox<int>& box;
    int next = 0;
    int last = 0;
  };
  reactor loop;
  mailbox<int> box(loop);
  backlog transport(box);
  loop.attach(transport);
  errc outcome = errc::pending;
  scope stage(loop);
  stage.spawn([](mailbox<int>& from, errc& o) -> task<> {
    const auto is_last = [](const int& m) { return m == messages; };
    auto m = co_await from.receive<int>(is_last, from.where().deadline_in(5_ms));
    o = m.code();
  }(box, outcome));
  stage.spawn([](executor& ex, backlog& all) -> task<> {
    all.last = messages;
    compute_for(ex, 150_ms);
    co_return;
  }(loop, transport));
  run_until(loop, [&] { return stage.running() == 0; });
  CHECK(outcome == errc::none);
  loop.detach(transport);
}

TEST_CASE("time-outs fire after a long computation even if a poller finds something at each turn") {
  struct busy final : fake_poller {
    bool poll() override { return true; }
  } transport;
  reactor loop;
  mailbox<int> box(loop);
  loop.attach(transport);
  scope stage(loop);
  stage.spawn([](executor& ex) -> task<> {
    compute_for(ex, 10_ms);
    co_return;
  }(loop));
  CHECK(run(loop, receive_one(box, loop.deadline_in(5_ms))) == errc::timeout);
  loop.detach(transport);
}

TEST_CASE("the native handle becomes readable for timers and sockets that only Asio waits for") {
  reactor loop;
  until_armed(loop);
  std::shared_ptr<asio::steady_timer> timer;
  bool rang = false;
  start_after(loop, std::chrono::milliseconds(2), timer, rang);
  drive(loop, [&] { return rang; });
  tcp::acceptor acceptor(loop.io(), tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  tcp::socket server(loop.io());
  bool accepted = false;
  acceptor.async_accept(server, [&](boost::system::error_code failed) { accepted = !failed; });
  until_armed(loop);
  asio::io_context elsewhere;
  tcp::socket client(elsewhere);
  client.connect(acceptor.local_endpoint());
  drive(loop, [&] { return accepted; });
}

TEST_CASE("an event on a watched descriptor makes the native handle readable") {
  reactor loop;
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  loop.watch([fd] { return std::vector{fd}; });
  until_armed(loop);
  CHECK_FALSE(readable(loop.native_handle(), 0));
  const std::uint64_t one = 1;
  CHECK(::write(fd, &one, sizeof one) == 8);
  CHECK(readable(loop.native_handle(), 60'000));
  ::close(fd);
  CHECK_FALSE(readable(loop.native_handle(), 0));
  CHECK_THROWS_AS(loop.watch([] { return std::vector{-1}; }), failure);
}
