// Plane `ucx`: device buffers that the underlying transport moves by itself, and the reason that is given where it cannot.
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/link_over.hpp>

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
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
using transports::cuda_copies;

constexpr std::size_t bytes = 50'000;

std::int64_t steady_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

/// A transport like UCX with its CUDA transports: it reads and writes the device memory that it is given, and does not know of kernels.
class device_mover final : public link_over {
 public:
  device_mover(link& below, cuda_copies& copies) : link_over(below), copies_(copies) {}
  result<> moves_devices() const override { return {}; }
  errc send_device(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                   completion* done) override {
    CHECK_FALSE(copies_.busy(payload));
    ++sent;
    for (const std::int64_t began = steady_ns(); slow && slow() && steady_ns() - began < 5'000'000;) {}
    return below_.send(to, on, header, payload, done);
  }
  errc fetch_device(arrival&& message, std::span<std::byte> into, completion* done) override {
    CHECK_FALSE(copies_.busy(into));
    ++fetched;
    return below_.fetch(std::move(message), into, done);
  }
  std::size_t sent = 0;
  std::size_t fetched = 0;
  std::function<bool()> slow;  // while true, a send takes 5 ms

 private:
  cuda_copies& copies_;
};

struct over_a_mover {
  over_a_mover(fake_cuda& gpu, const std::vector<config_ptr>& configs) : own{cuda_copies(gpu, 0), cuda_copies(gpu, 0)} {
    loop.attach(below);
    rank_settings settings;
    settings.plan.budget_fraction = 1e9;
    for (rank_id r = 0; r < 2; ++r) {
      loop.attach(own[r]);
      movers.push_back(std::make_unique<device_mover>(below[r], own[r]));
      wires.push_back(std::make_unique<transports::cuda_link>(*movers[r], own[r]));
      spaces.push_back(std::make_unique<transports::cuda_space>(own[r]));
    }
    for (rank_id r = 0; r < 2; ++r) {
      ranks.push_back(std::make_unique<ops::rank>(rank_foundation{loop, *wires[r], nullptr, {{11, 12}}}, settings));
      ends.push_back(transfer(
          *ranks[r],
          {.name = "buffers", .edges = {{0, 1}}, .configs = configs, .memory = spaces[r].get(), .timeout = 20s}));
    }
  }
  ~over_a_mover() {
    for (auto& c : own) c.drain();
    ranks.clear();
    wires.clear();
    for (auto& c : own) loop.detach(c);
    loop.detach(below);
  }
  std::array<cuda_copies, 2> own;
  reactor loop;
  transports::process_world below{{&own[0], &own[1]}};
  std::vector<std::unique_ptr<device_mover>> movers;
  std::vector<std::unique_ptr<transports::cuda_link>> wires;
  std::vector<std::unique_ptr<transports::cuda_space>> spaces;
  std::vector<std::unique_ptr<ops::rank>> ranks;
  std::vector<transfer> ends;
};

// A kernel writes each message just before its send. Another kernel reads each message from the receive buffer, just before the next
// message arrives there.
task<> sends(over_a_mover* w, fake_cuda* gpu, std::span<std::byte> from, transports::cuda_stream s, int times) {
  for (int i = 0; i < times; ++i) {
    gpu->launch(s, 20, [=] { fill(*gpu, from, static_cast<unsigned>(i)); });
    CHECK(w->own[0].after(from, s) == errc::none);
    co_await w->ends[0].send(from, {.to = 1});
  }
}
task<> receives(over_a_mover* w, fake_cuda* gpu, std::span<std::byte> to, transports::cuda_stream s, int times) {
  for (int i = 0; i < times; ++i) {
    const std::uint64_t got = co_await w->ends[1].receive(to, {.from = 0});
    CHECK(got == to.size());
    gpu->launch(s, 20, [=] { CHECK(holds(*gpu, to, static_cast<unsigned>(i))); });
    CHECK(w->own[1].after(to, s) == errc::none);
  }
}
task<> both(over_a_mover* w, fake_cuda* gpu, std::span<std::byte> from, std::span<std::byte> to, int times) {
  const std::array<transports::cuda_stream, 2> s{gpu->make_stream(0), gpu->make_stream(0)};
  scope& here = co_await this_scope;
  scope working(here);
  working.spawn(sends(w, gpu, from, s[0], times));
  working.spawn(receives(w, gpu, to, s[1], times));
  co_await working.join();
  for (rank_id r = 0; r < 2; ++r) {
    co_await reaches(w->own[r], s[r]);
    gpu->destroy(s[r]);
  }
}

}  // namespace

TEST_CASE("a transport that moves device memory gets a buffer only once no kernel uses it, for sends and receives") {
  for (const auto& way : {ucx(), ucx(20'000, 2)}) {
    CAPTURE(way->id());
    fake_cuda gpu;
    const auto from = transports::cuda_memory::on_device(gpu, 0, bytes);
    const auto to = transports::cuda_memory::on_device(gpu, 0, bytes);
    over_a_mover w(gpu, {direct(), way});
    const auto tried = [&] {
      const auto all = w.ranks[0]->agreements();
      const auto* const c = all.empty() ? nullptr : all.front().assigned->find(bytes);
      return c != nullptr && c->is_decided();
    };
    for (const deadline limit; !tried() && !limit.is_over();) run(w.loop, both(&w, &gpu, from.bytes(), to.bytes(), 20));
    REQUIRE(tried());
    CHECK(w.movers[0]->sent > 0);
    CHECK(w.movers[1]->fetched > 0);
    CHECK(w.wires[0]->planes().by_transport == w.movers[0]->sent);
    CHECK(w.wires[0]->planes().staged > 0);  // by `direct`
    for (const auto& aggregate : w.ranks[0]->agreements().front().assigned->find(bytes)->aggregates())
      CHECK(aggregate.measured());
  }
}

TEST_CASE("one slow message does not exclude a config of device buffers") {
  fake_cuda gpu;
  const auto from = transports::cuda_memory::on_device(gpu, 0, bytes);
  const auto to = transports::cuda_memory::on_device(gpu, 0, bytes);
  over_a_mover w(gpu, {direct(), ucx()});
  const auto search = [&] {
    const auto all = w.ranks[0]->agreements();
    return all.empty() ? nullptr : all.front().assigned->find(bytes);
  };
  const auto times_tried = [&] {
    const auto* const c = search();
    return c == nullptr || c->book().repetitions.size() < 2 ? 0 : c->book().repetitions[1].size();
  };
  w.movers[0]->slow = [&] { return times_tried() <= 1; };
  const auto decided = [&] { return search() != nullptr && search()->is_decided(); };
  for (const deadline limit; !decided() && !limit.is_over();) run(w.loop, both(&w, &gpu, from.bytes(), to.bytes(), 20));
  REQUIRE(decided());
  CHECK(times_tried() > 2);
  CHECK(times_tried() % 2 == 0);  // trials come in pairs
}

TEST_CASE("ucx is no candidate if the transport moves only host memory, and the reason says so") {
  fake_cuda gpu;
  two_ranks w(gpu, {direct(), ucx()});
  CHECK(ucx()->works_over(*w.wires[0], w.spaces[0].get()).reason().text() ==
        "this link's transport moves only host memory");
  CHECK(w.ranks[0]->participants().front()->unavailable ==
        std::vector<std::string>{"ucx: this link's transport moves only host memory"});
  CHECK(is(ucx()->works_over(*w.wires[0], nullptr), {.code = errc::unavailable, .quotes = "direct"}));
  CHECK(ucx(4'096, 2)->id() == "ucx(chunk_bytes=4096 in_flight=2)");
  CHECK(named_config("ucx(chunk_bytes=4KiB in_flight=2)").value()->digest() == ucx(4'096, 2)->digest());
}
