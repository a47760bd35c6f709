#include <parley/ops/job/flight_signal.hpp>

#include <csignal>
#include <utility>

namespace parley::ops {

namespace {

bool is_left_to_us() noexcept {
  struct sigaction now{};
  return ::sigaction(SIGUSR1, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
}

}  // namespace

flight_signal::flight_signal(boost::asio::io_context& io, std::function<void()> dump) : dump_(std::move(dump)) {
  if (!is_left_to_us()) return;
  signals_.emplace(io, SIGUSR1);
  wait();
}

void flight_signal::wait() {
  signals_->async_wait([this](const boost::system::error_code& ended, int) {
    if (ended) return;
    dump_();
    wait();
  });
}

}  // namespace parley::ops
