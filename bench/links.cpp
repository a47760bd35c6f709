// Coroutine to coroutine between two processes over UCX: a reactor with Asio, a link, a router and an actor on each side.
// The counterpart of peers/ucx_raw.cpp, which makes the same UCX calls in a bare loop.
//
//     links --only pingpong [--iterations N]     two processes on two cores: ns one way
//     links --only one_core                      both on one core, giving way
//     links --only control                       what authenticating each frame adds to that, ns one way
//     links --only idle [--seconds 1]            per cent of a core that a rank without work uses
#include <parley/bench/measure.hpp>
#include <parley/runtime/actor.hpp>
#include <parley/runtime/reactor.hpp>
#include <parley/runtime/router.hpp>
#include <parley/runtime/run.hpp>
#include <parley/transports/siphash.hpp>
#include <parley/transports/ucx_link.hpp>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;
using parley::transports::siphash;
using parley::transports::ucx_link;

struct ball {
  static constexpr std::uint16_t message_type = 100;
  std::uint64_t value = 0;
  PARLEY_FIELDS(value)
};
constexpr std::uint64_t player_actor = 8;
constexpr std::int64_t block = 500;

// Seals the frames of every other block of round trips; both sides count them, so they always agree.
struct switched_seal {
  static std::uint64_t tag(void* self, std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
    auto& seal = *static_cast<switched_seal*>(self);
    return seal.on ? seal.keyed.tag(header, body) : 0;
  }
  siphash keyed{std::span<const std::byte, siphash::key_bytes>(std::array<std::byte, siphash::key_bytes>{})};
  bool on = false;
};

void exchange(int socket, const void* out, std::size_t out_size, void* in, std::size_t in_size) {
  if (write(socket, out, out_size) != ssize_t(out_size)) give_up("the other process is gone");
  for (std::size_t got = 0; got < in_size;) {
    const ssize_t n = read(socket, static_cast<char*>(in) + got, in_size - got);
    if (n <= 0) give_up("the other process is gone");
    got += std::size_t(n);
  }
}

// One process.
class side {
 public:
  side(rank_id me, int socket, reactor::sharing cores)
      : loop(reactor::options{.cores = cores}), link({.rank = me, .world_size = 2}), peer(1 - me) {
    const std::vector<std::byte> mine = link.address();
    const std::size_t size = mine.size();
    std::size_t their_size = 0;
    exchange(socket, &size, sizeof size, &their_size, sizeof their_size);
    std::vector<std::byte> theirs(their_size);
    exchange(socket, mine.data(), size, theirs.data(), their_size);
    link.connect(peer, theirs);
    loop.attach(link);
  }
  side(const side&) = delete;
  side& operator=(const side&) = delete;
  ~side() { loop.detach(link); }

  reactor loop;
  ucx_link link;
  rank_id peer;
  switched_seal seal;
};

struct measured {
  std::vector<double> plain;
  std::vector<double> sealed;
};

// The median of blocks counts, so that one in which somebody else had the core does not.
task<> serve(actor<ball>& self, router& mail, side& mine, std::int64_t blocks, bool switching, measured& into) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    mine.seal.on = switching && b % 2 == 1;
    const std::int64_t start = now_ns();
    for (std::int64_t n = 0; n < block; ++n) {
      const ball sent{std::uint64_t(n)};
      if (mail.send(mine.peer, player_actor, 0, sent) != errc::none) give_up("a frame could not be sent");
      auto m = co_await self.receive();
      if (!m) co_return;
    }
    (mine.seal.on ? into.sealed : into.plain).push_back(double(now_ns() - start) / double(2 * block));
  }
}

task<> answer(actor<ball>& self, router& mail, side& mine, std::int64_t blocks, bool switching) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    mine.seal.on = switching && b % 2 == 1;
    for (std::int64_t n = 0; n < block; ++n) {
      auto m = co_await self.receive();
      if (!m) co_return;
      const ball back{m->value + 1};
      if (mail.send(mine.peer, player_actor, 0, back) != errc::none) give_up("a frame could not be sent");
    }
  }
}

measured round_trips(side& mine, bool first, std::int64_t iterations, bool switching) {
  const std::int64_t blocks = std::max<std::int64_t>(2, iterations / block);
  measured found;
  const frame_seal seal = switching ? frame_seal{&switched_seal::tag, &mine.seal} : frame_seal{};
  router mail(mine.loop, mine.link, {.job = 1, .seal = seal});
  scope root(mine.loop);
  const address<ball> player = first ? spawn_actor<ball>(root, serve, mail, mine, blocks, switching, found)
                                     : spawn_actor<ball>(root, answer, mail, mine, blocks, switching);
  mail.bind<ball>(player_actor, [player](envelope, ball&& m) { return player.try_send(std::move(m)); });
  run_until(mine.loop, [&] { return root.running() == 0; });
  return found;
}

task<> doze(reactor& loop, std::int64_t seconds) {
  auto woken = co_await sleep_until(loop.now() + seconds * 1'000'000'000);
  if (!woken) give_up("the sleep was cancelled");
}

double core_share_percent(side& mine, std::int64_t seconds) {
  const auto cpu_ns = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return 1e9 * double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e3 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  };
  const double cpu_before = cpu_ns();
  const std::int64_t before = now_ns();
  run(mine.loop, doze(mine.loop, seconds));
  return 100 * (cpu_ns() - cpu_before) / double(now_ns() - before);
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "pingpong");
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) give_up("socketpair failed");
  const pid_t child = fork();
  if (child < 0) give_up("fork failed");
  const bool first = child != 0;
  if (!first) die_with_parent();
  const int socket = sockets[first ? 0 : 1];
  close(sockets[first ? 1 : 0]);
  const bool one_core = only == "one_core";
  pin_to_core(first || one_core ? 0 : 1);
  {
    side mine(first ? 0 : 1, socket, one_core ? reactor::sharing::shared_core : reactor::sharing::own_core);
    if (only == "pingpong") {
      const measured found = round_trips(mine, first, given.number("iterations", 300'000), false);
      if (first) report("ucx_pingpong_8B", median(found.plain), "ns");
    } else if (one_core) {
      const measured found = round_trips(mine, first, given.number("iterations", 50'000), false);
      if (first) report("ucx_pingpong_one_core", median(found.plain), "ns");
    } else if (only == "control") {
      const measured found = round_trips(mine, first, given.number("iterations", 300'000), true);
      if (first) report("ucx_control_added", median(found.sealed) - median(found.plain), "ns");
    } else if (only == "idle") {
      round_trips(mine, first, block, false);
      const double percent = core_share_percent(mine, given.number("seconds", 1));
      if (first) report("ucx_idle_cpu", percent, "percent");
    } else {
      give_up("--only takes pingpong, one_core, control or idle, not " + only);
    }
    char bye = 0;
    exchange(socket, &bye, 1, &bye, 1);  // neither side takes its endpoint away from the other's last message
  }
  if (!first) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
