// The contract between ranks of one process and one loop.
#include <parley/tests/links/gathering.hpp>

#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <doctest/doctest.h>

#include <memory>

using namespace parley;
using namespace parley::tests;

namespace {

class shared_job {
 public:
  explicit shared_job(const contract_case& c) : case_(c), table_(c.ranks) {
    world_.emplace(c.ranks);
    loop_.attach(*world_);
    for (rank_id r = 0; r < c.ranks; ++r) ends_.push_back(std::make_unique<local_end>(*this, r));
  }
  // The ends outlive their links.
  ~shared_job() {
    for (auto& one : ends_) one->forget_arrivals();
    loop_.detach(*world_);
    world_.reset();
  }
  shared_job(const shared_job&) = delete;
  shared_job& operator=(const shared_job&) = delete;

  /// Returns the reason why a rank broke the contract; empty if none did.
  std::string run() {
    try {
      runtime::run(loop_, all(*this));
      return {};
    } catch (const std::exception& e) {
      return e.what();
    }
  }

 private:
  class local_end final : public end {
   public:
    // A put or get copies at once.
    local_end(shared_job& j, rank_id r)
        : end(r, j.case_.ranks, {.largest_bytes = (16 << 20) + 12345, .large_copy = errc::none}), job_(j) {}
    runtime::link& wire() override { return (*job_.world_)[rank]; }
    runtime::executor& loop() override { return job_.loop_; }
    std::function<time_ns()> stopwatch() override {
      return [this, began = loop().now()] { return loop().now() - began; };
    }
    void bring(std::span<const std::byte> mine) override {
      job_.table_.bring(rank, mine);
      job_.table_.match();
    }
    bool brought() override { return job_.table_.brought(rank); }
    std::vector<blob> take() override { return job_.table_.take(rank); }
    void end_life() override { runtime::raise({errc::bad_argument, "no rank of a process dies without the others"}); }
    // cannot stop one rank alone; arrivals are kept meanwhile, and the program does not look at them
    void halt() override {}

   private:
    shared_job& job_;
  };

  static task<> whole(task<> (*program)(end&), end& self, shared_job& job) {
    co_await program(self);
    co_await self.meet();
    job.table_.leave(self.rank);
  }
  static task<> all(shared_job& job) {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::scope ranks(here);
    for (auto& one : job.ends_) ranks.spawn(whole(job.case_.program, *one, job));
    co_await ranks.join();
  }

  const contract_case& case_;
  gathering table_;
  std::vector<std::unique_ptr<local_end>> ends_;
  runtime::reactor loop_{{.cores = runtime::reactor::sharing::shared_core}};
  std::optional<transports::process_world> world_;
};

}  // namespace

TEST_CASE("ranks of one process keep the contract of links") {
  for (const contract_case& c : contract(needs::death)) {
    SUBCASE(c.promise) {
      const std::string complaint = shared_job(c).run();
      CHECK_MESSAGE(complaint.empty(), complaint);
    }
  }
}
