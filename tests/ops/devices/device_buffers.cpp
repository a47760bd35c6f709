// Buffers that an op on a device cannot use: on another device, of another context, freed, in host memory, or unaligned. Each op names
// and rejects them before it uses them, and continues.
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>

#include <doctest/doctest.h>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/hierarchy.hpp>
#include <parley/p2p.hpp>
#include <parley/transfer.hpp>

#include <sys/mman.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using transports::cuda_memory;
using transports::memory_place;

constexpr std::size_t bytes = 4'096;

/// Two ranks with a GPU each, and the buffers that rank 0 cannot use.
struct wrong_buffers {
  wrong_buffers() {
    auto* const freed = static_cast<std::byte*>(gpu.allocate(0, bytes));
    gpu.release(freed, memory_place::kind::device);
    // Reserves the freed addresses, so that no later allocation gets them.
    REQUIRE(::mmap(freed, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == freed);
    kept = freed;
    others = static_cast<std::byte*>(gpu.allocate_in_other_context(0, bytes));
    all = {{"lie on device 1", {theirs.bytes().data(), bytes}},
           {"belong to another context", {others, bytes}},
           {"lie in host memory, or were freed", {freed, bytes}},
           {"lie in host memory, or were freed", here}};
  }
  ~wrong_buffers() { ::munmap(kept, bytes); }
  wrong_buffers(const wrong_buffers&) = delete;
  wrong_buffers& operator=(const wrong_buffers&) = delete;
  struct wrong {
    const char* why;
    std::span<std::byte> memory;
  };
  fake_cuda gpu{2};
  two_ranks w{gpu, {direct(), put()}};
  cuda_memory mine = cuda_memory::on_device(gpu, 0, bytes);
  cuda_memory theirs = cuda_memory::on_device(gpu, 1, bytes);
  std::vector<std::byte> here = std::vector<std::byte>(bytes);
  std::byte* others = nullptr;
  void* kept = nullptr;
  std::vector<wrong> all;
};

/// Makes `call` on rank 0 with each wrong buffer, less its last `less` bytes, and checks that the call is refused.
void refused(wrong_buffers& b, const std::string& op, const std::function<task<>(std::span<std::byte>)>& call,
             std::size_t less = 0) {
  for (const auto& [why, memory] : b.all) {
    const auto thrown = [](const std::function<task<>(std::span<std::byte>)>* one,
                           std::span<std::byte> with) -> task<result<>> {
      auto how = co_await attempt((*one)(with));
      co_return how;
    };
    const result<> how = runtime::run(b.w.loop, thrown(&call, memory));
    CAPTURE(op);
    CAPTURE(why);
    const auto found = b.w.copies[0]->check(memory.first(bytes - less), alignof(float));
    REQUIRE_FALSE(found);  // wording.cpp checks the sentence
    for (const std::string& words : {op, found.reason().text()})
      CHECK(is(how, {.code = errc::bad_argument, .quotes = words}));
  }
}

std::span<float> floats(std::span<std::byte> memory) {
  return {reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float)};
}

task<> sends(transfer t, std::span<std::byte> memory) { co_await t.send(memory, {.to = 1}); }
task<> registers(transfer t, std::span<std::byte> memory) {
  const auto handle = t.registered(memory);
  co_return;
}
task<> receives(transfer t, std::span<std::byte> memory) {
  const std::uint64_t got = co_await t.receive(memory, {.from = 1});
  static_cast<void>(got);
}
task<> plans(halo rims, std::span<std::byte> memory) {
  const std::span<float> numbers = floats(memory);
  static_cast<void>(rims.plan({grid_field(numbers, {30, 30})}));
  co_return;
}
task<> in_a_batch(dataflow& flow, p2p pairs, std::span<std::byte> memory, rank_id with, cuda_stream stream) {
  const std::array both{p2p::irecv(memory, {.from = with}), p2p::isend(memory, {.to = with})};
  auto started = pairs.start(flow, both, {.stream = stream});
  co_await started;
}

}  // namespace

TEST_CASE("a transfer refuses memory that its device cannot use and says why, and later calls still work") {
  wrong_buffers b;
  fill(b.gpu, b.mine.bytes(), 3);
  refused(b, "buffers", [&](std::span<std::byte> m) { return sends(b.w.ends[0], m); });
  refused(b, "buffers", [&](std::span<std::byte> m) { return registers(b.w.ends[0], m); });
  const transfer back(*b.w.ranks[0], {.name = "back", .edges = {{1, 0}}, .memory = b.w.spaces[0].get(), .timeout = 1s});
  refused(b, "back", [&](std::span<std::byte> m) { return receives(back, m); });
  CHECK(b.w.wires[0]->planes().staged == 0);
  b.w.move(b.mine.bytes(), b.theirs.bytes(), 20);
  CHECK(holds(b.gpu, b.theirs.bytes(), 3));
}

TEST_CASE("a batch refuses memory that its device cannot use, and nothing waits in its stream afterwards") {
  wrong_buffers b;
  const transports::cuda_stream stream = b.gpu.make_stream(0);
  const p2p pairs(*b.w.ranks[0], {.name = "rows", .memory = b.w.spaces[0].get(), .timeout = 1s});
  for (const rank_id with : {rank_id{1}, rank_id{0}}) {
    refused(b, "rows", [&](std::span<std::byte> m) { return with_dataflow(in_a_batch, pairs, m, with, stream); });
  }
  runtime::run(b.w.loop, reaches(*b.w.copies[0], stream));
  b.gpu.destroy(stream);
}

TEST_CASE("groups of one and of two levels refuse memory that their device cannot use, and misaligned numbers") {
  wrong_buffers b;
  collective_options op = led_by(0, {star()});
  std::vector<collective> groups;
  std::vector<hierarchy> levels;
  for (rank_id r = 0; r < 2; ++r) {
    op.memory = b.w.spaces[r].get();
    groups.emplace_back(*b.w.ranks[r], op);
    levels.push_back(hierarchy(*b.w.ranks[r], {.name = "levels", .memory = b.w.spaces[r].get()}));
  }
  refused(b, op.name, [&](std::span<std::byte> m) { return groups[0].all_reduce(floats(m)); });
  refused(b, "levels", [&](std::span<std::byte> m) { return levels[0].all_reduce(floats(m)); });
  refused(b, "levels", [&](std::span<std::byte> m) { return levels[0].broadcast(floats(m)); });
  refused(b, "levels", [&](std::span<std::byte> m) {
    return levels[0].all_gather(std::span<const float>(floats(b.mine.bytes().first(bytes / 2))), floats(m));
  });
  refused(
      b, "levels",
      [&](std::span<std::byte> m) {
        return levels[0].reduce_scatter(floats(b.mine.bytes()), floats(m.first(bytes / 2)));
      },
      bytes / 2);
  refused(b, "levels", [&](std::span<std::byte> m) {
    return levels[0].all_reduce_list(std::vector{floats(b.mine.bytes()), floats(m)});
  });
  b.all = {{"do not begin at a multiple of 4", b.mine.bytes().subspan(2, bytes - 4)}};
  refused(b, op.name, [&](std::span<std::byte> m) { return groups[0].all_reduce(floats(m)); }, 4);
  refused(b, "levels", [&](std::span<std::byte> m) { return levels[0].all_reduce(floats(m)); }, 4);
  // No refused call counted: both ranks are still at their first call.
  const std::vector<float> ones(bytes / sizeof(float), 1);
  const std::array<std::span<std::byte>, 2> memory{b.mine.bytes(), b.theirs.bytes()};
  for (const auto m : memory) std::memcpy(b.gpu.shadow(m.data()), ones.data(), bytes);
  scope both(b.w.loop);
  for (rank_id r = 0; r < 2; ++r) both.spawn(groups[r].all_reduce(floats(memory[r])));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  runtime::run(b.w.loop, join(both));
  for (rank_id r = 0; r < 2; ++r) both.spawn(levels[r].all_reduce(floats(memory[r])));
  runtime::run(b.w.loop, join(both));
  for (const auto m : memory) {
    float first = 0;
    std::memcpy(&first, b.gpu.shadow(m.data()), sizeof first);
    CHECK(first == 4);
  }
}

TEST_CASE("a halo refuses fields in memory that its device cannot use, when they are planned") {
  wrong_buffers b;
  const halo rims(*b.w.ranks[0], {.name = "rims", .ranks = {1, 2}, .memory = b.w.spaces[0].get()});
  refused(b, "rims", [&](std::span<std::byte> m) { return plans(rims, m); });
}

TEST_CASE("a device that has failed does not report memory as unknown, unlike a healthy one") {
  fake_cuda gpu{2};
  transports::cuda_copies copies(gpu, 0);
  auto* const freed = static_cast<std::byte*>(gpu.allocate(0, bytes));
  gpu.release(freed, memory_place::kind::device);
  CHECK_FALSE(copies.check({freed, bytes}, 1));
  CHECK(copies.check({freed, 0}, 1));
  gpu.fault_now(0);
  CHECK(copies.check({freed, bytes}, 1));
}
