// Batches on device buffers, in the order of a stream.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>

#include <algorithm>
#include <array>
#include <string>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

constexpr std::size_t count = 5'000;
constexpr float c = 1.000244140625F;

// The buffers of one rank on the device, and kernels that work on them.
class device_ring {
 public:
  explicit device_ring(fake_cuda& gpu) : gpu_(gpu), stream_(gpu.make_stream(0)) {
    for (auto& b : buffers_) b = transports::cuda_memory::on_device(gpu, 0, count * sizeof(float));
  }
  device_ring(const device_ring&) = delete;
  device_ring& operator=(const device_ring&) = delete;
  ~device_ring() { gpu_.destroy(stream_); }

  enum name : std::size_t { x0, t0, y0, a, t1, y1, out, names };
  std::span<std::byte> operator[](name n) const { return buffers_[n].bytes(); }
  transports::cuda_stream stream() const noexcept { return stream_; }
  float* seen(name n) { return reinterpret_cast<float*>(gpu_.shadow(buffers_[n].bytes().data())); }
  template <class F>
  void launch(F f, std::uint64_t ticks = 200) {
    gpu_.launch(stream_, ticks, [f] {
      for (std::size_t i = 0; i < count; ++i) f(i);
    });
  }
  std::size_t wrong(rank_id self, unsigned seed) {
    const rank_id other = 1 - self;
    const auto x = [seed](rank_id r, std::size_t i) { return static_cast<float>((17 * r + i + seed) % 512); };
    std::size_t n = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float mine = x(other, i) + (2 * x(self, i) + 1);
      const float theirs = x(self, i) + (2 * x(other, i) + 1);
      n += seen(out)[i] == theirs + mine * c ? 0 : 1;
    }
    return n;
  }
  void begin_with(rank_id self, unsigned seed) {
    float* const x = seen(x0);
    // Rank 1's kernel takes longer, so the credit for rank 1's put arrives in time.
    launch([x, self, seed](std::size_t i) { x[i] = static_cast<float>((17 * self + i + seed) % 512); },
           200 + 100 * self);
  }

 private:
  fake_cuda& gpu_;
  transports::cuda_stream stream_;
  std::array<transports::cuda_memory, names> buffers_;
};

struct pass {
  std::size_t wrong = 0;
  bool enqueued_ahead = false;  // everything was enqueued before any message arrived
};

// Both rounds with all their kernels. The host waits for nothing before the end.
task<> two_rounds(dataflow& flow, p2p ring, device_ring* k, rank_id self, unsigned seed, pass* seen) {
  using d = device_ring;
  const rank_id other = 1 - self;
  const batch_options ordered{.stream = k->stream()};
  k->begin_with(self, seed);
  const auto round = [&](d::name from, d::name to) {
    const std::array both{p2p::isend((*k)[from], {.to = other}), p2p::irecv((*k)[to], {.from = other})};
    return ring.start(flow, both, ordered);
  };
  const flow_work first = round(d::x0, d::y0);
  k->launch([x = k->seen(d::x0), t = k->seen(d::t0)](std::size_t i) { t[i] = 2 * x[i] + 1; });
  k->launch([y = k->seen(d::y0), t = k->seen(d::t0), a = k->seen(d::a)](std::size_t i) { a[i] = y[i] + t[i]; });
  const flow_work second = round(d::a, d::y1);
  k->launch([a = k->seen(d::a), t = k->seen(d::t1)](std::size_t i) { t[i] = a[i] * c; });
  k->launch([y = k->seen(d::y1), t = k->seen(d::t1), o = k->seen(d::out)](std::size_t i) { o[i] = y[i] + t[i]; });
  seen->enqueued_ahead = !first.done() && !second.done();
  co_await first;
  co_await second;
}

task<> passes(two_ranks& w, std::vector<std::unique_ptr<device_ring>>& k, std::vector<p2p>& rings, unsigned seed,
              std::array<pass, 2>* seen) {
  runtime::scope& here = co_await this_scope;
  runtime::scope both(here);
  for (rank_id r = 0; r < 2; ++r) both.spawn(with_dataflow(two_rounds, rings[r], k[r].get(), r, seed, &(*seen)[r]));
  co_await both.join();
  for (rank_id r = 0; r < 2; ++r) {
    co_await reaches(*w.copies[r], k[r]->stream());
    (*seen)[r].wrong = k[r]->wrong(r, seed);
  }
}

TEST_CASE("two rounds around a ring are enqueued at once, and every kernel sees its messages, with every config") {
  for (const config_ptr& way :
       {direct(), chunked(3'000, 3), put(), put(3'000, 3), get(), put(3'000, 3, {.kernel_blocks = 8}),
        get(3'000, 3, {.kernel_blocks = 8, .streams = 1})}) {
    CAPTURE(way->id());
    fake_cuda gpu;
    two_ranks w(gpu, {direct()});
    std::vector<std::unique_ptr<device_ring>> k;
    std::vector<p2p> rings;
    std::vector<actors::registered_memory> known;
    p2p_options op{.name = "ring", .configs = {direct()}};
    if (way->id() != "direct") op.configs.push_back(way);
    for (rank_id r = 0; r < 2; ++r) {
      k.push_back(std::make_unique<device_ring>(gpu));
      op.memory = w.spaces[r].get();
      rings.push_back(p2p(*w.ranks[r], op));
      for (const auto name : {device_ring::x0, device_ring::y0, device_ring::a, device_ring::y1})
        known.push_back(rings[r].registered((*k[r])[name]));
    }
    const auto tried = [&] {
      for (const auto& e : w.ranks[0]->agreements()) {
        if (e.op != "ring" || e.sender != 0) continue;
        const auto* const found = e.assigned->find(count * sizeof(float));
        return found != nullptr && found->where() == actors::search::stage::decided;
      }
      return false;
    };
    const auto over = [&] { return op.configs.size() == 1 || tried(); };
    std::size_t wrong = 0;
    std::size_t waited = 0;
    const deadline limit;
    for (unsigned seed = 1; !limit.is_over() && (seed < 10 || !over()); ++seed) {
      std::array<pass, 2> seen;
      runtime::run(w.loop, passes(w, k, rings, seed, &seen));
      for (const pass& p : seen) {
        wrong += p.wrong;
        waited += p.enqueued_ahead ? 0 : 1;
      }
    }
    CHECK(over());
    CHECK(wrong == 0);
    CHECK(waited == 0);
    const auto flags = w.wires[0]->planes().flags_set + w.wires[1]->planes().flags_set;
    CHECK((flags > 0) == (way->what_it_needs() == needs::credit));
    const auto by_kernel = std::ranges::count(gpu.seen_copies, 8U, &fake_cuda::seen_copy::blocks);
    CHECK((by_kernel > 0) == (way->id().find("kernel_blocks=8") != std::string::npos));
  }
}

TEST_CASE(
    "kernels see 12 successive messages into one buffer, though all are enqueued before the first message arrives") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  constexpr unsigned messages = 12;
  const auto into = transports::cuda_memory::on_device(gpu, 0, count);
  const auto from = transports::cuda_memory::on_device(gpu, 0, count * messages);
  for (unsigned i = 0; i < messages; ++i) fill(gpu, from.bytes().subspan(i * count, count), i + 1);
  std::vector<p2p> ends;
  for (rank_id r = 0; r < 2; ++r)
    ends.push_back(p2p(*w.ranks[r], {.name = "rows", .configs = {direct(), put()}, .memory = w.spaces[r].get()}));
  const auto known = ends[1].registered(into.bytes());
  const transports::cuda_stream stream = gpu.make_stream(0);
  struct program {
    static task<> receive(dataflow& flow, two_ranks* w, fake_cuda* gpu, p2p end, std::span<std::byte> into,
                          transports::cuda_stream stream, unsigned* right) {
      const batch_options ordered{.stream = stream};
      for (unsigned i = 0; i < messages; ++i) {
        const std::array one{p2p::irecv(into, {.from = 0})};
        static_cast<void>(end.start(flow, one, ordered));
        gpu->launch(stream, 700, [=] { *right += holds(*gpu, into, i + 1) ? 1 : 0; });
      }
      CHECK_FALSE(w->copies[1]->flags().down_for(into).empty());
      co_return;
    }
    static task<> send(dataflow& flow, p2p end, std::span<std::byte> from) {
      for (unsigned i = 0; i < messages; ++i) {
        const std::array one{p2p::isend(from.subspan(i * count, count), {.to = 1})};
        static_cast<void>(end.start(flow, one));
      }
      co_return;
    }
  };
  unsigned right = 0;
  {
    runtime::scope both(w.loop);
    both.spawn(with_dataflow(program::receive, &w, &gpu, ends[1], into.bytes(), stream, &right));
    both.spawn(with_dataflow(program::send, ends[0], from.bytes()));
    run_until(w.loop, [&] { return both.running() == 0; });
  }
  runtime::run(w.loop, reaches(*w.copies[1], stream));
  CHECK(right == messages);
  gpu.destroy(stream);
}

TEST_CASE("two messages into the halves of a buffer, which is then sent on whole, may arrive in either order") {
  for (const bool second_first : {false, true}) {
    CAPTURE(second_first);
    fake_cuda gpu;
    two_ranks w(gpu, {direct()});
    const auto gathered = transports::cuda_memory::on_device(gpu, 0, 2 * count);
    const auto from = transports::cuda_memory::on_device(gpu, 0, 2 * count);
    const auto back = transports::cuda_memory::on_device(gpu, 0, 2 * count);
    for (unsigned i = 0; i < 2; ++i) fill(gpu, from.bytes().subspan(i * count, count), i + 1);
    std::vector<p2p> ends;
    for (rank_id r = 0; r < 2; ++r)
      ends.push_back(p2p(*w.ranks[r], {.name = "shards", .memory = w.spaces[r].get(), .timeout = 2s}));
    const transports::cuda_stream stream = gpu.make_stream(0);
    struct program {
      static task<> gather(dataflow& flow, fake_cuda* gpu, p2p end, std::span<std::byte> into,
                           transports::cuda_stream stream) {
        const batch_options ordered{.stream = stream};
        const std::array halves{p2p::irecv(into.first(count), {.from = 1, .tag = 0}),
                                p2p::irecv(into.subspan(count), {.from = 1, .tag = 1})};
        auto coming = end.start(flow, halves, ordered);
        gpu->launch(stream, 100, [] {});
        const std::array whole{p2p::isend(into, {.to = 1, .tag = 2})};
        auto going = end.start(flow, whole, ordered);
        co_await coming;
        co_await going;
      }
      static task<> give(dataflow& flow, reactor* loop, p2p end, std::span<std::byte> from, std::span<std::byte> back,
                         bool second_first) {
        const std::array all{p2p::irecv(back, {.from = 0, .tag = 2})};
        auto coming = end.start(flow, all);
        const std::array one{p2p::isend(from.first(count), {.to = 0, .tag = 0})};
        const std::array other{p2p::isend(from.subspan(count), {.to = 0, .tag = 1})};
        auto early = end.start(flow, second_first ? other : one);
        static_cast<void>(co_await sleep_until(loop->deadline_in(20'000'000)));
        auto late = end.start(flow, second_first ? one : other);
        co_await early;
        co_await late;
        co_await coming;
      }
    };
    {
      runtime::scope both(w.loop);
      both.spawn(with_dataflow(program::gather, &gpu, ends[0], gathered.bytes(), stream));
      both.spawn(with_dataflow(program::give, &w.loop, ends[1], from.bytes(), back.bytes(), second_first));
      run_until(w.loop, [&] { return both.running() == 0; });
    }
    for (unsigned i = 0; i < 2; ++i) CHECK(holds(gpu, back.bytes().subspan(i * count, count), i + 1));
    gpu.destroy(stream);
  }
}

TEST_CASE(
    "an exchange in place on a device delivers right data with every config, awaited or in the order of a stream") {
  for (const config_ptr& way : {direct(), chunked(20'000, 3), put(), get()}) {
    for (const bool in_a_stream : {false, true}) {
      for (const bool one_batch : {true, false}) {
        CAPTURE(way->id());
        CAPTURE(in_a_stream);
        CAPTURE(one_batch);
        fake_cuda gpu;
        two_ranks w(gpu, {direct()});
        constexpr unsigned rounds = 5;
        constexpr std::size_t bytes = 60'000;  // too large to be copied at the sender, so they stay there
        std::array<transports::cuda_memory, 2> x;
        std::array<transports::cuda_stream, 2> streams{};
        std::vector<p2p> ends;
        std::vector<actors::registered_memory> known;
        for (rank_id r = 0; r < 2; ++r) {
          x[r] = transports::cuda_memory::on_device(gpu, 0, bytes);
          fill(gpu, x[r].bytes(), 10 + r);
          streams[r] = gpu.make_stream(0);
          p2p_options op{.name = "places", .configs = {direct()}, .memory = w.spaces[r].get()};
          op.timeout = 5s;
          if (way->id() != "direct") op.configs.push_back(way);
          ends.push_back(p2p(*w.ranks[r], op));
          known.push_back(ends[r].registered(x[r].bytes()));
        }
        std::array<unsigned, 2> right{};
        struct program {
          static task<> run(dataflow& flow, fake_cuda* gpu, p2p end, std::span<std::byte> x, rank_id self,
                            transports::cuda_stream stream, bool ordered, bool one_batch, unsigned* right) {
            const batch_options o{.stream = ordered ? stream : nullptr};
            const std::array both{p2p::isend(x, {.to = 1 - self}), p2p::irecv(x, {.from = 1 - self})};
            for (unsigned i = 1; i <= rounds; ++i) {
              std::vector<flow_work> parts;
              if (one_batch) {
                parts.push_back(end.start(flow, both, o));
              } else {
                for (const std::size_t part : {0, 1}) parts.push_back(end.start(flow, std::span(&both[part], 1), o));
              }
              const unsigned came = 10 + (self + i) % 2;
              if (ordered) {
                gpu->launch(stream, 300, [=] { *right += holds(*gpu, x, came) ? 1 : 0; });
                continue;
              }
              for (const flow_work& part : parts) co_await part;
              *right += holds(*gpu, x, came) ? 1 : 0;
            }
          }
        };
        {
          runtime::scope all(w.loop);
          for (rank_id r = 0; r < 2; ++r)
            all.spawn(with_dataflow(program::run, &gpu, ends[r], x[r].bytes(), r, streams[r], in_a_stream, one_batch,
                                    &right[r]));
          run_until(w.loop, [&] { return all.running() == 0; });
        }
        for (rank_id r = 0; r < 2; ++r) {
          runtime::run(w.loop, reaches(*w.copies[r], streams[r]));
          CHECK(right[r] == rounds);
          gpu.destroy(streams[r]);
        }
      }
    }
  }
}

// The kernels that write the sent buffer and read the receive buffer still run when the call is made.
TEST_CASE("a put gets its credit although kernels still use both buffers when the call is made") {
  fake_cuda gpu;
  gpu.ticks_per_copy = 300;  // slow copies, so that a put, with one copy, beats `direct`, with two
  const auto from = transports::cuda_memory::on_device(gpu, 0, count);
  const auto to = transports::cuda_memory::on_device(gpu, 0, count);
  two_ranks w(gpu, {direct(), put()});
  const auto known = w.ends[1].registered(to.bytes());
  struct program {
    static task<> both(two_ranks& w, std::span<std::byte> from, std::span<std::byte> to, time_ns between_ns) {
      runtime::scope& here = co_await this_scope;
      runtime::scope working(here);
      working.spawn(two_ranks::takes(w.ends[1], to, {.from = 0}));
      const time_ns then = w.loop.deadline_in(between_ns);
      if (between_ns != 0) static_cast<void>(co_await sleep_until(then));
      working.spawn(w.ends[0].send(from, {.to = 1}));
      co_await working.join();
    }
  };
  for (const deadline limit; !limit.is_over() && !w.decided(count);)
    runtime::run(w.loop, program::both(w, from.bytes(), to.bytes(), 100'000));
  REQUIRE(w.decided(count));
  INFO(w.search(count)->chosen().why);
  REQUIRE(w.search(count)->chosen().config == "put");
  const transports::cuda_stream makes = gpu.make_stream(0);
  const transports::cuda_stream uses = gpu.make_stream(0);
  const std::uint64_t before = w.wires[0]->planes().ipc;
  unsigned wrong = 0;
  constexpr unsigned messages = 20;
  for (unsigned i = 1; i <= messages; ++i) {
    const std::uint64_t longer = i % 2 == 0 ? 9'000 : 3'000;
    gpu.launch(makes, longer, [&, i] { fill(gpu, from.bytes(), i); });
    gpu.launch(uses, 3'000, [&, i] { wrong += i == 1 || holds(gpu, to.bytes(), i - 1) ? 0 : 1; });
    CHECK(w.copies[0]->after(from.bytes(), makes) == errc::none);
    CHECK(w.copies[1]->after(to.bytes(), uses) == errc::none);
    runtime::run(w.loop, program::both(w, from.bytes(), to.bytes(), 0));
    wrong += holds(gpu, to.bytes(), i) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(w.wires[0]->planes().ipc - before > messages / 3);
  gpu.destroy(makes);
  gpu.destroy(uses);
}

TEST_CASE("a cancelled batch releases the kernels behind it") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  const auto to = transports::cuda_memory::on_device(gpu, 0, count);
  const p2p end(*w.ranks[1], {.name = "given up", .memory = w.spaces[1].get()});
  const transports::cuda_stream stream = gpu.make_stream(0);
  bool ran = false;
  struct program {
    static task<> run(dataflow& flow, p2p end, std::span<std::byte> to, transports::cuda_stream stream, fake_cuda* gpu,
                      bool* ran) {
      const batch_options ordered{.stream = stream};
      const std::array one{p2p::irecv(to, {.from = 0})};
      flow_work first = end.start(flow, one, ordered);
      flow_work second = end.start(flow, one, ordered);  // waits in the flow until the first has ended
      gpu->launch(stream, 1, [ran] { *ran = true; });
      second.cancel();
      first.cancel();
      co_return;
    }
  };
  CHECK_THROWS_WITH(runtime::run(w.loop, with_dataflow(program::run, end, to.bytes(), stream, &gpu, &ran)),
                    doctest::Contains("cancelled"));
  CHECK(w.copies[1]->flags().down_for(to.bytes()).empty());
  runtime::run(w.loop, reaches(*w.copies[1], stream));
  CHECK(ran);
  gpu.destroy(stream);
}

TEST_CASE("a batch refuses a stream for buffers in host memory, or with an unknown peer, before it enqueues anything") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct()});
  const auto to = transports::cuda_memory::on_device(gpu, 0, count);
  const p2p host(*w.ranks[1], {.name = "host"});
  const p2p device(*w.ranks[1], {.name = "device", .edges = {{0, 1}}, .memory = w.spaces[1].get()});
  const transports::cuda_stream stream = gpu.make_stream(0);
  struct program {
    static task<> run(dataflow& flow, p2p end, std::span<std::byte> to, rank_id from, transports::cuda_stream stream) {
      const batch_options ordered{.stream = stream};
      const std::array two{p2p::irecv(to, {.from = 0}), p2p::irecv(to, {.from = from})};
      static_cast<void>(end.start(flow, two, ordered));
      co_return;
    }
  };
  std::vector<std::byte> here(8);
  CHECK_THROWS_WITH(runtime::run(w.loop, with_dataflow(program::run, host, std::span(here), rank_id{0}, stream)),
                    doctest::Contains("a stream was given, but the op's memory has no streams"));
  CHECK_THROWS_WITH(runtime::run(w.loop, with_dataflow(program::run, device, to.bytes(), rank_id{7}, stream)),
                    doctest::Contains("rank 7"));
  CHECK(w.copies[1]->flags().down_for(to.bytes()).empty());
  gpu.destroy(stream);
}

}  // namespace
