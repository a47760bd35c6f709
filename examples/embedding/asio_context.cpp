// A program that lives in a Boost.Asio io_context and shares it with parley: one `io.run()` drives both.
//
//     parley run -n 2 ./asio_context
#include "neighbours.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>

using namespace parley::literals;

namespace {

/// What the program did before parley: something every millisecond.
class heartbeat {
 public:
  explicit heartbeat(boost::asio::io_context& io) : timer_(io) { next(); }
  unsigned long long beats = 0;

 private:
  void next() {
    timer_.expires_after(std::chrono::milliseconds(1));
    timer_.async_wait([this](boost::system::error_code stopped) {
      if (stopped) return;
      ++beats;
      next();
    });
  }
  boost::asio::steady_timer timer_;
};

int serve() {
  boost::asio::io_context io;
  parley::job here(io);  // meets the other ranks, which takes until the last one has come
  heartbeat own(io);

  here.loop().follow_io();
  parley::work<> exchanged =
      parley::start(here.loop(), neighbours::exchange(here.self()), {.timeout = 30s, .on_end = [&] { io.stop(); }});
  io.run();  // the program's handlers and parley's actors, in turns

  exchanged.wait();  // it has ended; this throws what it threw
  neighbours::report(here.self(), "the io_context", own.beats);
  here.leave();  // without it the others would be told that this rank died
  return 0;
}

}  // namespace

int main() {
  try {
    return serve();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
