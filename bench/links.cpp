// Latency from coroutine to coroutine between two processes over UCX, with a reactor on Asio, a link and an actor on
// each side. The counterpart of peers/ucx_raw.cpp, which makes the same UCX calls in a bare loop.
//
//     links --only pingpong [--iterations N]     two processes on two cores: ns one way
//     links --only one_core                      both on one core, yielding to each other
//     links --only control                       what routing and authenticating each frame adds to that, ns one way
//     links --only idle [--seconds 1]            per cent of a core that a rank without work uses
#include <parley/actor.hpp>
#include <parley/bench/measure.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transports/join/siphash.hpp>
#include <parley/transports/ucx/ucx_link.hpp>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;
using parley::transports::siphash;
using parley::transports::ucx_link;

struct ball {
  static constexpr std::uint16_t message_type = 60;
  std::uint64_t value = 0;
  PARLEY_FIELDS(value)
};
constexpr std::uint64_t player_actor = 8;
constexpr std::int64_t block = 500;

// One of the two processes.
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
};

// Plain messages: the link's handler fills an actor's mailbox, and the actor replies over the link.
class plain_table final : public link::handler {
 public:
  explicit plain_table(side& mine) : mine_(mine) {}
  ~plain_table() { mine_.link.listen(link::channel::data, nullptr); }
  void open_for(address<ball> player) {
    player_ = std::move(player);
    mine_.link.listen(link::channel::data, this);
  }
  errc send(ball b) {
    return mine_.link.send(mine_.peer, link::channel::data, header_, std::as_bytes(std::span(&b.value, 1)), nullptr);
  }

 private:
  void on_arrival(arrival&& message) noexcept override {
    ball b;
    if (message.header().size() != header_.size() || message.payload().size() != sizeof b.value) return;
    std::memcpy(&b.value, message.payload().data(), sizeof b.value);
    player_.try_send(b);
  }
  side& mine_;
  address<ball> player_;
  std::array<std::byte, 64> header_{};
};

// Control messages: routed, numbered, and sealed with a tag that the other side verifies.
class sealed_table {
 public:
  explicit sealed_table(side& mine) : mine_(mine), mail_(mine.loop, mine.link, {.job = 1, .seal = {&tag, &keyed_}}) {}
  void open_for(const address<ball>& player) {
    mail_.bind<ball>(player_actor, [player](envelope, ball&& m) { return player.try_send(m); });
  }
  errc send(ball b) { return mail_.send(mine_.peer, player_actor, 0, b); }

 private:
  static std::uint64_t tag(void* keyed, std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
    return static_cast<siphash*>(keyed)->tag(header, body);
  }
  side& mine_;
  siphash keyed_{std::span<const std::byte, siphash::key_bytes>(std::array<std::byte, siphash::key_bytes>{})};
  router mail_;
};

// Measures blocks of messages and uses their median, so that a block in which another process had the core does not
// count.
template <class Table>
task<> serve(actor<ball>& self, Table& table, std::int64_t blocks, std::vector<double>& into) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t start = now_ns();
    for (std::int64_t n = 0; n < block; ++n) {
      if (table.send({std::uint64_t(n)}) != errc::none) give_up("a message could not be sent");
      auto m = co_await self.receive();
      if (!m) co_return;
    }
    into.push_back(double(now_ns() - start) / double(2 * block));
  }
}

template <class Table>
task<> answer(actor<ball>& self, Table& table, std::int64_t blocks) {
  for (std::int64_t n = 0; n < blocks * block; ++n) {
    auto m = co_await self.receive();
    if (!m) co_return;
    if (table.send({m->value + 1}) != errc::none) give_up("a message could not be sent");
  }
}

template <class Table>
double one_way_ns(side& mine, bool first, std::int64_t iterations) {
  const std::int64_t blocks = std::max<std::int64_t>(2, iterations / block);
  std::vector<double> found;
  Table table(mine);
  scope root(mine.loop);
  const address<ball> player = first ? spawn_actor<ball>(root, serve<Table>, table, blocks, found)
                                     : spawn_actor<ball>(root, answer<Table>, table, blocks);
  table.open_for(player);
  run_until(mine.loop, [&] { return root.running() == 0; });
  return first ? median(found) : 0;
}

task<> doze(reactor& loop, std::int64_t seconds) {
  auto woken = co_await sleep_until(loop.deadline_in(seconds * 1'000'000'000));
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
      const double ns = one_way_ns<plain_table>(mine, first, given.number("iterations", 300'000));
      if (first) report("ucx_pingpong_8B", ns, "ns");
    } else if (one_core) {
      const double ns = one_way_ns<plain_table>(mine, first, given.number("iterations", 50'000));
      if (first) report("ucx_pingpong_one_core", ns, "ns");
    } else if (only == "control") {
      const std::int64_t iterations = given.number("iterations", 300'000);
      const double plain = one_way_ns<plain_table>(mine, first, iterations);
      const double sealed = one_way_ns<sealed_table>(mine, first, iterations);
      if (first) report("ucx_control_added", sealed - plain, "ns");
    } else if (only == "idle") {
      one_way_ns<plain_table>(mine, first, block);
      const double percent = core_share_percent(mine, given.number("seconds", 1));
      if (first) report("ucx_idle_cpu", percent, "percent");
    } else {
      give_up("--only takes pingpong, one_core, control or idle, not " + only);
    }
    char bye = 0;
    exchange(socket, &bye, 1, &bye, 1);  // keeps both endpoints alive until the last message has arrived
  }
  if (!first) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
