// A program with its own epoll loop, which also serves parley and sleeps when neither has anything to do.
//
//     parley run -n 2 ./epoll_loop
//
// The rule: call `poll` until it returns `armed`, then sleep. From then on `native_handle` becomes readable as soon
// as parley has work, be it a message, a timer or the death of a rank. In this program nothing else ends the sleep,
// so a missed wake-up would make it hang.
#include "neighbours.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

namespace {

/// The program's own loop: an epoll descriptor that watches everything the program waits for.
class own_loop {
 public:
  own_loop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw std::runtime_error("the epoll loop cannot be made");
  }
  own_loop(const own_loop&) = delete;
  own_loop& operator=(const own_loop&) = delete;
  ~own_loop() { ::close(epoll_); }
  void add(int descriptor) {
    epoll_event interest{};
    interest.events = EPOLLIN;
    interest.data.fd = descriptor;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &interest) != 0)
      throw std::runtime_error("epoll cannot watch the descriptor");
  }
  void sleep() {
    std::array<epoll_event, 8> events{};
    static_cast<void>(::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1));
    ++rounds;
  }
  unsigned long long rounds = 0;

 private:
  int epoll_;
};

void serve(parley::job& here) {
  own_loop loop;
  loop.add(here.loop().native_handle());
  parley::work<> exchanged = parley::start(here.loop(), neighbours::exchange(here.self()));

  while (!exchanged.done()) {
    if (here.loop().poll() == parley::runtime::reactor::readiness::armed) loop.sleep();
  }
  exchanged.wait();
  neighbours::report(here.self(), "the epoll loop", loop.rounds);
}

}  // namespace

int main() { return parley::run(serve); }
