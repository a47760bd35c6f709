// Puts and gets from GPU to GPU, on a fake of CUDA.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <doctest/doctest.h>
#include <parley/config.hpp>
#include <parley/cuda_link.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <functional>
#include <memory>
#include <vector>

using namespace parley;
using namespace parley::tests;
using runtime::errc;
using transports::cuda_memory;

TEST_CASE("a rank can write to 1,000 allocations of a peer's GPU, even while copies are in flight") {
  constexpr std::size_t count = 1'000;
  fake_cuda gpu;
  transports::process_world below(2);
  transports::cuda_copies theirs(gpu, 0);
  transports::cuda_copies own(gpu, 0);
  transports::cuda_link owner(below[0], theirs);
  transports::cuda_link writer(below[1], own);
  const auto source = cuda_memory::on_device(gpu, 0, 100);
  fill(gpu, source.bytes(), 1);
  std::vector<cuda_memory> blocks;
  std::vector<awaited> done(count);
  for (awaited& each : done) {
    const auto bytes = blocks.emplace_back(cuda_memory::on_device(gpu, 0, 100)).bytes();
    const auto exposed = owner.expose(bytes).value();
    const runtime::remote_place there{exposed.key, reinterpret_cast<std::uint64_t>(bytes.data()), {}};
    CHECK(writer.put(0, there, source.bytes(), &each) == errc::pending);
  }
  CHECK(gpu.imported > 256);
  own.drain();
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(done[i].outcome == errc::none);
    CHECK(holds(gpu, blocks[i].bytes(), 1));
  }
}

TEST_CASE("among ranks of one process a device failure fails only that device's puts and fences") {
  fake_cuda gpu(3);
  std::vector<std::unique_ptr<transports::cuda_copies>> copies;
  for (int r = 0; r < 3; ++r) copies.push_back(std::make_unique<transports::cuda_copies>(gpu, r));
  transports::process_world world({copies[0].get(), copies[1].get(), copies[2].get()});
  const auto to = cuda_memory::on_device(gpu, 1, 200);
  const auto from_0 = cuda_memory::on_device(gpu, 0, 100);
  const auto from_2 = cuda_memory::on_device(gpu, 2, 100);
  const auto exposed = world[1].expose(to.bytes()).value();
  const auto there = [&](std::size_t offset) {
    return runtime::remote_place{exposed.key, reinterpret_cast<std::uint64_t>(to.bytes().data()) + offset, {}};
  };
  const transports::cuda_stream stream = gpu.make_stream(0);
  gpu.launch(stream, 5, [&] { gpu.fault_now(0); });
  REQUIRE(copies[0]->after(from_0.bytes(), stream) == errc::none);
  awaited put_0;
  awaited put_2;
  awaited fence_0;
  awaited fence_2;
  CHECK(world[0].put(1, there(0), from_0.bytes(), &put_0) == errc::pending);
  CHECK(world[2].put(1, there(100), from_2.bytes(), &put_2) == errc::pending);
  CHECK(world[0].fence(1, &fence_0) == errc::pending);
  CHECK(world[2].fence(1, &fence_2) == errc::pending);
  for (auto& c : copies) c->drain();
  while (fence_0.calls == 0 || fence_2.calls == 0) world.poll();
  CHECK(put_0.outcome == errc::device_failed);
  CHECK(fence_0.outcome == errc::peer_failed);
  CHECK(put_2.outcome == errc::none);
  CHECK(fence_2.outcome == errc::none);
  gpu.destroy(stream);
}

namespace {
struct takes_all final : runtime::link::handler {
  void on_arrival(runtime::arrival&&) noexcept override {}
};
}  // namespace

TEST_CASE(
    "idle pinned memory serves smaller messages while a stream waits, because no pinned memory may be freed then") {
  constexpr auto channel = runtime::link::channel::data;
  fake_cuda gpu;
  transports::process_world below(2);
  transports::cuda_copies copies(gpu, 0);
  transports::cuda_link::options o;
  o.most_pinned_bytes = 2U << 20U;
  transports::cuda_link mine(below[0], copies, o);
  takes_all peer;
  below[1].listen(channel, &peer);
  const auto large = cuda_memory::on_device(gpu, 0, (512U << 10U) + 1);
  const auto small = cuda_memory::on_device(gpu, 0, 100'000);
  const std::byte header[8]{};
  const auto goes = [&](const cuda_memory& what, awaited& done) {
    return mine.send(1, channel, header, what.bytes(), &done) == errc::pending;
  };
  const auto turn_until = [&](const std::function<bool()>& over) {
    for (int i = 0; i < 100'000 && !over(); ++i) {
      copies.poll();
      below.poll();
    }
    CHECK(over());
  };
  const std::size_t others = gpu.pinned();
  awaited first, second, third, fourth, fifth, sixth;
  CHECK(goes(large, first));
  CHECK(goes(large, second));
  CHECK_FALSE(goes(small, third));  // all of the pinned memory is in use
  turn_until([&] { return first.calls == 1 && second.calls == 1; });
  const std::uint64_t coming = copies.expect(small.bytes());
  const transports::cuda_stream stream = gpu.make_stream(0);
  CHECK(copies.wait_on(small.bytes(), stream) == errc::none);
  CHECK(goes(small, fourth));
  turn_until([&] { return fourth.calls == 1; });
  CHECK(gpu.pinned() == others + 2);
  const auto all = cuda_memory::on_device(gpu, 0, (1U << 20U) + 1);
  // A new block is pinned. To free an idle one would wait for `stream`, which may be waiting for this very message.
  CHECK(goes(all, fifth));
  turn_until([&] { return fifth.calls == 1; });
  CHECK(gpu.pinned() == others + 3);
  copies.came(coming, errc::none);
  CHECK(goes(all, first));
  CHECK_FALSE(goes(all, sixth));
  CHECK(gpu.pinned() == others + 1);  // the idle blocks were freed for it, which is still not enough
  turn_until([&] { return first.calls == 2; });
  gpu.destroy(stream);
}
