// Ring attention on devices: each block is a kernel, in the order of a stream.
#include <parley/tests/support/cases/attention_case.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ring_attention.hpp>

#include <optional>
#include <string>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::attention_case;

// The arrays of one rank on the device, and kernels that add blocks to the rank's sums there.
template <class T>
class device_part {
 public:
  device_part(fake_cuda& gpu, const problem<T>& all, std::uint64_t ranks, std::uint64_t me)
      : host(all, ranks, me), gpu_(gpu), stream_(gpu.make_stream(0)) {
    for (auto* a : {&q, &k, &v, &out}) *a = transports::cuda_memory::on_device(gpu, 0, host.out.size() * sizeof(T));
    // When a call is made, the kernel that writes its inputs has not run yet.
    gpu_.launch(stream_, 300, [this] {
      std::copy(host.q.begin(), host.q.end(), seen(q));
      std::copy(host.k.begin(), host.k.end(), seen(k));
      std::copy(host.v.begin(), host.v.end(), seen(v));
    });
  }
  device_part(const device_part&) = delete;
  device_part& operator=(const device_part&) = delete;
  ~device_part() { gpu_.destroy(stream_); }

  static std::span<T> on(const transports::cuda_memory& a) {
    return {reinterpret_cast<T*>(a.bytes().data()), a.bytes().size() / sizeof(T)};
  }
  T* seen(const transports::cuda_memory& a) { return reinterpret_cast<T*>(gpu_.shadow(a.bytes().data())); }
  device_attention_block<T> kernel(std::uint64_t ticks) {
    return [this, ticks, kept = captured](const device_block<T>& b) { enqueue(b, ticks); };
  }
  transports::cuda_stream stream() const noexcept { return stream_; }
  void take_result() { std::copy_n(seen(out), host.out.size(), host.out.begin()); }

  part<T> host;
  transports::cuda_memory q, k, v, out;
  std::vector<device_block<T>> enqueued;
  std::shared_ptr<int> captured = std::make_shared<int>(0);  // use count 1: all kernels are destroyed
  std::size_t ended = 0;
  std::size_t late = 0;  // kernels that ended before the next block was enqueued, or before its data arrived

 private:
  void enqueue(const device_block<T>& b, std::uint64_t ticks) {
    enqueued.push_back(b);
    gpu_.launch(stream_, ticks, [this, b] {
      if (b.first) state_.emplace(b.shape);
      add_attention_block<T>(*state_, shadowed(b.q), shadowed(b.k), shadowed(b.v), b.first_query, b.first_key);
      ++ended;
      if (b.last) divide(b);
      if (!b.last && !next_is_here()) ++late;
    });
  }
  std::span<const T> shadowed(std::span<const T> a) {
    return {reinterpret_cast<const T*>(gpu_.shadow(a.data())), a.size()};
  }
  void divide(const device_block<T>& b) {
    T* const to = seen(out);
    for (std::size_t i = 0; i < b.out.size(); ++i)
      to[i] = static_cast<T>(state_->weighted[i] / state_->weight[i / b.shape.dimensions]);
  }
  bool next_is_here() {
    if (enqueued.size() == ended) return false;
    const device_block<T>& next = enqueued[ended];
    return matches(shadowed(next.k), next, expected_keys) && matches(shadowed(next.v), next, expected_values);
  }
  static bool matches(std::span<const T> seen, const device_block<T>& b, const std::vector<T>& all) {
    for (std::uint64_t i = 0; i < seen.size(); ++i) {
      const std::uint64_t head = i / (b.shape.rows * dimensions);
      const std::uint64_t at = (head * sequence + b.first_key) * dimensions + i % (b.shape.rows * dimensions);
      if (std::memcmp(&seen[i], &all[at], sizeof(T)) != 0) return false;
    }
    return true;
  }

 public:
  std::vector<T> expected_keys, expected_values;  // keys and values of the whole sequence

 private:
  fake_cuda& gpu_;
  transports::cuda_stream stream_;
  std::optional<attention_state<T>> state_;
};

template <class T>
struct device_ring {
  device_ring(fake_cuda& gpu, rank_id ranks, bool causal, std::vector<config_ptr> configs)
      : shape{.heads = heads, .rows = sequence / ranks, .dimensions = dimensions, .causal = causal},
        w(gpu, {direct()}, nullptr, ranks) {
    for (rank_id r = 0; r < ranks; ++r) {
      parts.push_back(std::make_unique<device_part<T>>(gpu, all, ranks, r));
      parts.back()->expected_keys = all.k;
      parts.back()->expected_values = all.v;
      rings.push_back(
          ring_attention(*w.ranks[r], {.name = "attention", .configs = configs, .memory = w.spaces[r].get()}));
      plans.push_back(rings.back().template plan<T>(shape));
    }
  }
  static task<> call(attention_plan* plan, device_part<T>* p, std::uint64_t ticks) {
    const device_attention_block<T> kernel = p->kernel(ticks);
    co_await plan->forward<T>(p->on(p->q), p->on(p->k), p->on(p->v), p->on(p->out), p->stream(), kernel);
  }
  void forward(std::uint64_t ticks) {
    scope running(w.loop);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      parts[r]->enqueued.clear();
      parts[r]->ended = 0;
      running.spawn(call(&plans[r], parts[r].get(), ticks));
    }
    run_until(w.loop, [&] { return running.running() == 0; });
    runtime::run(w.loop, joined(running));
    for (std::size_t r = 0; r < parts.size(); ++r) {
      runtime::run(w.loop, reaches(*w.copies[r], parts[r]->stream()));
      parts[r]->take_result();
    }
  }
  static task<> joined(scope& s) { co_await s.join(); }
  double farthest_from(const std::vector<double>& right) {
    double most = 0;
    for (std::uint64_t r = 0; r < parts.size(); ++r)
      most = std::max(most, attention_case::farthest_from(right, parts[r]->host, r));
    return most;
  }
  bool decided() const {
    for (const auto& e : w.ranks[0]->agreements()) {
      if (e.op != "attention" || e.sender != 0) continue;
      const auto* const found = e.assigned->find(shape.elements() * sizeof(T));
      return found != nullptr && found->where() == actors::search::stage::decided;
    }
    return false;
  }

  problem<T> all;
  attention_shape shape;
  two_ranks w;
  std::vector<std::unique_ptr<device_part<T>>> parts;
  std::vector<ops::ring_attention> rings;
  std::vector<attention_plan> plans;
};

template <class T>
void check_on_devices(const config_ptr& way) {
  CAPTURE(way->id());
  for (const bool causal : {false, true}) {
    for (const rank_id ranks : {1, 2, 4}) {
      CAPTURE(ranks);
      fake_cuda gpu;
      gpu.ticks_per_copy = 100;
      std::vector<config_ptr> configs{direct()};
      if (way->id() != "direct") configs.push_back(way);
      device_ring<T> ring(gpu, ranks, causal, configs);
      const expected e = expect(ring.all, causal);
      const auto over = [&] { return configs.size() == 1 || ranks == 1 || ring.decided(); };
      const deadline limit;
      for (int i = 0; !limit.is_over() && (i < 3 || !over()); ++i) {
        ring.forward(i % 2 == 0 ? 5 : 400);  // kernels shorter and longer than a message
        CHECK(ring.farthest_from(e.right) <= e.tolerance);
        for (const auto& p : ring.parts) CHECK(p->captured.use_count() == 1);
      }
      CHECK(over());
    }
  }
}

TEST_CASE("attention around a ring of devices equals that of one process, full and causal, with every config") {
  for (const config_ptr& way : {direct(), chunked(700, 3), put(), get()}) check_on_devices<float>(way);
  check_on_devices<bf16>(put());
}

TEST_CASE("when the kernel of a block ends, the next block has arrived and its kernel is enqueued") {
  for (const config_ptr& way : {direct(), put()}) {
    CAPTURE(way->id());
    fake_cuda gpu;
    std::vector<config_ptr> configs{direct()};
    if (way->id() != "direct") configs.push_back(way);
    device_ring<float> ring(gpu, 4, false, configs);
    for (const deadline limit; !limit.is_over() && configs.size() > 1 && !ring.decided();) ring.forward(200);
    for (auto& p : ring.parts) p->late = 0;
    for (int i = 0; i < 4; ++i) ring.forward(20'000);
    for (const auto& p : ring.parts) {
      CHECK(p->enqueued.size() == 4);
      CHECK(p->late == 0);
    }
  }
}

TEST_CASE("a tuning phase decides the config for keys and values before any call") {
  fake_cuda gpu;
  device_ring<float> ring(gpu, 2, false, {direct(), put()});
  {
    scope both(ring.w.loop);
    for (auto& r : ring.rings) both.spawn(r.tune<float>(ring.shape));
    run_until(ring.w.loop, [&] { return both.running() == 0; });
  }
  CHECK(ring.decided());
  CHECK(ring.rings[0].to_next().decision(ring.shape.elements() * sizeof(float)).decided);
}

TEST_CASE("a causal rank skips the blocks that lie after its own, and marks the last block that it computes") {
  fake_cuda gpu;
  device_ring<float> ring(gpu, 4, true, {direct()});
  ring.forward(200);
  for (std::uint64_t r = 0; r < 4; ++r) {
    const auto& blocks = ring.parts[r]->enqueued;
    REQUIRE(blocks.size() == r + 1);
    for (std::uint64_t i = 0; i <= r; ++i) {
      CHECK(blocks[i].first_query == r * ring.shape.rows);
      CHECK(blocks[i].first_key == (r - i) * ring.shape.rows);
      CHECK(blocks[i].first == (i == 0));
      CHECK(blocks[i].last == (i == r));
    }
  }
}

template <class T>
task<> attempted(attention_plan* plan, device_part<T>* p, transports::cuda_stream stream, std::size_t cut,
                 result<>* outcome) {
  const device_attention_block<T> kernel = p->kernel(10);
  std::exception_ptr thrown;
  try {
    co_await plan->forward<T>(p->on(p->q).subspan(cut), p->on(p->k), p->on(p->v), p->on(p->out), stream, kernel);
  } catch (...) {
    thrown = std::current_exception();
  }
  *outcome = thrown ? result<>(describe(thrown)) : result<>();
}

TEST_CASE(
    "wrong array sizes, arrays in other memory, a missing stream, and a neighbour with another shape are errors") {
  fake_cuda gpu;
  device_ring<float> ring(gpu, 2, false, {direct()});
  result<> outcome;
  runtime::run(ring.w.loop, attempted(&ring.plans[0], ring.parts[0].get(), ring.parts[0]->stream(), 1, &outcome));
  CHECK(is(outcome, {.code = errc::bad_argument, .quotes = "1023, 1024, 1024, 1024"}));
  runtime::run(ring.w.loop, attempted(&ring.plans[0], ring.parts[0].get(), nullptr, 0, &outcome));
  CHECK(is(outcome, {.code = errc::bad_argument}));  // wording.cpp checks the sentence

  const ring_attention host(*ring.w.ranks[0], {.name = "host"});
  CHECK_THROWS_WITH(static_cast<void>(host.plan<float>(ring.shape)), doctest::Contains("lie in host memory"));
  const part<float>& mine = ring.parts[0]->host;
  std::vector<float> out(mine.out.size());
  CHECK_THROWS_WITH(
      runtime::run(ring.w.loop, ring.rings[0].forward<float>(ring.shape, mine.q, mine.k, mine.v, std::span(out))),
      doctest::Contains("lie on a device"));
  CHECK_THROWS_WITH(static_cast<void>(ring.rings[0].plan<float>({.heads = 1})), doctest::Contains("at least 1"));

  attention_shape half = ring.shape;
  half.heads = 1;
  attention_plan other = ring.rings[1].plan<float>(half);
  device_part<float>& short_one = *ring.parts[1];
  struct program {
    static task<> half_of(attention_plan* plan, device_part<float>* p, result<>* outcome) {
      const device_attention_block<float> kernel = [](const device_block<float>&) {};
      const auto first = [p](const transports::cuda_memory& a) { return p->on(a).first(512); };
      std::exception_ptr thrown;
      try {
        co_await plan->forward<float>(first(p->q), first(p->k), first(p->v), first(p->out), p->stream(), kernel);
      } catch (...) {
        thrown = std::current_exception();
      }
      *outcome = thrown ? result<>(describe(thrown)) : result<>();
    }
  };
  result<> second;
  scope both(ring.w.loop);
  both.spawn(attempted(&ring.plans[0], ring.parts[0].get(), ring.parts[0]->stream(), 0, &outcome));
  both.spawn(program::half_of(&other, &short_one, &second));
  run_until(ring.w.loop, [&] { return both.running() == 0; });
  // Rank 0 either sees rank 1's size itself, or rank 1 tells it.
  const auto sees = is(outcome, {.code = errc::bad_argument, .peer = 1, .whole_bytes = 2048, .own_bytes = 4096});
  const auto hears = is(outcome, {.code = errc::buffer_too_small, .peer = 1, .whole_bytes = 2048, .quotes = "4096"});
  CHECK_MESSAGE((sees || hears), sees, hears);
  CHECK(is(second, {.code = errc::buffer_too_small, .rank = 1, .whole_bytes = 4096, .own_bytes = 2048}));
}

}  // namespace
