// A program that runs on a Boost.Asio io_context and shares it with parley: one `io.run()` drives both.
//
//     parley run -n 2 ./asio_context
#include "neighbours.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>

using namespace parley::literals;

namespace {

/// The program's own work: a timer handler that runs every millisecond.
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
  parley::job here(io);  // blocks until all ranks have joined
  heartbeat own(io);

  here.loop().follow_io();
  parley::work<> exchanged =
      parley::start(here.loop(), neighbours::exchange(here.self()), {.timeout = 30s, .on_end = [&] { io.stop(); }});
  io.run();  // runs the program's handlers and parley's actors in turns

  exchanged.wait();  // already done; rethrows what the exchange threw, if anything
  neighbours::report(here.self(), "the io_context", own.beats);
  here.leave();  // otherwise the other ranks would consider this one dead
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
