// Computations that a flow hands to the streams of a GPU. The buffers that they name set their order, and the host waits for none of them.
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/device_place.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>

#include <parley/config.hpp>
#include <parley/cuda_space.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/p2p.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t bytes = 20'000;

/// Two ranks of one process on one GPU. A payload stays in the sender's buffer until the receiver fetches it.
struct two_on_a_gpu {
  explicit two_on_a_gpu(const std::vector<config_ptr>& configs = {direct()}) {
    for (rank_id r = 0; r < 2; ++r) {
      p2p_options op{.name = "messages", .configs = configs, .memory = job.gpu_memory(r), .timeout = 20s};
      pairs.emplace_back(job[r], op);
      streams.push_back(gpu.make_stream(0));
      for (auto* memory : {&x, &y, &a}) memory->push_back(transports::cuda_memory::on_device(gpu, 0, bytes));
    }
  }
  ~two_on_a_gpu() {
    for (const auto s : streams) gpu.destroy(s);
  }
  /// Launches a kernel that takes `ticks`, then fills the memory with the pattern of `seed`.
  std::function<void(device_stream)> filling(std::span<std::byte> memory, unsigned seed, std::uint64_t ticks = 0) {
    return [this, memory, seed, ticks](device_stream s) {
      gpu.launch(static_cast<transports::cuda_stream>(s), ticks, [this, memory, seed] { fill(gpu, memory, seed); });
    };
  }
  /// Launches a kernel that copies what `from` holds when the kernel runs.
  std::function<void(device_stream)> copying(std::span<std::byte> to, std::span<const std::byte> from) {
    return [this, to, from](device_stream s) {
      gpu.launch(static_cast<transports::cuda_stream>(s), 0,
                 [this, to, from] { std::copy_n(gpu.shadow(from.data()), from.size(), gpu.shadow(to.data())); });
    };
  }
  compute_options in_stream(rank_id r) { return {.stream = streams[r], .memory = job.gpu_memory(r)}; }

  fake_cuda gpu;
  one_process job{{.ranks = 2, .gpu = &gpu}};
  std::vector<p2p> pairs;
  std::vector<transports::cuda_stream> streams;
  std::vector<transports::cuda_memory> x, y, a;
};

task<> turns(int count) {
  for (int i = 0; i < count; ++i) co_await yield;
}

// Rank 1 receives after `late` turns of its loop, and names no stream.
task<> receives_late(dataflow& flow, two_on_a_gpu* w, int late) {
  co_await turns(late);
  auto came = w->pairs[1].start(flow, {p2p::irecv(w->y[1].bytes(), {.from = 0})});
  co_await came;
}

template <class Rank0>
void run_both(two_on_a_gpu& w, Rank0 rank_0, int late) {
  w.job.run(
      [&](rank& self) { return self.id() == 0 ? with_dataflow(rank_0, &w) : with_dataflow(receives_late, &w, late); });
}

task<> sends_what_is_computed(dataflow& flow, two_on_a_gpu* w) {
  const auto& a = w->a[0];
  static_cast<void>(flow.compute({writes(a.bytes())}, w->filling(a.bytes(), 3, 300), w->in_stream(0)));
  auto sent = w->pairs[0].start(flow, {p2p::isend(a.bytes(), {.to = 1})});
  co_await sent;
}

// A kernel overwrites the sent buffer. The stream has that kernel at once, and it must wait for the send.
task<> overwrites_what_is_sent(dataflow& flow, two_on_a_gpu* w) {
  const auto& x = w->x[0];
  fill(w->gpu, x.bytes(), 1);
  auto sent = w->pairs[0].start(flow, {p2p::isend(x.bytes(), {.to = 1})});
  auto overwritten = flow.compute({writes(x.bytes())}, w->filling(x.bytes(), 2), w->in_stream(0));
  co_await turns(100);
  CHECK_FALSE(sent.done());
  CHECK_FALSE(overwritten.done());
  CHECK(holds(w->gpu, x.bytes(), 1));
  co_await overwritten;
  CHECK(sent.done());
  CHECK(holds(w->gpu, x.bytes(), 2));
}

task<> sends(dataflow& flow, two_on_a_gpu* w) {
  co_await turns(200);
  const auto& x = w->x[0];
  fill(w->gpu, x.bytes(), 5);
  auto sent = w->pairs[0].start(flow, {p2p::isend(x.bytes(), {.to = 1})});
  co_await sent;
}

task<> computes_with_what_comes(dataflow& flow, two_on_a_gpu* w, device_stream known_to_the_batch) {
  const auto& y = w->y[1];
  const auto& a = w->a[1];
  auto came = w->pairs[1].start(flow, {p2p::irecv(y.bytes(), {.from = 0})}, {.stream = known_to_the_batch});
  auto computed =
      flow.compute({reads(y.bytes()), writes(a.bytes())}, w->copying(a.bytes(), y.bytes()), w->in_stream(1));
  CHECK_FALSE(came.done());
  co_await computed;
  CHECK(came.done());
  CHECK(holds(w->gpu, a.bytes(), 5));
}

}  // namespace

TEST_CASE("a message leaves after the kernels that write it, and its batch needs no stream") {
  for (const auto& way : {direct(), chunked(3'000, 3)}) {
    CAPTURE(way->id());
    two_on_a_gpu w({way});
    run_both(w, sends_what_is_computed, 0);
    CHECK(holds(w.gpu, w.y[1].bytes(), 3));
  }
}

TEST_CASE("a kernel that overwrites a buffer in flight is enqueued at once, and runs after the message has left") {
  two_on_a_gpu w;
  run_both(w, overwrites_what_is_sent, 300);
  CHECK(holds(w.gpu, w.y[1].bytes(), 1));
}

TEST_CASE(
    "a kernel runs after the messages into the buffer that it reads, whether the batch was given its stream or not") {
  for (const bool known : {true, false}) {
    CAPTURE(known);
    two_on_a_gpu w;
    w.job.run([&](rank& self) {
      const device_stream stream = known ? w.streams[1] : nullptr;
      return self.id() == 0 ? with_dataflow(sends, &w) : with_dataflow(computes_with_what_comes, &w, stream);
    });
  }
}

TEST_CASE("kernels of several streams are ordered by their buffers: a writer waits for all, and readers run together") {
  fake_cuda gpu;
  reactor loop;
  transports::cuda_copies copies(gpu, 0);
  loop.attach(copies);
  {
    transports::cuda_space space(copies);
    const auto x = space.make(1'000);
    const std::vector<transports::cuda_stream> s{gpu.make_stream(0), gpu.make_stream(0), gpu.make_stream(0)};
    std::string log;
    bool may_end = false;
    dataflow flow(loop);
    const auto kernel = [&](int stream, std::vector<buffer_access> uses, char letter, std::uint64_t ticks) {
      const auto launches = [&](device_stream in) {
        gpu.launch(static_cast<transports::cuda_stream>(in), ticks, [&log, letter] { log += letter; });
      };
      return flow.compute(uses, launches, {.stream = s[static_cast<std::size_t>(stream)], .memory = &space});
    };
    auto written = kernel(0, {writes(x->bytes())}, 'w', 200);
    const auto until_told = [&](device_stream in) {
      gpu.launch_until(static_cast<transports::cuda_stream>(in), [&] { return may_end; });
    };
    auto long_one = flow.compute({reads(x->bytes())}, until_told, {.stream = s[1], .memory = &space});
    auto read = kernel(2, {reads(x->bytes())}, 'r', 0);
    auto again = kernel(0, {writes(x->bytes())}, 'W', 0);
    read.wait();
    CHECK(log == "wr");
    CHECK(written.done());
    for (int i = 0; i < 300; ++i) again.test();
    CHECK_FALSE(again.done());
    CHECK(log == "wr");
    may_end = true;
    again.wait();
    CHECK(long_one.done());
    CHECK(log == "wrW");
    for (const auto stream : s) gpu.destroy(stream);
  }
  loop.detach(copies);
}

TEST_CASE(
    "a kernel's stream waits for an earlier host step on its buffer, and a later host step waits for the kernel") {
  fake_cuda gpu;
  reactor loop;
  transports::cuda_copies copies(gpu, 0);
  loop.attach(copies);
  {
    transports::cuda_space space(copies);
    const auto x = space.make(1'000);
    const auto stream = gpu.make_stream(0);
    std::string log;
    dataflow flow(loop);
    const auto brings = [&]() -> task<> {
      co_await turns(100);
      log += 'h';
    };
    static_cast<void>(flow.compute({writes(x->bytes())}, brings));
    const auto launches = [&](device_stream in) {
      log += 'e';
      gpu.launch(static_cast<transports::cuda_stream>(in), 50, [&log] { log += 'k'; });
    };
    static_cast<void>(flow.compute({updates(x->bytes())}, launches, {.stream = stream, .memory = &space}));
    CHECK(log == "e");  // the kernel is enqueued at once
    const auto after = [&] { log += 'H'; };
    auto last = flow.compute({reads(x->bytes())}, after, {.where = compute_options::place::actor_thread});
    last.wait();
    CHECK(log == "ehkH");
    gpu.destroy(stream);
  }
  loop.detach(copies);
}

TEST_CASE("a computation without a stream runs by itself, and an exception of a launch is the outcome of its work") {
  fake_cuda gpu;
  reactor loop;
  transports::cuda_copies copies(gpu, 0);
  loop.attach(copies);
  {
    transports::cuda_space space(copies);
    const auto x = space.make(1'000);
    const auto stream = gpu.make_stream(0);
    dataflow flow(loop);
    device_stream seen = stream;
    std::vector<int> numbers(10);
    auto here = flow.compute({writes(numbers)}, [&](device_stream s) { seen = s; });
    here.wait();
    CHECK(seen == nullptr);
    auto refused =
        flow.compute({writes(x->bytes())},
                     [](device_stream) { raise({errc::device_failed, "cudaErrorInvalidConfiguration: planted"}); },
                     {.name = "sum", .stream = stream, .memory = &space});
    CHECK(refused.outcome().reason().what() == "device_failed: cudaErrorInvalidConfiguration: planted");
    CHECK_THROWS_WITH(flow.compute({}, [](device_stream) {}, {.name = "sum", .stream = stream}),
                      "bad_argument: sum: a computation in a stream needs the `memory` of the stream's device");
    gpu.fault_now();
    auto failed = flow.compute({writes(x->bytes())}, [](device_stream) {}, {.stream = stream, .memory = &space});
    CHECK(failed.outcome().reason().what() == "device_failed: device 0: cudaErrorIllegalAddress: planted");
    gpu.destroy(stream);
  }
  loop.detach(copies);
}

TEST_CASE("a kernel that is cancelled before its turn releases its stream") {
  two_on_a_gpu w;
  const auto& x = w.x[0];
  dataflow flow(w.job.loop());
  auto sent = w.pairs[0].start(flow, {p2p::isend(x.bytes(), {.to = 1})});  // no rank receives it
  bool ran = false;
  const auto launches = [&](device_stream s) {
    w.gpu.launch(static_cast<transports::cuda_stream>(s), 0, [&] { ran = true; });
  };
  auto overwritten = flow.compute({writes(x.bytes())}, launches, w.in_stream(0));
  for (int i = 0; i < 100; ++i) overwritten.test();
  CHECK_FALSE(ran);
  overwritten.cancel();
  CHECK(overwritten.outcome().code() == errc::cancelled);
  for (const deadline limit; !ran && !limit.is_over();) w.job.loop().poll();
  CHECK(ran);
  sent.cancel();
  CHECK(sent.outcome().code() == errc::cancelled);
}

TEST_CASE("the two-round ring computes the right sums with kernels in streams and batches without a stream") {
  using namespace ring_case;
  class ordered_by_buffers final : public device_place {
   public:
    ordered_by_buffers(transports::cuda_copies& copies, transports::cuda_space& memory)
        : device_place(copies, memory), gpu_(dynamic_cast<fake_cuda&>(copies.driver())) {}
    device_stream stream() noexcept override { return nullptr; }

   private:
    void launch(const kernels::any& kernel, std::size_t count, transports::cuda_stream s) override {
      gpu_.launch(s, 100, [kernel, count] { kernels::run(kernel, count); });
    }
    const std::byte* seen_by_kernels(const std::byte* address) override {
      return address == nullptr ? nullptr : gpu_.shadow(address);
    }
    fake_cuda& gpu_;
  };
  struct rank_of_ring {
    static task<> run(rank* self, place* at, kernel* k, p2p pairs, std::vector<float>* out) {
      for (int round = 0; round < 10; ++round) {
        const std::vector<float> mine{static_cast<float>(self->id())};
        const std::vector<float> none{-1};
        for (const array<float>* a : {&k->t0, &k->y0, &k->a, &k->t1, &k->y1, &k->out})
          co_await bring(*at, *a, std::span<const float>(none));
        co_await bring(*at, k->x0, std::span<const float>(mine));
        co_await with_dataflow(two_rounds, self, pairs, k, ring_options{});
        *out = co_await taken(*at, k->out);
        CHECK(*out == std::vector<float>{right_of_four[self->id()]});
      }
    }
  };
  fake_cuda gpu;
  one_process job({.ranks = 4, .gpu = &gpu});
  std::vector<std::unique_ptr<ordered_by_buffers>> places;
  std::vector<std::unique_ptr<kernel>> parts;
  std::vector<p2p> pairs;
  std::vector<std::vector<float>> out(4);
  for (rank_id r = 0; r < 4; ++r) {
    places.push_back(std::make_unique<ordered_by_buffers>(*job.gpu(r), *job.gpu_memory(r)));
    parts.push_back(std::make_unique<kernel>(1, *places[r]));
    auto op = pairs_named("ring");
    op.timeout = 20s;
    op.memory = job.gpu_memory(r);
    pairs.emplace_back(job[r], op);
  }
  job.run([&](rank& self) {
    const rank_id r = self.id();
    return rank_of_ring::run(&self, places[r].get(), parts[r].get(), pairs[r], &out[r]);
  });
}
