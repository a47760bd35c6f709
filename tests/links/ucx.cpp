// The contract on UCX between processes: over shared memory, over TCP, and over TCP between hosts.
#include <parley/tests/links/contract.hpp>
#include <parley/tests/support/fair_stopwatch.hpp>

#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/transports/ucx/ucx_link.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstdlib>
#include <string>

using namespace parley;
using namespace parley::tests;
using transports::transfer_way;

namespace {

class process_end final : public end {
 public:
  process_end(rank_id r, rank_id of, contract_limits l, meeting& all, transfer_way way)
      : end(r, of, l), all_(all), loop_(shared()) {
    link_ = std::make_unique<transports::ucx_link>(
        transports::ucx_link::options{.rank = r, .world_size = of, .transfers = way});
    const auto addresses = all.gather(link_->address());
    for (rank_id peer = 0; peer < of; ++peer) link_->connect(peer, addresses[peer]);
    loop_.attach(*link_);
  }
  ~process_end() {
    forget_arrivals();
    loop_.detach(*link_);
    link_.reset();  // before the memory that the link may still use
  }
  runtime::link& wire() override { return *link_; }
  runtime::executor& loop() override { return loop_; }
  std::function<time_ns()> stopwatch() override {
    auto since = std::make_shared<fair_stopwatch>();
    return [since = std::move(since)] { return std::chrono::nanoseconds(since->took()).count(); };
  }
  void halt() override { halted_ = true; }
  void bring(std::span<const std::byte> mine) override { all_.bring(mine); }
  bool brought() override {
    return std::exchange(halted_, false) || all_.brought();
  }  // after `halt()`, `take` waits and blocks this thread
  std::vector<blob> take() override { return all_.take(); }
  void end_life() override { ::kill(::getpid(), SIGKILL); }

 private:
  static runtime::reactor::options shared() { return {.cores = runtime::reactor::sharing::shared_core}; }
  meeting& all_;
  runtime::reactor loop_;
  std::unique_ptr<transports::ucx_link> link_;
  bool halted_ = false;
};

task<> whole(task<> (*program)(end&), end& self) {
  co_await program(self);
  co_await self.meet();  // the others may need this rank's link until then
}

struct conditions {
  const char* transports;
  contract_limits limits;
  transfer_way way = transfer_way::best;
  std::vector<std::string> hosts{};  // network namespaces, to which the ranks are assigned in turn
};

/// Moves the calling process to this network namespace. UCX finds its devices in /sys.
void move_to(const std::string& host) {
  const int space = ::open(("/var/run/netns/" + host).c_str(), O_RDONLY | O_CLOEXEC);
  PARLEY_EXPECT(space >= 0);
  PARLEY_EXPECT(::setns(space, CLONE_NEWNET) == 0);
  ::close(space);
  PARLEY_EXPECT(::unshare(CLONE_NEWNS) == 0);
  PARLEY_EXPECT(::mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0);
  PARLEY_EXPECT(::mount(host.c_str(), "/sys", "sysfs", MS_RDONLY, nullptr) == 0);
}

void keep(std::span<const contract_case> cases, const conditions& given) {
  for (const contract_case& c : cases) {
    SUBCASE(c.promise) {
      process_options o;
      if (c.mortal()) o.killed = {c.dies};
      const outcomes ended = run_processes(
          c.ranks,
          [&](rank_id rank, meeting& all) {
            ::setenv("UCX_TLS", given.transports, 1);
            if (!given.hosts.empty()) move_to(given.hosts[rank % given.hosts.size()]);
            process_end self(rank, c.ranks, given.limits, all, given.way);
            runtime::run(self.loop(), whole(c.program, self));
          },
          o);
      CHECK_MESSAGE(ended.fine(), ended.text());
    }
  }
}

}  // namespace

constexpr contract_limits usual{.largest_bytes = (64 << 20) + 12345};

TEST_CASE("UCX over shared memory keeps the contract of links") {
  keep(contract(needs::nothing), {.transports = "posix,sysv,cma,self", .limits = usual});
}

TEST_CASE("UCX over TCP keeps the contract of links") {
  keep(contract(needs::nothing), {.transports = "tcp,self", .limits = usual});
}

TEST_CASE("puts and gets that UCX emulates keep the first three one-sided promises of links") {
  keep(one_sided_contract().first(3),
       {.transports = "posix,sysv,cma,self", .limits = usual, .way = transfer_way::by_ucx});
}

// Run by tests/hosts/contract.py, which makes the hosts and the connection between them.
TEST_CASE("UCX between two hosts keeps the contract of links, whatever happens to packets" * doctest::skip()) {
  const char* const hosts = std::getenv("PARLEY_TEST_HOSTS");
  REQUIRE(hosts != nullptr);
  const std::string both = hosts;
  const std::size_t comma = both.find(',');
  keep(contract(needs::nothing), {.transports = "tcp,self",
                                  .limits = {.largest_bytes = 4 << 20, .detection_ns = 20'000'000'000},
                                  .hosts = {both.substr(0, comma), both.substr(comma + 1)}});
}
