// Tests of UCX itself that go beyond those that tests/links makes of every link.
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

using namespace parley;
using namespace parley::tests;

TEST_CASE("nothing touches the payload of an abandoned send") {
  for (const std::size_t length : {std::size_t{6'000}, std::size_t{3'000'000}}) {
    const outcomes ended = run_processes(2, [length](rank_id rank, meeting& all) {
      node self(rank, 2, all);
      self.listen();
      if (rank == 0) {
        // A mapping of its own, so that any later read of it crashes.
        void* const memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        PARLEY_EXPECT(memory != MAP_FAILED);
        const std::span payload(static_cast<const std::byte*>(memory), length);
        std::array<awaited, 1'000> sent;  // the peer does not poll, so most of these stay queued here
        for (awaited& each : sent) {
          if (self.wire.send(1, channel::data, tests::bytes_of("x"), payload, &each) != errc::pending) ++each.calls;
        }
        PARLEY_EXPECT(sent.back().calls == 0);
        for (awaited& each : sent)
          if (each.calls == 0) self.wire.abandon(each);
        PARLEY_EXPECT(::munmap(memory, length) == 0);
        self.until(
            [&] { return std::all_of(sent.begin(), sent.end(), [](const awaited& a) { return a.calls == 1; }); });
      }
      all.barrier();
    });
    CHECK_MESSAGE(ended.fine(), ended.text());
  }
}

TEST_CASE("misuse of connect or send is refused with bad_argument") {
  const outcomes ended = run_processes(1, [](rank_id, meeting&) {
    ucx_link wire({.rank = 0, .world_size = 2});
    const blob header(65);
    const auto refused = [&](auto&& call) {
      try {
        call();
      } catch (const runtime::failure& f) {
        return f.code();
      }
      return errc::none;
    };
    const blob address = wire.address();
    PARLEY_EXPECT(refused([&] { wire.connect(2, address); }) == errc::bad_argument);
    PARLEY_EXPECT(refused([&] { wire.connect(1, blob(100'000)); }) == errc::bad_argument);
    for (std::size_t cut = 0; cut < address.size(); ++cut)
      PARLEY_EXPECT(refused([&] { wire.connect(1, std::span(address).first(cut)); }) == errc::bad_argument);
    for (std::size_t at = 0; at < address.size(); ++at) {
      blob changed = address;
      changed[at] ^= std::byte{1};
      PARLEY_EXPECT(refused([&] { wire.connect(1, changed); }) == errc::bad_argument);
    }
    PARLEY_EXPECT(refused([&] { wire.connect(0, address); }) == errc::none);
    PARLEY_EXPECT(refused([&] { wire.connect(0, address); }) == errc::bad_argument);
    PARLEY_EXPECT(wire.send(0, channel::data, header, {}, nullptr) == errc::bad_argument);
    PARLEY_EXPECT(wire.send(1, channel::data, {}, {}, nullptr) == errc::bad_argument);
    PARLEY_EXPECT(wire.send(2, channel::data, {}, {}, nullptr) == errc::bad_argument);
    PARLEY_EXPECT(refused([] { ucx_link outside({.rank = 3, .world_size = 3}); }) == errc::bad_argument);
  });
  CHECK_MESSAGE(ended.fine(), ended.text());
}
