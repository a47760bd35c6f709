// The wait for the other ranks of a job, which Ctrl-C ends.
#include "ranks.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>

namespace parley::python {

namespace {

struct interrupted {};

/// The loop of a rank does not exist before the rank has joined, so a timer on its io_context looks for signals.
struct watched_context {
  void watch() {
    constexpr std::chrono::milliseconds between_looks(20);
    timer.expires_after(between_looks);
    timer.async_wait([this](boost::system::error_code cancelled) {
      if (cancelled) return;
      const nb::gil_scoped_acquire held;
      if (PyErr_CheckSignals() != 0) throw interrupted{};
      watch();
    });
  }
  boost::asio::io_context io{1};
  boost::asio::steady_timer timer{io};
};

}  // namespace

std::unique_ptr<ops::job> join_interruptibly(const ops::job_options& o, std::shared_ptr<void>& context) {
  const auto made = std::make_shared<watched_context>();
  context = made;
  try {
    const nb::gil_scoped_release free;
    made->watch();
    auto joined = std::make_unique<ops::job>(made->io, o);
    made->timer.cancel();
    return joined;
  } catch (const interrupted&) {
    throw nb::python_error();
  }
}

}  // namespace parley::python
