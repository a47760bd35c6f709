// Groups, in one level and in two, whose data lies in device memory. The worked cases compare their sums with the host's, and
// device_faults.cpp tests faults. This file tests what is specific to devices.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/cuda_space.hpp>
#include <parley/group_config.hpp>
#include <parley/hierarchy.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t count = 3'000;

/// Two ranks of one process, each with floats on a device.
struct two_members {
  explicit two_members(rank_settings settings = eager_trials())
      : job({.ranks = 2, .settings = std::move(settings), .gpu = &gpu}) {
    for (rank_id r = 0; r < 2; ++r) {
      memory.push_back(job.gpu_memory(r)->make(count * sizeof(float)));
      streams[r] = gpu.make_stream(0);
    }
  }
  ~two_members() {
    for (const cuda_stream s : streams) gpu.destroy(s);
  }
  two_members(const two_members&) = delete;
  two_members& operator=(const two_members&) = delete;
  std::span<float> floats(rank_id r) const { return {reinterpret_cast<float*>(memory[r]->bytes().data()), count}; }
  void put(rank_id r) {
    const auto x = contribution(r, count);
    std::memcpy(gpu.shadow(memory[r]->bytes().data()), x.data(), count * sizeof(float));
  }
  std::size_t wrong(rank_id r) {
    std::vector<float> x(count);
    std::memcpy(x.data(), gpu.shadow(memory[r]->bytes().data()), count * sizeof(float));
    return wrong_sums(x, 2);
  }
  void declare(collective_options op) {
    for (rank_id r = 0; r < 2; ++r) {
      op.memory = job.gpu_memory(r);
      groups.emplace_back(job[r], op);
    }
  }
  static task<> one(two_members* all, rank_id r, result<>* how) {
    *how = co_await attempt(all->groups[r].all_reduce(all->floats(r)));
  }
  std::array<result<>, 2> call() {
    std::array<result<>, 2> how;
    job.run([&](rank& self) { return one(this, self.id(), &how[self.id()]); });
    return how;
  }

  fake_cuda gpu;
  one_process job;
  std::vector<std::unique_ptr<memory_space::block>> memory;
  std::array<cuda_stream, 2> streams{};
  std::vector<collective> groups;
};

task<> attempted(const std::function<task<>(rank_id)>* call, rank_id r, result<>* how) {
  *how = co_await attempt((*call)(r));
}

/// Correct in its rehearsal, whose data has another size. In calls it adds one number twice.
task<> careless(group_call& g) {
  if (g.self() == g.leader()) {
    const auto theirs = g.scratch(g.data().size());
    const auto here = g.receive(1, 0, theirs);
    co_await g.until(here);
    g.combine(g.data(), theirs);
    if (g.data().size() == count * sizeof(float)) g.combine(g.data().first(sizeof(float)), theirs.first(sizeof(float)));
    g.send(1, 0, g.data());
  } else {
    g.send(g.leader(), 0, g.data());
    g.receive(g.leader(), 0, g.data());
  }
  co_await g.drain();
}

}  // namespace

TEST_CASE("a group's call on a device runs after the kernels of its caller, and the device itself computes the sum") {
  for (const auto& config : {star(), star(1'000), chain(1'000), tree(), one_shot(), two_shot(1'000)}) {
    CAPTURE(config->id());
    two_members w;
    w.declare(led_by(1, {config}));
    for (int i = 0; i < 3; ++i) {
      for (rank_id r = 0; r < 2; ++r) {
        w.gpu.launch(w.streams[r], (i + r) % 2 == 0 ? 4'000 : 50, [&w, r] { w.put(r); });
        REQUIRE(w.job.gpu(r)->after(w.memory[r]->bytes(), w.streams[r]) == errc::none);
      }
      const std::uint64_t before = w.gpu.sums_by_kernel;
      for (const auto& how : w.call()) REQUIRE(how);
      for (rank_id r = 0; r < 2; ++r) CHECK(w.wrong(r) == 0);
      CHECK(w.gpu.sums_by_kernel > before);
    }
  }
}

namespace {
template <class T>
std::vector<T> narrow(rank_id r, std::size_t n) {
  std::vector<T> x;
  for (std::size_t i = 0; i < n; ++i)
    x.emplace_back(static_cast<float>(i % 97) * 0.37F + static_cast<float>(r) * 1.003F);
  return x;
}
template <class T>
task<> sum_narrow(collective all, std::span<T> x) {
  co_await all.all_reduce(x);
}

/// Checks sums of narrow types on the device and in host memory.
template <class T>
void check_narrow_sums(const char* type) {
  two_members w;
  w.declare(led_by(0, {star()}));
  std::vector<collective> host;
  collective_options op = led_by(0, {star()});
  op.name = "in host memory";
  for (rank_id r = 0; r < 2; ++r) host.emplace_back(w.job[r], op);
  constexpr std::size_t n = 1'000;
  const std::array<std::vector<T>, 2> mine{narrow<T>(0, n), narrow<T>(1, n)};
  std::array<std::vector<T>, 2> here = mine;
  const auto on_device = [&](rank_id r) { return std::span(reinterpret_cast<T*>(w.memory[r]->bytes().data()), n); };
  for (rank_id r = 0; r < 2; ++r) std::memcpy(w.gpu.shadow(on_device(r).data()), mine[r].data(), n * sizeof(T));
  w.job.run([&](rank& self) { return sum_narrow(w.groups[self.id()], on_device(self.id())); });
  w.job.run([&](rank& self) { return sum_narrow(host[self.id()], std::span(here[self.id()])); });
  CAPTURE(type);
  for (rank_id r = 0; r < 2; ++r) {
    const bool same_bits = std::memcmp(w.gpu.shadow(on_device(r).data()), here[r].data(), n * sizeof(T)) == 0;
    CHECK(same_bits);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const T right = static_cast<float>(mine[0][i]) + static_cast<float>(mine[1][i]);
      wrong += here[r][i].bits == right.bits ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
  CHECK(w.gpu.sums_by_kernel > 0);
}
}  // namespace

TEST_CASE("16-bit numbers are added as floats and rounded, to the same bits on a device and in host memory") {
  check_narrow_sums<f16>("f16");
  check_narrow_sums<bf16>("bf16");
}

TEST_CASE("a kernel that does not end delays a group's call only until its timeout, on all ranks") {
  two_members w;
  collective_options op = led_by(0, {star()});
  op.timeout = 300ms;
  w.declare(op);
  for (rank_id r = 0; r < 2; ++r) w.put(r);
  for (const auto& how : w.call()) REQUIRE(how);
  bool over = false;
  w.gpu.launch_until(w.streams[1], [&over] { return over; });
  REQUIRE(w.job.gpu(1)->after(w.memory[1]->bytes(), w.streams[1]) == errc::none);
  const auto late = w.call();
  for (const auto& how : late) REQUIRE(how.code() == errc::timeout);
  CHECK(is(late[0], {.rank = 0, .peer = 1, .unmet = awaited::members}));
  CHECK(late[1].reason().text().find("the kernels that this rank enqueued") != std::string::npos);
  over = true;
  for (rank_id r = 0; r < 2; ++r) w.put(r);
  for (const auto& how : w.call()) CHECK(how);
  for (rank_id r = 0; r < 2; ++r) CHECK(w.wrong(r) == 0);
}

TEST_CASE("a sum that a device cannot compute is refused on all ranks, and does not count as a call") {
  two_members w;
  w.declare(led_by(0, {star()}));
  struct larger {
    float operator()(float a, float b) const { return std::max(a, b); }
  };
  hierarchy_options levels;
  levels.name = "in levels";
  std::set<std::string> said;  // the errors without the name of the op
  const auto refused = [&](const std::function<task<>(rank_id)>& call) {
    std::array<result<>, 2> how;
    w.job.run([&](rank& self) { return attempted(&call, self.id(), &how[self.id()]); });
    for (const auto& one : how) {
      REQUIRE(one.code() == errc::bad_argument);
      const std::string text = one.reason().text();
      said.insert(text.substr(text.find(": ")));
    }
  };
  refused([&](rank_id r) { return w.groups[r].all_reduce<larger>(w.floats(r)); });
  std::vector<hierarchy> both;
  for (rank_id r = 0; r < 2; ++r) {
    levels.memory = w.job.gpu_memory(r);
    both.emplace_back(w.job[r], levels);
  }
  refused([&](rank_id r) { return both[r].all_reduce<larger>(w.floats(r)); });
  refused([&](rank_id r) {
    return both[r].all_reduce_list<larger>(std::vector{w.floats(r).first(10), w.floats(r).last(10)});
  });
  CHECK(said.size() == 1);  // wording.cpp checks the sentence
  for (rank_id r = 0; r < 2; ++r) w.put(r);
  for (const auto& how : w.call()) CHECK(how);
  for (rank_id r = 0; r < 2; ++r) CHECK(w.wrong(r) == 0);
}

TEST_CASE("a candidate's sums on a device are compared with the default's, and the caller never gets wrong ones") {
  rank_settings settings = eager_trials();
  settings.constraints.compare_trials = true;
  two_members w(settings);
  w.declare(led_by(0, {star(), star(4'000), grouped({.name = "careless"}, careless, careless)}));
  const auto state = [&w] {
    for (const auto& agreed : w.job[0].agreements()) {
      const auto* const c = agreed.assigned->find(count * sizeof(float));
      if (c != nullptr) return c;
    }
    return static_cast<const actors::search*>(nullptr);
  };
  const auto decided = [&] { return state() != nullptr && state()->where() == actors::search::stage::decided; };
  for (const deadline limit; !limit.is_over() && !decided();) {
    for (rank_id r = 0; r < 2; ++r) w.put(r);
    for (const auto& how : w.call()) REQUIRE(how);
    for (rank_id r = 0; r < 2; ++r) CHECK(w.wrong(r) == 0);
  }
  REQUIRE(decided());
  CHECK(state()->chosen().config != "careless");
  REQUIRE(state()->excluded().size() == 1);
  CHECK(state()->excluded()[0].why.find("its results differ from the default's: element 0 is ") != std::string::npos);
}

TEST_CASE("a leader's step in between finds the sum on its device, and all members get the step's result") {
  for (const auto& config : {star(), star(1'000), chain(1'000), tree()}) {
    CAPTURE(config->id());
    two_members w;
    w.declare(led_by(0, {config}));
    for (rank_id r = 0; r < 2; ++r) w.put(r);
    w.job.run([&w](rank& self) {
      const rank_id me = self.id();
      if (me == 1) return w.groups[1].all_reduce(w.floats(1));
      std::function<task<>(std::span<float>)> twice = [&w](std::span<float> sum) {
        CHECK(w.wrong(0) == 0);
        w.gpu.launch(w.streams[0], 500, [&w, sum] {
          auto* const x = reinterpret_cast<float*>(w.gpu.shadow(sum.data()));
          for (std::size_t i = 0; i < count; ++i) x[i] *= 2;
        });
        CHECK(w.job.gpu(0)->after(std::as_bytes(sum), w.streams[0]) == errc::none);
        return [](int) -> task<> { co_return; }(0);
      };
      return w.groups[0].all_reduce(w.floats(0), std::move(twice));
    });
    for (rank_id r = 0; r < 2; ++r) {
      const auto* const x = reinterpret_cast<const float*>(w.gpu.shadow(w.memory[r]->bytes().data()));
      for (std::size_t i = 0; i < count; ++i) REQUIRE(x[i] == 2 * 3 * static_cast<float>(i % 7 + 1));
    }
  }
}

TEST_CASE("a freed block of device memory is not reused while the device still adds into it") {
  fake_cuda gpu;
  transports::cuda_copies copies(gpu, 0);
  transports::cuda_space space(copies);
  const auto kept = space.make(4'096);
  auto block = space.make(4'096);
  const auto* const at = block->bytes().data();
  space.assign(block->bytes(), kept->bytes());
  block.reset();
  const auto other = space.make(4'096);
  CHECK(other->bytes().data() != at);
  for (int i = 0; i < 100; ++i) static_cast<void>(copies.busy(std::span(at, 4'096)));
  const auto again = space.make(4'096);
  CHECK(again->bytes().data() == at);
}
