// Both GPUs of a pair move device memory: two ranks of one process, polled by hand.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/devices/fake_nccl.hpp>
#include <parley/tests/support/link_over.hpp>

#include <doctest/doctest.h>
#include <parley/config.hpp>
#include <parley/cuda_link.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <array>
#include <memory>
#include <vector>

namespace {

using namespace parley;
using namespace parley::tests;
using runtime::errc;
using runtime::rank_id;
using transports::cuda_memory;
using transports::nccl_pairs;

/// A link that can hold back messages of the devices' channel, so that other messages overtake them.
class slow_link final : public link_over {
 public:
  explicit slow_link(runtime::link& below) : link_over(below) {}
  bool keeps = false;
  bool drops = false;
  /// Releases the held messages, the latest first.
  void let_go() {
    keeps = false;
    while (!kept_.empty()) {
      auto last = std::move(kept_.back());
      kept_.pop_back();
      CHECK(below_.send(last.to, channel::devices, last.header, last.payload, nullptr) == errc::none);
    }
  }
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            runtime::completion* done) override {
    if (drops && on == channel::devices) return errc::none;
    if (!keeps || on != channel::devices) return below_.send(to, on, header, payload, done);
    kept_.push_back({to, {header.begin(), header.end()}, {payload.begin(), payload.end()}});
    return errc::none;
  }
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override {
    return below_.expose(memory);
  }

 private:
  struct kept {
    rank_id to;
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
  };
  std::vector<kept> kept_;
};

runtime::time_ns clock_ns = 0;

/// Rank 1 reads memory that rank 0 owns.
struct two_gpus {
  two_gpus() : world(2) {
    clock_ns = 1'000'000;
    for (rank_id r = 0; r < 2; ++r) {
      slow.push_back(std::make_unique<slow_link>(world[r]));
      copies.push_back(std::make_unique<transports::cuda_copies>(gpu, 0));
      transports::cuda_link::options o;
      o.nccl = &library;
      o.pairs.patience_ns = 1'000;
      o.pairs.clock = [] { return clock_ns; };
      links.push_back(std::make_unique<transports::cuda_link>(*slow.back(), *copies.back(), o));
    }
  }
  ~two_gpus() { links.clear(); }
  nccl_pairs& of(rank_id r) { return *links[r]->nccl(); }
  void turn() {
    world.poll();
    for (rank_id r = 0; r < 2; ++r) {
      copies[r]->poll();
      if (links[r] != nullptr) of(r).poll();
    }
  }
  void turn_until(const std::function<bool()>& over) {
    for (int i = 0; i < 10'000 && !over(); ++i) turn();
    CHECK(over());
  }
  cuda_memory memory(std::size_t bytes, unsigned seed) {
    auto made = cuda_memory::on_device(gpu, 0, bytes);
    fill(gpu, made.bytes(), seed);
    return made;
  }
  errc get(const runtime::exposed_memory& from, std::span<std::byte> into, awaited& done) {
    return links[1]->joint_get(0, {from.key, reinterpret_cast<std::uint64_t>(from.bytes.data())}, into, &done);
  }

  fake_cuda gpu;
  fake_nccl library{gpu};
  transports::process_world world;
  std::vector<std::unique_ptr<slow_link>> slow;
  std::vector<std::unique_ptr<transports::cuda_copies>> copies;
  std::vector<std::unique_ptr<transports::cuda_link>> links;
};

/// Rank 1 has read the memory once already, so the two GPUs are connected.
struct read_once : two_gpus {
  read_once() {
    awaited first;
    CHECK(get(ends.known, ends.to.bytes(), first) == errc::pending);
    turn_until([&] { return first.calls == 1; });
  }
  struct both_ends {
    cuda_memory from;
    cuda_memory to;
    runtime::exposed_memory known;
  } ends = exposed();

 private:
  both_ends exposed() {
    both_ends made{memory(1'000, 1), memory(1'000, 0), {}};
    made.known = links[0]->expose(made.from.bytes()).value();
    return made;
  }
};

TEST_CASE("requests that arrive out of order are served in the order of the receives") {
  two_gpus w;
  const auto a = w.memory(1'000, 1);
  const auto b = w.memory(2'000, 2);
  const auto to_a = w.memory(1'000, 0);
  const auto to_b = w.memory(2'000, 0);
  const auto known_a = w.links[0]->expose(a.bytes()).value();
  const auto known_b = w.links[0]->expose(b.bytes()).value();
  awaited opens;
  CHECK(w.get(known_a, to_a.bytes(), opens) == errc::pending);
  w.turn_until([&] { return opens.calls == 1; });
  w.slow[1]->keeps = true;
  std::array<awaited, 4> done;
  CHECK(w.get(known_a, to_a.bytes(), done[0]) == errc::pending);
  CHECK(w.get(known_b, to_b.bytes(), done[1]) == errc::pending);
  CHECK(w.get(known_b, to_b.bytes(), done[2]) == errc::pending);
  CHECK(w.get(known_a, to_a.bytes(), done[3]) == errc::pending);
  for (int i = 0; i < 50; ++i) w.turn();
  CHECK(done[0].calls == 0);
  w.slow[1]->let_go();
  w.turn_until([&] { return done[3].calls == 1; });
  for (const awaited& n : done) {
    CHECK(n.calls == 1);
    CHECK(n.outcome == errc::none);
  }
  CHECK(holds(w.gpu, to_a.bytes(), 1));
  CHECK(holds(w.gpu, to_b.bytes(), 2));
  CHECK(w.library.mismatches == 0);
  CHECK(w.of(0).statistics().sends == 5);
}

TEST_CASE("a read waits for the kernels of both sides, without blocking the host") {
  two_gpus w;
  const auto from = w.memory(1'000, 1);
  const auto to = w.memory(1'000, 0);
  const auto known = w.links[0]->expose(from.bytes()).value();
  const auto makes = w.gpu.make_stream(0);
  const auto uses = w.gpu.make_stream(0);
  bool used = false;
  w.gpu.launch(makes, 300, [&] { fill(w.gpu, from.bytes(), 7); });
  w.gpu.launch(uses, 600, [&] { used = holds(w.gpu, to.bytes(), 0); });
  CHECK(w.copies[0]->after(from.bytes(), makes) == errc::none);
  CHECK(w.copies[1]->after(to.bytes(), uses) == errc::none);
  awaited done;
  CHECK(w.get(known, to.bytes(), done) == errc::pending);
  w.turn_until([&] { return done.calls == 1; });
  CHECK(used);
  CHECK(holds(w.gpu, to.bytes(), 7));
  w.gpu.destroy(makes);
  w.gpu.destroy(uses);
}

TEST_CASE("a read whose owner never answers fails in bounded time, and the next read opens a new communicator") {
  read_once w;
  const auto& to = w.ends.to;
  const auto& known = w.ends.known;
  w.slow[1]->drops = true;
  awaited lost;
  awaited behind_it;
  CHECK(w.get(known, to.bytes(), lost) == errc::pending);
  CHECK(w.get(known, to.bytes(), behind_it) == errc::pending);
  for (int i = 0; i < 1'000; ++i) w.turn();
  CHECK(lost.calls == 0);
  w.slow[1]->drops = false;
  clock_ns += 2'000;
  w.turn_until([&] { return lost.calls == 1 && behind_it.calls == 1; });
  CHECK(lost.outcome == errc::device_failed);
  CHECK(behind_it.outcome == errc::device_failed);
  CHECK(w.of(1).statistics().why.find("rank 0: nothing has moved for") == 0);
  w.turn_until([&] { return w.of(0).statistics().aborted == 1; });  // rank 1 told rank 0
  CHECK(w.library.communicators() == 0);
  awaited again;
  CHECK(w.get(known, to.bytes(), again) == errc::pending);
  w.turn_until([&] { return again.calls == 1; });
  CHECK(again.outcome == errc::none);
  CHECK(w.of(1).statistics().communicators == 2);
}

TEST_CASE("a peer's death ends the pair's work on its GPU, and both GPUs are free again") {
  for (const rank_id dead : {0U, 1U}) {
    CAPTURE(dead);
    two_gpus w;
    const auto from = w.memory(1'000, 1);
    const auto to = w.memory(1'000, 0);
    const auto known = w.links[0]->expose(from.bytes()).value();
    const std::size_t streams = w.gpu.streams();
    const auto held_up = w.gpu.make_stream(0);
    bool go = false;
    w.gpu.launch_until(held_up, [&] { return go; });
    // One side's kernel has started; the dead side's kernel never starts.
    if (dead == 0) CHECK(w.copies[0]->after(from.bytes(), held_up) == errc::none);
    if (dead == 1) CHECK(w.copies[1]->after(to.bytes(), held_up) == errc::none);
    awaited done;
    CHECK(w.get(known, to.bytes(), done) == errc::pending);
    w.turn_until([&] { return w.of(0).statistics().sends == 1; });
    for (int i = 0; i < 100; ++i) w.turn();
    CHECK(done.calls == 0);
    w.links[1 - dead]->on_peer_failed(dead);
    if (dead == 0) {
      w.turn_until([&] { return done.calls == 1; });
      CHECK(done.outcome == errc::peer_failed);
    }
    go = true;  // the driver frees the dead rank's GPU
    w.links[dead]->on_peer_failed(1 - dead);
    w.turn_until([&] { return w.gpu.streams() == streams + 1; });
    w.gpu.destroy(held_up);
    CHECK(done.calls == 1);
    CHECK(w.library.communicators() == 0);
  }
}

TEST_CASE("cancelling a read also ends the pair's other reads, and late messages open no connection") {
  two_gpus w;
  const auto from = w.memory(1'000, 1);
  const auto to = w.memory(2'000, 0);
  const auto known = w.links[0]->expose(from.bytes()).value();
  w.slow[1]->keeps = true;
  awaited given_up;
  awaited other;
  CHECK(w.get(known, to.bytes().first(1'000), given_up) == errc::pending);
  CHECK(w.get(known, to.bytes().last(1'000), other) == errc::pending);
  w.turn();
  w.links[1]->cancel(given_up);
  w.turn_until([&] { return given_up.calls == 1 && other.calls == 1; });
  CHECK(given_up.outcome == errc::device_failed);
  w.slow[1]->let_go();  // late messages open no connection
  for (int i = 0; i < 100; ++i) w.turn();
  CHECK(w.library.communicators() == 0);
  awaited left;
  CHECK(w.get(known, to.bytes().first(1'000), left) == errc::pending);
  w.links[1]->abandon(left);
  CHECK(left.calls == 1);
}

TEST_CASE("a cancelled read keeps its memory until NCCL's late work can no longer enter a stream") {
  read_once w;
  const auto& to = w.ends.to;
  const auto& known = w.ends.known;
  w.library.asked_per_call = 1'000'000;
  w.library.aborts_are_late = true;
  awaited done;
  awaited behind_it;
  CHECK(w.get(known, to.bytes().first(500), done) == errc::pending);
  CHECK(w.get(known, to.bytes().last(500), behind_it) == errc::pending);
  w.turn_until([&] { return w.of(0).statistics().sends == 3; });
  w.links[1]->cancel(done);
  w.turn_until([&] { return behind_it.calls == 1; });  // this read was not given to NCCL yet
  for (int i = 0; i < 1'000; ++i) w.turn();
  CHECK(w.library.late() == 2);
  CHECK(done.calls == 0);
  w.library.come_late();
  w.turn_until([&] { return done.calls == 1; });
  CHECK(done.outcome == errc::device_failed);
}

TEST_CASE("a stream stops waiting for a cancelled read at once, because ending its kernels waits for streams") {
  read_once w;
  const auto& to = w.ends.to;
  const std::uint64_t coming = w.copies[1]->expect(to.bytes());
  const auto held_up = w.gpu.make_stream(0);
  bool may_end = false;
  w.gpu.launch_until(held_up, [&] { return may_end; });
  CHECK(w.copies[0]->after(w.ends.from.bytes(), held_up) == errc::none);
  awaited done;
  CHECK(w.get(w.ends.known, to.bytes(), done) == errc::pending);
  for (int i = 0; i < 100; ++i) w.turn();
  CHECK(w.copies[1]->flags().is_down(coming));
  w.links[1]->cancel(done);
  CHECK_FALSE(w.copies[1]->flags().is_down(coming));
  may_end = true;
  w.turn_until([&] { return done.calls == 1; });
  w.copies[0]->drain();
  w.gpu.destroy(held_up);
}

TEST_CASE("a request that arrives out of order after a long rest does not count as a stall") {
  read_once w;
  const auto& to = w.ends.to;
  const auto& known = w.ends.known;
  clock_ns += 1'000'000;
  awaited late;
  awaited early;
  w.slow[1]->keeps = true;
  CHECK(w.get(known, to.bytes().first(500), late) == errc::pending);
  w.slow[1]->keeps = false;
  CHECK(w.get(known, to.bytes().last(500), early) == errc::pending);
  for (int i = 0; i < 100; ++i) w.turn();
  w.slow[1]->let_go();
  w.turn_until([&] { return late.calls == 1 && early.calls == 1; });
  CHECK(late.outcome == errc::none);
  CHECK(early.outcome == errc::none);
  CHECK(w.of(0).statistics().aborted == 0);
}

TEST_CASE("an owner sends nothing that it has not exposed") {
  two_gpus w;
  const auto from = w.memory(1'000, 1);
  const auto to = w.memory(1'000, 0);
  auto known = w.links[0]->expose(from.bytes()).value();
  w.links[0]->withdraw(known);
  awaited done;
  CHECK(w.get(known, to.bytes(), done) == errc::pending);
  w.turn_until([&] { return done.calls == 1; });
  CHECK(done.outcome == errc::device_failed);
  CHECK(w.of(0).statistics().refused == 1);
  CHECK(holds(w.gpu, to.bytes(), 0));
  known = w.links[0]->expose(from.bytes().first(500)).value();
  awaited beyond;
  CHECK(w.get(known, to.bytes(), beyond) == errc::bad_argument);
  known.key.pop_back();
  CHECK(w.get(known, to.bytes().first(10), beyond) == errc::bad_argument);
  std::array<std::byte, 8> host{};
  const auto on_host = w.links[0]->expose(host).value();
  CHECK(w.get(on_host, to.bytes().first(8), beyond) == errc::unavailable);
}

TEST_CASE("malformed messages on the devices channel are refused and change nothing") {
  two_gpus w;
  for (const std::size_t bytes : {0UL, 7UL, 48UL, 64UL}) {
    const std::vector<std::byte> noise(bytes, std::byte{0xee});
    CHECK(w.world[1].send(0, runtime::link::channel::devices, noise, {}, nullptr) == errc::none);
  }
  for (int i = 0; i < 10; ++i) w.turn();
  CHECK(w.of(0).statistics().refused == 4);
  CHECK(w.of(0).statistics().communicators == 0);
}

}  // namespace
