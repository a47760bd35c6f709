// A rank hears at the same time that another rank has died and that a new process has replaced it, while the link still cleans up after
// the old process. Late news of the death must not be taken for news of the new process. A new process whose entry holds no address of the
// link is ignored.
#include <parley/actors/services.hpp>
#include <parley/run.hpp>

#include <parley/tests/transports/join/rendezvous_fixture.hpp>
#include <parley/tests/transports/launch/processes.hpp>

#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/join/heartbeat.hpp>
#include <parley/transports/ucx/ucx_link.hpp>

#include <doctest/doctest.h>

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

using namespace parley;
using namespace parley::tests;
namespace rt = rendezvous_test;

namespace {

constexpr rank_id world = 3;
constexpr rank_id here = 1;
constexpr rank_id comes_back = 2;
constexpr std::uint32_t most_restarts = 2;

transports::rendezvous_options options_of(rank_id rank, const rt::listener& at, std::uint32_t restarts = 0) {
  transports::rendezvous_options o = rt::options_of(rank, world, at);
  o.max_restarts = most_restarts;
  o.restarts = restarts;
  return o;
}

/// The entry of a process that has ended. Nobody connects to its address in these tests.
transports::member entry() {
  static const blob address = transports::ucx_link({.rank = comes_back, .world_size = world}).address();
  return transports::this_process(address);
}

void tell_environment(rank_id rank, const rt::listener& at, const transports::job_key& key) {
  const int fd = ::memfd_create("key", 0);
  PARLEY_EXPECT(::write(fd, key.secret().data(), key.secret().size()) == 32);
  PARLEY_EXPECT(::lseek(fd, 0, SEEK_SET) == 0);
  namespace v = transports::variable;
  for (const char* name : {v::launcher, v::key_file}) ::unsetenv(name);
  ::setenv(v::rank, std::to_string(rank).c_str(), 1);
  if (rank == 0) ::setenv(v::rendezvous_fd, std::to_string(at.fd).c_str(), 1);
  ::setenv(v::world, std::to_string(world).c_str(), 1);
  ::setenv(v::local_size, std::to_string(world).c_str(), 1);
  ::setenv(v::rendezvous, ("127.0.0.1:" + std::to_string(at.port)).c_str(), 1);
  ::setenv(v::job, "2a", 1);
  ::setenv(v::max_restarts, std::to_string(most_restarts).c_str(), 1);
  ::setenv(v::key_fd, std::to_string(fd).c_str(), 1);
}

bool wakes(runtime::reactor& loop) {
  pollfd p{loop.native_handle(), POLLIN, 0};
  return ::poll(&p, 1, static_cast<int>(std::chrono::milliseconds(long_enough).count())) == 1;
}

/// Removes the name of the heartbeat page. The other parties of these tests have no heartbeat, which would have removed the name.
void forget_page(const rt::party& other) {
  const auto& all = other.outcome->value();
  ::unlink(transports::heartbeat::page_name(0x2a, all.session_key).c_str());
}

/// Runs one rank of a job, while `io` also runs the rendezvous of the other two ranks. Checks that the rank takes the new process in after
/// its loop has handled the late news that `comes_late` causes.
void check_taken_in(const std::function<void(ops::job&)>& comes_late) {
  const rt::listener at;
  const auto key = transports::job_key::generate();
  tell_environment(here, at, key);
  rt::asio::io_context io;
  const rt::party zero(io, options_of(0, at), key, entry());
  auto old = std::make_unique<rt::party>(io, options_of(comes_back, at), key, entry());
  ops::job_options o;
  o.detection = 400ms;
  {
    ops::job job(io, o);
    old.reset();
    const rt::party anew(io, options_of(comes_back, at, 1), key, entry());
    // The rank's link is not polled meanwhile, so it has not begun to clean up after the old process.
    PARLEY_EXPECT(rt::run_until(io, [&] { return anew.in() && zero.back.size() == 1; }));
    io.restart();
    while (io.poll() != 0) {}
    comes_late(job);
    const deadline limit;
    while (job.self().restarts_heard() == 0 && !limit.is_over()) static_cast<void>(job.loop().poll());
    PARLEY_EXPECT(job.self().restarts_heard() == 1);
    job.leave();
  }
  forget_page(zero);
}

/// Runs rank `self` of a job. Rank 2 comes back first with `no_address` as the address of its link, and then with a valid one.
void check_passed_over(rank_id self, const blob& no_address) {
  const rt::listener at;
  const auto key = transports::job_key::generate();
  tell_environment(self, at, key);
  rt::asio::io_context io;
  const rank_id beside = self == 0 ? 1 : 0;
  const rt::party other(io, options_of(beside, at), key, entry());
  auto old = std::make_unique<rt::party>(io, options_of(comes_back, at), key, entry());
  {
    ops::job job(io, {});
    const auto& wire = dynamic_cast<const transports::ucx_link&>(job.wire());
    const auto goes_on_until = [&](auto holds) {
      const deadline limit;
      while (!holds() && !limit.is_over()) static_cast<void>(job.loop().poll());
      PARLEY_EXPECT(holds());
    };
    old.reset();
    goes_on_until([&] { return wire.has_failed(comes_back); });
    const rt::party garbled(io, options_of(comes_back, at, 1), key, transports::this_process(no_address));
    goes_on_until([&] { return garbled.outcome.has_value(); });
    PARLEY_EXPECT(garbled.in() == (self != 0));  // a rank 0 without a `job` lets it in
    const rt::party anew(io, options_of(comes_back, at, 2), key, entry());
    goes_on_until([&] { return anew.in() && !other.back.empty() && job.self().restarts_heard() != 0; });
    PARLEY_EXPECT(job.self().restarts_heard() == 1);
    PARLEY_EXPECT(runtime::restarts_of(job.self().services().incarnations.of(comes_back)) == 2);
    PARLEY_EXPECT(other.back.size() == (self == 0 ? 1U : 2U));
    job.leave();
  }
  forget_page(other);
}

}  // namespace

TEST_CASE("late news of a process's death, from the heartbeat or from an op, does not shut out its replacement") {
  const outcomes heart = run_processes(1, [](rank_id, meeting&) {
    check_taken_in([](ops::job& job) { PARLEY_EXPECT(wakes(job.loop())); });  // at the next heartbeat
  });
  CHECK_MESSAGE(heart.fine(), heart.text());
  const outcomes op = run_processes(1, [](rank_id, meeting&) {
    check_taken_in(
        [](ops::job& job) { job.self().services().give_up(comes_back, "a fence after a put to it failed"); });
  });
  CHECK_MESSAGE(op.fine(), op.text());
}

TEST_CASE("a returning process without a valid link address ends nothing, and the next process is accepted") {
  for (const rank_id self : {here, rank_id{0}}) {
    for (const std::size_t bytes : {0U, 4U, 100U}) {
      CAPTURE(self);
      CAPTURE(bytes);
      const outcomes ended =
          run_processes(1, [&](rank_id, meeting&) { check_passed_over(self, blob(bytes, std::byte{7})); });
      CHECK_MESSAGE(ended.fine(), ended.text());
    }
  }
}
