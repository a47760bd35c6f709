#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <doctest/doctest.h>
#include <parley/config.hpp>
#include <parley/cuda_space.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <set>

namespace {

using namespace parley;
using namespace parley::tests;
using runtime::errc;
using transports::cuda_copies;
using transports::cuda_memory;

TEST_CASE("a copy ends once its event has occurred, and poll calls its completion") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  auto a = cuda_memory::on_device(gpu, 0, 10'000);
  auto b = cuda_memory::on_device(gpu, 0, 10'000);
  fill(gpu, a.bytes(), 1);
  awaited done;
  CHECK(copies.copy(b.bytes(), a.bytes(), &done) == errc::pending);
  CHECK(copies.arm() == runtime::poller::arm_state::busy);
  CHECK(done.calls == 0);
  copies.drain();
  CHECK(done.calls == 1);
  CHECK(done.outcome == errc::none);
  CHECK(holds(gpu, b.bytes(), 1));
  CHECK(copies.arm() == runtime::poller::arm_state::armed);
}

TEST_CASE("a copy of memory named by `after` waits for the stream's kernels, and a copy of other memory does not") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  auto a = cuda_memory::on_device(gpu, 0, 1'000);
  auto b = cuda_memory::on_device(gpu, 0, 1'000);
  auto c = cuda_memory::on_device(gpu, 0, 1'000);
  fill(gpu, a.bytes(), 1);
  fill(gpu, c.bytes(), 7);
  const auto stream = gpu.make_stream(0);
  bool ran = false;
  gpu.launch(stream, 200, [&] {
    fill(gpu, a.bytes(), 2);
    ran = true;
  });
  CHECK(copies.after(a.bytes(), stream) == errc::none);
  awaited of_a;
  awaited of_c;
  CHECK(copies.copy(b.bytes().first(500), a.bytes().first(500), &of_a) == errc::pending);
  CHECK(copies.copy(b.bytes().subspan(500), c.bytes().subspan(500), &of_c) == errc::pending);
  while (of_c.calls == 0) copies.poll();
  CHECK_FALSE(ran);
  copies.drain();
  CHECK(ran);
  CHECK(holds(gpu, b.bytes().first(500), 2));
  gpu.destroy(stream);
}

TEST_CASE("reached() returns once a stream's kernels have run, and returns cancelled in a cancelled scope") {
  fake_cuda gpu;
  runtime::reactor loop;
  {
    cuda_copies copies(gpu, 0);
    loop.attach(copies);
    const auto stream = gpu.make_stream(0);
    bool ran = false;
    gpu.launch(stream, 50, [&] { ran = true; });
    struct program {
      static runtime::task<errc> wait(cuda_copies& c, transports::cuda_stream s) {
        auto ended = co_await transports::reached(c, s);
        co_return ended.code();
      }
      static runtime::task<errc> give_up(cuda_copies& c, transports::cuda_stream s) {
        runtime::scope& here = co_await runtime::this_scope;
        here.cancel();
        auto ended = co_await transports::reached(c, s);
        co_return ended.code();
      }
    };
    CHECK(runtime::run(loop, program::wait(copies, stream)) == errc::none);
    CHECK(ran);
    CHECK(runtime::run(loop, program::give_up(copies, stream)) == errc::cancelled);
    gpu.destroy(stream);
    loop.detach(copies);
  }
}

TEST_CASE("a copy's options set the number of streams that it uses and whether a kernel copies device memory") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  const auto a = cuda_memory::on_device(gpu, 0, 800);
  const auto b = cuda_memory::on_device(gpu, 0, 800);
  const auto pinned = cuda_memory::pinned(gpu, 800);
  awaited done;
  const auto in_pieces = [&](const cuda_memory& to, const runtime::device_copy& by) {
    gpu.seen_copies.clear();
    for (std::size_t at = 0; at < 800; at += 100)
      CHECK(copies.copy(to.bytes().subspan(at, 100), a.bytes().subspan(at, 100), &done, nullptr, by) == errc::pending);
    copies.drain();
    std::set<transports::cuda_stream> streams;
    for (const auto& seen : gpu.seen_copies) streams.insert(seen.in);
    return streams.size();
  };
  const auto blocks = [&] { return gpu.seen_copies.back().blocks; };
  CHECK(in_pieces(b, {}) == 2);
  CHECK(blocks() == 0);
  CHECK(in_pieces(b, {.streams = 1}) == 1);
  CHECK(in_pieces(b, {.streams = 3}) == 3);
  CHECK(in_pieces(b, {.streams = 100}) == cuda_copies::options{}.streams);  // no more than there are streams
  CHECK(in_pieces(b, {.kernel_blocks = 16}) == 2);
  CHECK(blocks() == 16);
  CHECK(copies.statistics().by_kernel == 8);
  CHECK(in_pieces(pinned, {.kernel_blocks = 16}) == 2);
  CHECK(blocks() == 0);  // a kernel copies device memory only
  CHECK(done.outcome == errc::none);
}

// One stream for copies that can run, and one for copies that wait.
constexpr cuda_copies::options few_streams{.streams = 1, .most_waiting = 1};

TEST_CASE("a copy of unpinned memory waits for kernels on the host, not in a stream, so that CUDA does not block the "
          "caller") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  auto a = cuda_memory::on_device(gpu, 0, 200);
  std::vector<std::byte> here(100);
  const std::vector<std::byte> there(100, std::byte{5});
  const auto stream = gpu.make_stream(0);
  bool may_end = false;  // set by this thread after it has done something else
  gpu.launch_until(stream, [&] { return may_end; });
  gpu.launch(stream, 0, [&] { fill(gpu, a.bytes().first(100), 2); });
  CHECK(copies.after(a.bytes(), stream) == errc::none);
  awaited out;
  awaited in;
  CHECK(copies.copy(here, a.bytes().first(100), &out) == errc::pending);
  CHECK(copies.copy(a.bytes().last(100), there, &in) == errc::pending);
  for (int i = 0; i < 1'000; ++i) copies.poll();
  CHECK(gpu.copies_that_hold == 0);
  CHECK(out.calls + in.calls == 0);
  may_end = true;
  copies.drain();
  CHECK(gpu.copies_that_hold == 0);
  CHECK(out.outcome == errc::none);
  CHECK(in.outcome == errc::none);
  CHECK(holds(gpu, a.bytes().first(100), 2));
  CHECK(std::memcmp(here.data(), gpu.shadow(a.bytes().data()), 100) == 0);
  CHECK(std::memcmp(there.data(), gpu.shadow(a.bytes().data()) + 100, 100) == 0);
  gpu.destroy(stream);
}

TEST_CASE("copies beyond the streams that may wait do so on the host, and only for earlier kernels") {
  fake_cuda gpu;
  {
    cuda_copies copies(gpu, 0, few_streams);
    auto a = cuda_memory::on_device(gpu, 0, 100);
    auto b = cuda_memory::on_device(gpu, 0, 300);
    auto word = cuda_memory::pinned(gpu, 100);
    std::ranges::fill(word.bytes(), std::byte{0});
    const auto to = [&](std::size_t i) { return b.bytes().subspan(100 * i, 100); };
    const auto stream = gpu.make_stream(0);
    bool first_may_end = false;
    bool second_may_end = false;
    gpu.launch_until(stream, [&] { return first_may_end; });
    gpu.launch(stream, 0, [&] { fill(gpu, a.bytes(), 2); });
    CHECK(copies.after(a.bytes(), stream) == errc::none);
    std::array<awaited, 6> done;
    CHECK(copies.copy(to(0), a.bytes(), &done[0]) == errc::pending);
    CHECK(copies.copy(to(1), a.bytes(), &done[1]) == errc::pending);
    CHECK(copies.write_behind(a.bytes(), word.bytes().data(), 9, &done[2]) == errc::pending);
    CHECK(copies.when_free(a.bytes(), &done[3]) == errc::pending);
    gpu.launch_until(stream, [&] { return second_may_end; });
    gpu.launch(stream, 0, [&] { fill(gpu, a.bytes(), 3); });
    CHECK(copies.after(a.bytes(), stream) == errc::none);
    CHECK(copies.copy(to(2), a.bytes(), &done[4]) == errc::pending);
    auto c = cuda_memory::on_device(gpu, 0, 100);
    CHECK(copies.copy(c.bytes().first(50), c.bytes().subspan(50), &done[5]) == errc::pending);
    while (done[5].calls == 0) copies.poll();
    for (int i = 0; i < 1'000; ++i) copies.poll();
    for (std::size_t i = 0; i < 5; ++i) CHECK(done[i].calls == 0);
    CHECK(word.bytes()[0] == std::byte{0});

    first_may_end = true;
    for (int i = 0; i < 1'000; ++i) copies.poll();
    for (std::size_t i = 0; i < 4; ++i) CHECK(done[i].calls == 1);
    CHECK(done[4].calls == 0);
    CHECK(holds(gpu, to(0), 2));
    CHECK(holds(gpu, to(1), 2));
    CHECK(word.bytes()[0] == std::byte{9});

    second_may_end = true;
    copies.drain();
    CHECK(holds(gpu, to(2), 3));
    gpu.destroy(stream);
  }
  CHECK(gpu.events() == 0);
}

TEST_CASE("a pull waits on the host for kernels that use its target, and starts no copy meanwhile") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  auto a = cuda_memory::on_device(gpu, 0, 100);
  auto b = cuda_memory::on_device(gpu, 0, 100);
  const auto stream = gpu.make_stream(0);
  bool may_end = false;
  gpu.launch_until(stream, [&] { return may_end; });
  CHECK(copies.after(b.bytes(), stream) == errc::none);
  fill(gpu, a.bytes(), 1);
  fill(gpu, b.bytes(), 2);
  awaited done;
  CHECK(copies.pull(b.bytes(), a.bytes(), &done) == errc::pending);
  for (int i = 0; i < 1'000; ++i) copies.poll();
  CHECK(copies.statistics().copies == 0);
  CHECK(done.calls == 0);
  may_end = true;
  copies.drain();
  CHECK(copies.statistics().copies == 1);
  CHECK(done.outcome == errc::none);
  CHECK(holds(gpu, b.bytes(), 1));
  gpu.destroy(stream);
}

TEST_CASE("a copy from another device that waits in a stream blocks other copies, and a pull does not") {
  fake_cuda gpu(2);
  cuda_copies copies(gpu, 0);
  const auto there = cuda_memory::on_device(gpu, 1, 200);
  const auto here = cuda_memory::on_device(gpu, 0, 200);
  fill(gpu, there.bytes(), 1);
  CHECK(gpu.place_of(there.bytes().data()).device == 1);
  const auto stream = gpu.make_stream(0);
  // A kernel that waits for the second copy's data and uses the memory that the first copy overwrites.
  gpu.launch_until(stream,
                   [&] { return gpu.shadow(here.bytes().data())[150] == gpu.shadow(there.bytes().data())[150]; });
  CHECK(copies.after(here.bytes().first(100), stream) == errc::none);
  std::array<awaited, 2> done;
  bool held_up = false;
  SUBCASE("a copy") {
    CHECK(copies.copy(here.bytes().first(100), there.bytes().first(100), &done[0]) == errc::pending);
    held_up = true;
  }
  SUBCASE("a pull") {
    CHECK(copies.pull(here.bytes().first(100), there.bytes().first(100), &done[0]) == errc::pending);
  }
  CHECK(copies.pull(here.bytes().last(100), there.bytes().last(100), &done[1]) == errc::pending);
  for (int i = 0; i < 1'000; ++i) copies.poll();
  CHECK(done[1].calls == (held_up ? 0 : 1));
  CHECK(done[0].calls == (held_up ? 0 : 1));
  if (held_up) fill(gpu, here.bytes(), 1);  // so that everything can end
  copies.drain();
  CHECK(holds(gpu, here.bytes(), 1));
  gpu.destroy(stream);
}

TEST_CASE("copies that wait on the host for a rank's kernels end, even if that rank is destroyed first") {
  fake_cuda gpu;
  {
    auto other = std::make_unique<cuda_copies>(gpu, 0, few_streams);
    cuda_copies copies(gpu, 0, few_streams);
    auto a = cuda_memory::on_device(gpu, 0, 100);
    auto b = cuda_memory::on_device(gpu, 0, 300);
    const auto stream = gpu.make_stream(0);
    bool may_end = false;
    gpu.launch_until(stream, [&] { return may_end; });
    CHECK(other->after(a.bytes(), stream) == errc::none);
    std::array<awaited, 3> done;
    for (std::size_t i = 0; i < done.size(); ++i)
      CHECK(copies.copy(b.bytes().subspan(100 * i, 100), a.bytes(), &done[i], other.get()) == errc::pending);
    copies.forget(&done[1]);
    other.reset();
    SUBCASE("when the kernels end") {
      may_end = true;
      copies.drain();
      CHECK(done[2].outcome == errc::none);
    }
    SUBCASE("when the device fails") {
      gpu.break_at_copy = 1;
      awaited breaks;
      CHECK(copies.copy(b.bytes().first(50), b.bytes().last(50), &breaks) == errc::pending);
      copies.drain();
      CHECK(done[2].outcome == errc::device_failed);
    }
    CHECK(done[0].calls == 1);
    CHECK(done[1].calls == 0);
    CHECK(done[2].calls == 1);
    gpu.destroy(stream);
  }
  CHECK(gpu.events() == 0);
}

TEST_CASE("a device error ends all pending copies and refuses later ones, with the error's name") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  auto a = cuda_memory::on_device(gpu, 0, 1'000);
  auto b = cuda_memory::on_device(gpu, 0, 1'000);
  transports::cuda_space space(copies);
  CHECK(space.words_of(errc::device_failed).empty());  // empty: the failed device belongs to another rank
  gpu.break_at_copy = gpu.copies() + 2;
  std::array<awaited, 3> done;
  for (awaited& n : done) CHECK(copies.copy(b.bytes(), a.bytes(), &n) == errc::pending);
  copies.drain();
  for (awaited& n : done) CHECK(n.calls == 1);
  CHECK(done[2].outcome == errc::device_failed);
  CHECK(copies.copy(b.bytes(), a.bytes(), &done[0]) == errc::device_failed);
  CHECK(gpu.fault().find("cudaErrorIllegalAddress") == 0);
  CHECK(space.words_of(errc::device_failed) == "device 0: cudaErrorIllegalAddress: planted");
  runtime::reactor loop;
  std::vector<std::byte> host(10);
  CHECK_THROWS_WITH(runtime::run(loop, space.copy(host, b.bytes().first(10))),
                    "device_failed: device 0: cudaErrorIllegalAddress: planted");
}

TEST_CASE("an error that the device reports only once, and not again, ends nothing") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  auto a = cuda_memory::on_device(gpu, 0, 100);
  auto b = cuda_memory::on_device(gpu, 0, 100);
  const transports::cuda_stream stream = gpu.make_stream(0);
  bool may_end = false;
  gpu.launch_until(stream, [&] { return may_end; });
  awaited done;
  CHECK(copies.watch(stream, &done) == errc::pending);
  gpu.queries_that_fail = 1;
  for (int i = 0; i < 10'000; ++i) copies.poll();
  CHECK(gpu.queries_that_fail == 0);
  CHECK(done.calls == 0);
  may_end = true;
  copies.drain();
  CHECK(done.outcome == errc::none);
  gpu.destroy(stream);
}

TEST_CASE("after destruction all memory, streams and events are released") {
  fake_cuda gpu;
  {
    const auto a = cuda_memory::on_device(gpu, 0, 1'000);
    const auto b = cuda_memory::pinned(gpu, 1'000);
    awaited done;
    {
      cuda_copies copies(gpu, 0);
      CHECK(copies.copy(b.bytes(), a.bytes(), &done) == errc::pending);
      CHECK(copies.pending() == 1);
    }
    CHECK(done.calls == 1);  // a copy that has started touches memory until it ends
  }
  CHECK(gpu.blocks() == 0);
  CHECK(gpu.pinned() == 0);
  CHECK(gpu.streams() == 0);
  CHECK(gpu.events() == 0);
}

TEST_CASE("a space frees nothing while it lives and reuses released blocks") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  const std::size_t before = gpu.blocks();
  {
    transports::cuda_space space(copies);
    const std::byte* first = nullptr;
    {
      const auto block = space.make(1'000);
      first = block->bytes().data();
      CHECK(space.make(2'000)->bytes().size() == 2'000);
    }
    CHECK(gpu.blocks() == before + 2);
    const auto again = space.make(1'000);
    CHECK(again->bytes().data() == first);
    CHECK(again->bytes().size() == 1'000);
    const auto another = space.make(1'000);
    CHECK(another->bytes().data() != first);
  }
  CHECK(gpu.blocks() == before);
}

TEST_CASE("ranks that share a device share its queues, and expecting a message throws if too few are left") {
  fake_cuda gpu;
  const auto streams = [&](unsigned ranks) {
    const auto o = cuda_copies::shared_by(gpu, ranks, {});
    return o.streams + o.most_waiting;
  };
  CHECK(streams(1) == 12);
  CHECK(streams(2) == 12);
  CHECK(streams(4) == 6);
  CHECK(streams(8) == 2);
  CHECK(streams(100) == 2);
  auto a = cuda_memory::on_device(gpu, 0, 1'000);
  cuda_copies enough(gpu, 0, cuda_copies::shared_by(gpu, 8, {}));
  enough.came(enough.expect(a.bytes()), errc::none);
  fake_cuda of_one_queue;
  of_one_queue.queues_there = 1;
  cuda_copies alone(of_one_queue, 0, cuda_copies::shared_by(of_one_queue, 1, {}));
  CHECK_THROWS_WITH(
      alone.expect(a.bytes()),
      doctest::Contains("this process has 1 queues of device 0: a stream that waits for a message would hold up the "
                        "one that brings it; unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 32"));
  cuda_copies too_many(gpu, 0, cuda_copies::shared_by(gpu, 9, {}));
  CHECK_THROWS_WITH(
      too_many.expect(a.bytes()),
      doctest::Contains("too many ranks of this process share device 0: a stream that waits for a message would "
                        "hold up the one that brings it; start 8 ranks for each GPU at most, or processes"));
}

TEST_CASE("a rank creates all its streams at the start") {
  fake_cuda gpu;
  cuda_copies copies(gpu, 0);
  const std::size_t made = gpu.streams() + 1;
  auto a = cuda_memory::on_device(gpu, 0, 100);
  auto b = cuda_memory::on_device(gpu, 0, 100);
  const auto stream = gpu.make_stream(0);
  bool may_end = false;
  gpu.launch_until(stream, [&] { return may_end; });
  CHECK(copies.after(a.bytes(), stream) == errc::none);
  std::array<awaited, 40> waiting;
  for (awaited& w : waiting) CHECK(copies.copy(b.bytes(), a.bytes(), &w) == errc::pending);
  const std::uint64_t expected = copies.expect(b.bytes());
  CHECK(copies.wait_on(b.bytes(), stream) == errc::none);
  CHECK(gpu.streams() == made);
  copies.came(expected, errc::none);
  may_end = true;
  copies.drain();
  for (const awaited& w : waiting) CHECK(w.outcome == errc::none);
  CHECK(gpu.streams() == made);
}

TEST_CASE("a device that does not exist is an error that names it") {
  fake_cuda gpu;
  CHECK_THROWS_WITH(cuda_copies(gpu, 3), doctest::Contains("device 3 does not exist: this machine shows 1 GPUs"));
}

}  // namespace
