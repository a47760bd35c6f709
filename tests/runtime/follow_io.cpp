#include <parley/tests/support/deadline.hpp>

#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/work.hpp>

#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

using namespace parley;
using namespace parley::runtime;

namespace {

namespace asio = boost::asio;

task<> sleeps(int times) {
  scope& here = co_await this_scope;
  for (int i = 0; i < times; ++i) {
    auto woken = co_await sleep_until(here.where().deadline_in(1_ms));
    woken.value();
  }
}

/// Stops the context when a test hangs.
struct bounded {
  explicit bounded(asio::io_context& io) : limit(io, tests::long_enough) {
    limit.async_wait([&io, this](boost::system::error_code stopped) {
      late = !stopped;
      if (late) io.stop();
    });
  }
  asio::steady_timer limit;
  bool late = false;
};

}  // namespace

TEST_CASE("one io_context drives a program's handlers and the actors of a reactor that follows it") {
  asio::io_context io;
  reactor loop(io, {});
  loop.follow_io();
  bounded in_time(io);
  int beats = 0;
  bool ended = false;
  asio::steady_timer beat(io);
  std::function<void()> next = [&] {
    beat.expires_after(std::chrono::milliseconds(1));
    beat.async_wait([&](boost::system::error_code) {
      ++beats;
      if (ended) return io.stop();
      next();
    });
  };
  next();
  const work<> w = start(loop, sleeps(5), {.on_end = [&] { ended = true; }});
  io.run();
  CHECK_FALSE(in_time.late);
  CHECK(w.done());
  CHECK(beats > 0);
}

TEST_CASE("a reactor that follows an io_context sleeps when idle, and a post wakes it") {
  asio::io_context io;
  reactor loop(io, {.longest_spin_ns = 1'000, .safety_tick_ns = 20_s});
  loop.follow_io();
  bounded in_time(io);
  // Runs every handler that can run at once; after that the reactor waits on its descriptor.
  while (loop.statistics().sleeps == 0 && !in_time.late) io.poll();
  CHECK(io.poll() == 0);
  bool seen = false;
  std::thread other([&] {
    loop.post([&] {
      seen = true;
      io.stop();
    });
  });
  io.run();
  other.join();
  CHECK_FALSE(in_time.late);
  CHECK(seen);
}

TEST_CASE("an io_context runs out of work when its reactor has stopped following, or is destroyed") {
  asio::io_context io;
  auto loop = std::make_unique<reactor>(io, reactor::options{});
  loop->follow_io();
  loop->post([&] { loop->stop_following(); });
  io.run();
  io.restart();
  loop->follow_io();
  loop->follow_io();
  io.poll();
  loop.reset();
  io.restart();
  io.run();
  CHECK(io.stopped());
}
