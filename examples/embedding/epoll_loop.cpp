// A program with an epoll loop of its own, which also serves parley and sleeps when nobody has anything to do.
//
//     parley run -n 2 ./epoll_loop
//
// The rule: poll until the answer is `armed`, then sleep. From then on `native_handle` becomes readable as soon as there is
// work, whatever it is: a message, a timer, a death.
#include "neighbours.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

namespace {

/// What the program had before parley: an epoll descriptor and a timer that ticks every millisecond.
class own_loop {
 public:
  own_loop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
    itimerspec every_ms{};
    every_ms.it_interval.tv_nsec = every_ms.it_value.tv_nsec = 1'000'000;
    if (epoll_ < 0 || timer_ < 0 || ::timerfd_settime(timer_, 0, &every_ms, nullptr) != 0)
      throw std::runtime_error("the epoll loop cannot be made");
    add(timer_);
  }
  own_loop(const own_loop&) = delete;
  own_loop& operator=(const own_loop&) = delete;
  ~own_loop() {
    ::close(timer_);
    ::close(epoll_);
  }
  void add(int descriptor) {
    epoll_event interest{};
    interest.events = EPOLLIN;
    interest.data.fd = descriptor;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &interest) != 0)
      throw std::runtime_error("epoll cannot watch the descriptor");
  }
  void sleep() {
    std::array<epoll_event, 8> events{};
    const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {
      std::uint64_t expired = 0;
      if (events[static_cast<std::size_t>(i)].data.fd == timer_ && ::read(timer_, &expired, sizeof expired) > 0)
        ticks += expired;
    }
  }
  unsigned long long ticks = 0;

 private:
  int epoll_;
  int timer_;
};

void serve(parley::job& here) {
  own_loop loop;
  loop.add(here.loop().native_handle());
  parley::work<> exchanged = parley::start(here.loop(), neighbours::exchange(here.self()));

  while (!exchanged.done()) {
    if (here.loop().poll() == parley::runtime::reactor::readiness::armed) loop.sleep();
  }
  exchanged.wait();
  neighbours::report(here.self(), "the epoll loop", loop.ticks);
}

}  // namespace

int main() { return parley::run(serve); }
