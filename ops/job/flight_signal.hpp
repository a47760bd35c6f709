#pragma once
/// Writes the flight recorder on SIGUSR1, for a program that seems to hang: `kill -USR1 PID`.
///
///     flight_signal on_signal(loop.io(), [&] { self.dump_flight("signal SIGUSR1"); });
///
/// The signal only wakes the loop. The rank's own thread makes the text, between coroutines. If the program has its own handler for
/// SIGUSR1, or ignores the signal, this object changes nothing and does nothing. One per process; the handler ends with the object.
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include <functional>
#include <optional>

namespace parley::ops {

class flight_signal {
 public:
  flight_signal(boost::asio::io_context& io, std::function<void()> dump);
  flight_signal(const flight_signal&) = delete;
  flight_signal& operator=(const flight_signal&) = delete;

 private:
  void wait();
  std::function<void()> dump_;
  std::optional<boost::asio::signal_set> signals_;
};

}  // namespace parley::ops
