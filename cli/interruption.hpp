#pragma once
/// Ctrl-C during `parley tune`: SIGINT and SIGTERM end the work, not the process, so that its results are kept.
///
///     interruption stopped(loop.io(), [&] { work.stop(); }, [&](int signal) { report(); });
///     runtime::run(loop, work.run());            // throws `cancelled`
///     if (stopped.signal() != 0) …               // and the status is 128 + that
///
/// Work may be unable to stop, because a transport has its buffers and the other end does not stop either. It gets one second; then
/// `last_words` is called, and the process ends.
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <utility>

namespace parley::cli {

inline constexpr int status_of_signal(int signal) noexcept { return 128 + signal; }

class interruption {
 public:
  interruption(boost::asio::io_context& io, std::function<void()> stop, std::function<void(int signal)> last_words)
      : io_(io), signals_(io, SIGINT, SIGTERM), patience_(io) {
    signals_.async_wait([this, stop = std::move(stop), last = std::move(last_words)](auto ended, int signal) {
      if (ended) return;
      signal_ = signal;
      patience_.expires_after(std::chrono::seconds(1));
      patience_.async_wait([signal, last](auto cancelled) {
        if (cancelled) return;
        last(signal);
        std::_Exit(status_of_signal(signal));
      });
      stop();
    });
  }
  interruption(const interruption&) = delete;
  interruption& operator=(const interruption&) = delete;

  /// The signal that arrived, or 0. Polls once more: the signal may have ended other ranks of the job before it reached this one.
  int signal() {
    if (signal_ == 0) io_.poll();
    return signal_;
  }

 private:
  boost::asio::io_context& io_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer patience_;
  int signal_ = 0;
};

}  // namespace parley::cli
