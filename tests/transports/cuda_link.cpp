// Puts and gets from GPU to GPU, on a fake of CUDA.
#include "../support/awaited.hpp"
#include "../support/fake_cuda.hpp"

#include <doctest/doctest.h>
#include <parley/transports/cuda_link.hpp>
#include <parley/transports/process_world.hpp>

#include <vector>

using namespace parley;
using namespace parley::tests;
using runtime::errc;
using transports::cuda_memory;

TEST_CASE("a rank reaches as many allocations of a peer's GPU as it is told of, also while copies are under way") {
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
