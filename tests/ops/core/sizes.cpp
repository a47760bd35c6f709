#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("the number of messages follows from the agreed config and the byte count") {
  struct expected {
    std::size_t bytes;
    std::uint64_t chunks;
  };
  const std::size_t large = (std::size_t{64} << 20U) + 12'345;
  const auto messages_of = [](const config_ptr& config, std::size_t bytes) {
    rank_settings s;
    s.policy = actors::tuning_policy::off;
    world w(2, s);
    transfer out(w[0], pair_of({config}));
    transfer in(w[1], pair_of({config}));
    pass(w, 1'000'000'000);  // long enough for the rehearsals
    constexpr auto data = static_cast<std::size_t>(link::channel::data);
    const auto before = w.links[0].statistics().sent[data];
    const auto all = move_each(w, out, in, {bytes}, 7);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    return w.links[0].statistics().sent[data] - before;
  };
  for (const auto& [bytes, chunks] : {expected{0, 1}, expected{1, 1}, expected{1 << 20, 1}, expected{(1 << 20) + 1, 2},
                                      expected{1024 * 1025 * 4, 5}, expected{large, 65}}) {
    CAPTURE(bytes);
    CHECK(messages_of(chunked(1_MiB, 2), bytes) == chunks);
    CHECK(messages_of(direct(), bytes) == 1);
  }
}

TEST_CASE("configs with odd chunk sizes and depths move payloads of odd sizes exactly") {
  const std::vector<std::size_t> sizes{0, 1, 2, 3, 12'345, 8'191, 8'192, 8'193, 99'999};
  for (const auto& config :
       {chunked(1, 3), chunked(7, 1), chunked(1000, 16), chunked(12'345, 2), chunked(1024_MiB, 4)}) {
    world w(2);
    std::vector<std::size_t> some = sizes;
    if (config->id().find("chunk_bytes=1 ") != std::string::npos ||
        config->id().find("chunk_bytes=7 ") != std::string::npos)
      some = {0, 1, 6, 7, 8, 700};
    const auto all = move_each(w, {config}, {config}, some, 3);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
  }
}

TEST_CASE("sixty-four sends at once reach their receives in order") {
  world w(2);
  const std::vector configs{direct(), chunked(4_KiB, 2)};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  std::vector<std::vector<std::byte>> data;
  std::vector<std::vector<std::byte>> buffers(64);
  const auto send = [](transfer t, std::span<const std::byte> d) -> task<> { co_await t.send(d, {.to = 1}); };
  const auto receive = [](transfer t, std::vector<std::byte>& into) -> task<> {
    into.resize(100'000);
    const auto got = co_await t.receive(into, {.from = 0});
    into.resize(got);
  };
  scope all(w.clock);
  for (std::size_t i = 0; i < 64; ++i) data.push_back(pattern(i * 1500, i));
  for (const auto& d : data) all.spawn(send(out, d));
  for (auto& b : buffers) all.spawn(receive(in, b));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(buffers == data);
}
