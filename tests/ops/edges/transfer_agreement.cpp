#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/world.hpp>

#include <doctest/doctest.h>

#include <numeric>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using parley::tests::pair_of;
using parley::tests::pattern;
using parley::tests::world;

namespace {

task<> send_all(transfer t, std::vector<std::size_t> sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto data = pattern(sizes[i], i);
    co_await t.send(data, {.to = 1});
  }
}

task<int> receive_all(transfer t, std::vector<std::size_t> sizes, std::size_t spare) {
  int wrong = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> buffer(sizes[i] + spare);
    const std::uint64_t got = co_await t.receive(buffer, {.from = 0});
    buffer.resize(got);
    if (buffer != pattern(sizes[i], i)) ++wrong;
  }
  co_return wrong;
}

task<int> both(world& w, std::vector<config_ptr> at_sender, std::vector<config_ptr> at_receiver,
               std::vector<std::size_t> sizes, std::size_t spare = 0) {
  transfer out(w[0], pair_of(std::move(at_sender)));
  transfer in(w[1], pair_of(std::move(at_receiver)));
  auto [nothing, wrong] = co_await when_all(send_all(out, sizes), receive_all(in, sizes, spare));
  co_return wrong;
}

}  // namespace

TEST_CASE("a pair agrees on a config while its messages flow") {
  world w(3);
  const std::vector<std::size_t> sizes(400, 1 << 20);
  const auto configs = std::vector{direct(), chunked(64_KiB, 1), chunked(256_KiB, 4)};
  CHECK(run(w.clock, both(w, configs, configs, sizes)) == 0);
  const auto* c = search_of(w, "1MiB");
  REQUIRE(c != nullptr);
  CHECK(c->where() == actors::search::stage::decided);
  CHECK(c->trials() > 0);
  CHECK(c->invocations() == 400);
  MESSAGE(c->chosen().config, " ", c->chosen().why, " trials ", c->trials(), " after ", c->invocations_to_agreement());
  CHECK(w[2].mail().statistics().sent == 0);
}

TEST_CASE("messages of every size arrive whole, including empty ones and those in larger buffers") {
  world w(2);
  const auto configs = std::vector{direct(), chunked(1_MiB, 2), chunked(1000, 3)};
  CHECK(run(w.clock, both(w, configs, configs, {0, 1, 7, 8192, 8193, 1 << 20, (1 << 20) + 1, (4 << 20) + 12345, 0, 3},
                          100)) == 0);
}
