// The wire between two network namespaces, for tests. It reads the packets that one namespace sends through a TUN device, and writes them
// into the other's device: late, in another order, or not at all.
//
//     forwarder SPACE_A SPACE_B [--delay_us 200] [--jitter_us 0] [--drop 0] [--reorder 0] [--seed 1]
//
// `--drop` and `--reorder` are in packets per thousand; a reordered packet takes three times as long as the others. The random choices
// depend on the seed and the number of packets so far. Prints "ready" when both devices, `parley0`, are there, and runs until it is
// killed or its standard input ends. Exits with 77 if it may not make the devices.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <queue>
#include <string>
#include <utility>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int not_here = 77;
constexpr std::size_t longest_packet = 65'536;
// in flight; further packets are dropped, so that the wire never buffers without a limit
constexpr std::size_t most_packets = 100'000;

struct settings {
  std::int64_t delay_us = 200;
  std::int64_t jitter_us = 0;
  std::uint64_t drop = 0;
  std::uint64_t reorder = 0;
  std::uint64_t seed = 1;
};

struct packet {
  clock_type::time_point due;
  std::uint64_t number;
  int to;
  std::vector<char> bytes;
  bool operator>(const packet& other) const { return std::pair(due, number) > std::pair(other.due, other.number); }
};

[[noreturn]] void give_up(int status, const std::string& what) {
  std::fprintf(stderr, "forwarder: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(status);
}

int device_in(const std::string& space) {
  const std::string path = "/var/run/netns/" + space;
  const int in = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (in < 0) give_up(1, path);
  if (::setns(in, CLONE_NEWNET) != 0) give_up(not_here, "this user may not enter " + path);
  ::close(in);
  const int made = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (made < 0) give_up(not_here, "/dev/net/tun");
  ifreq wanted{};
  wanted.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(wanted.ifr_name, "parley0", sizeof wanted.ifr_name - 1);
  if (::ioctl(made, TUNSETIFF, &wanted) != 0) give_up(not_here, "a TUN device in " + path);
  return made;
}

/// The n-th number of a seed (SplitMix64).
std::uint64_t mixed(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t x = seed * 0x2545f4914f6cdd1dU + n * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

class wire {
 public:
  wire(int a, int b, settings s) : devices_{a, b}, settings_(s) {}
  [[noreturn]] void run() {
    for (;;) {
      std::array<pollfd, 3> asked{{{devices_[0], POLLIN, 0}, {devices_[1], POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
      timespec left{1, 0};
      if (!on_the_way_.empty()) {
        const auto ns =
            std::max<std::int64_t>(0, (on_the_way_.top().due - clock_type::now()) / std::chrono::nanoseconds(1));
        left = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
      }
      if (::ppoll(asked.data(), asked.size(), &left, nullptr) < 0 && errno != EINTR) give_up(1, "ppoll");
      if (asked[2].revents != 0) std::exit(0);
      for (std::size_t from = 0; from < 2; ++from)
        if (asked[from].revents != 0) take_from(from);
      deliver();
    }
  }

 private:
  void take_from(std::size_t from) {
    std::array<char, longest_packet> buffer;
    for (;;) {
      const ssize_t n = ::read(devices_[from], buffer.data(), buffer.size());
      if (n <= 0) return;
      const std::uint64_t number = ++passed_;
      if (mixed(settings_.seed, 3 * number) % 1000 < settings_.drop || on_the_way_.size() >= most_packets) continue;
      auto takes = microseconds(settings_.delay_us);
      if (settings_.jitter_us > 0) {
        takes += microseconds(static_cast<std::int64_t>(mixed(settings_.seed, 3 * number + 1) %
                                                        static_cast<std::uint64_t>(settings_.jitter_us)));
      }
      if (mixed(settings_.seed, 3 * number + 2) % 1000 < settings_.reorder) takes *= 3;
      on_the_way_.push({clock_type::now() + takes, number, devices_[1 - from], {buffer.data(), buffer.data() + n}});
    }
  }
  // A packet that the device does not accept is lost, as on any wire.
  void deliver() {
    while (!on_the_way_.empty() && on_the_way_.top().due <= clock_type::now()) {
      const packet& next = on_the_way_.top();
      if (::write(next.to, next.bytes.data(), next.bytes.size()) < 0 && errno != EAGAIN && errno != EIO &&
          errno != EINVAL)
        give_up(1, "write");
      on_the_way_.pop();
    }
  }

  std::array<int, 2> devices_;
  settings settings_;
  std::uint64_t passed_ = 0;
  std::priority_queue<packet, std::vector<packet>, std::greater<>> on_the_way_;
};

}  // namespace

int main(int argc, char** argv) {
  settings s;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const long long value = std::atoll(argv[i + 1]);
    if (name == "--delay_us")
      s.delay_us = value;
    else if (name == "--jitter_us")
      s.jitter_us = value;
    else if (name == "--drop")
      s.drop = static_cast<std::uint64_t>(value);
    else if (name == "--reorder")
      s.reorder = static_cast<std::uint64_t>(value);
    else if (name == "--seed")
      s.seed = static_cast<std::uint64_t>(value);
    else
      argc = 0;
  }
  if (argc < 3 || argc % 2 == 0) {
    std::fprintf(stderr,
                 "forwarder SPACE_A SPACE_B [--delay_us N] [--jitter_us N] [--drop N] [--reorder N] [--seed N]\n");
    return 2;
  }
  const int a = device_in(argv[1]);
  const int b = device_in(argv[2]);
  std::puts("ready");
  std::fflush(stdout);
  wire(a, b, s).run();
}
