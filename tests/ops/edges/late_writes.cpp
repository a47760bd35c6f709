// Memory that an op has made for its messages. If a rank that was only taken for dead may still write to that memory, the op keeps it until
// the op's own rank ends. If the transport stops such writes, the memory is freed with its plan.
#include <parley/tests/support/cases/halo_grid.hpp>
#include <parley/tests/support/cases/jacobi_case.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/pipeline.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

// Host memory that counts its live blocks.
class counted_memory final : public memory_space {
 public:
  std::unique_ptr<block> make(std::size_t bytes) override {
    return std::make_unique<counted>(under_.make(bytes), alive_);
  }
  task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override { return under_.copy(to, from); }
  void gather(std::span<std::byte> packed, const memory_pieces& pieces, device_stream stream) override {
    under_.gather(packed, pieces, stream);
  }
  void scatter(const memory_pieces& pieces, std::span<const std::byte> packed, device_stream stream) override {
    under_.scatter(pieces, packed, stream);
  }
  int alive() const noexcept { return alive_; }

 private:
  struct counted final : block {
    counted(std::unique_ptr<block> b, int& n) : under(std::move(b)), alive(n) { ++alive; }
    ~counted() override { --alive; }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    std::span<std::byte> bytes() const noexcept override { return under->bytes(); }
    std::unique_ptr<block> under;
    int& alive;
  };
  memory_space& under_ = host_memory();
  int alive_ = 0;
};

memory_link_options with(late_writes late) {
  memory_link_options o;
  o.late = late;
  return o;
}

constexpr time_ns rehearsed_ns = 1'000'000'000;  // by then receivers give credits for puts

struct quiet_stage final : pipeline_stage {
  void forward(std::uint64_t, std::span<std::byte>) override {}
  time_ns modelled_ns(std::uint64_t, std::size_t) const override { return 1'000; }
};

task<> relay(pipeline p, result<>& outcome) {
  quiet_stage mine;
  const std::vector<std::uint64_t> sizes(8, 4'096);
  auto ended = co_await attempt(p.run(sizes, mine));
  outcome = std::move(ended);
}

// Returns how many blocks of the second stage are left when it has lost the first stage and its program has ended.
int left_of_a_stage(late_writes late) {
  counted_memory memory;
  const host_memory_instead counts(memory);
  world w(2, eager_trials(), with(late));
  std::vector<pipeline> stages;
  for (auto& r : w.ranks) stages.push_back(pipeline(*r, {.name = "layers", .configs = {direct(), put()}}));
  wait_a_while(w, rehearsed_ns);
  result<> outcome(errc::pending);
  scope program(w.clock);
  program.spawn(relay(stages[1], outcome));
  wait_a_while(w, 1'000'000);
  CHECK(memory.alive() == 2);
  w[1].on_lost(0, "it was killed", departure::died);
  run_until(w.clock, [&] { return program.running() == 0; });
  CHECK(outcome.code() == errc::peer_failed);
  return memory.alive();
}

// Returns how many memory blocks are left of a grid block that loses its neighbour during an exchange and whose plan is then destroyed.
int left_of_a_block(late_writes late) {
  counted_memory memory;
  const host_memory_instead counts(memory);
  world w(2, eager_trials(), with(late));
  auto op = jacobi_case::rims({1, 2});
  op.configs = {direct(), put()};
  std::vector<std::unique_ptr<halo_case::block>> blocks;
  for (auto& r : w.ranks)
    blocks.push_back(std::make_unique<halo_case::block>(halo(*r, op), halo_case::shape{op, {64, 64}, 0, 1}));
  wait_a_while(w, rehearsed_ns);
  const int made = memory.alive();
  CHECK(made >= 2);
  scope program(w.clock);
  program.spawn([](halo_case::block& mine) -> task<> {
    std::exception_ptr thrown;
    try {
      co_await with_dataflow(halo_case::exchange, &mine.plan(), 1, device_stream{});
    } catch (...) {
      thrown = std::current_exception();
    }
    CHECK(thrown != nullptr);
  }(*blocks[1]));
  wait_a_while(w, 1'000'000);
  w[1].on_lost(0, "it was killed", departure::died);
  run_until(w.clock, [&] { return program.running() == 0; });
  blocks.pop_back();
  return memory.alive() - made / 2;
}

// Returns how many blocks are left of a rehearsal whose sender is lost.
int left_of_a_rehearsal(late_writes late) {
  counted_memory memory;
  const host_memory_instead counts(memory);
  memory_link_options o = with(late);
  o.landing_ns = never;
  world w(2, eager_trials(), std::move(o));
  for (auto& r : w.ranks) static_cast<void>(transfer(*r, pair_of({direct(), put()})));
  wait_a_while(w, 10'000'000);
  CHECK(memory.alive() != 0);
  w.ranks[0].reset();
  w[1].on_lost(0, "it was killed", departure::died);
  wait_a_while(w, rehearsed_ns);
  return memory.alive();
}

}  // namespace

TEST_CASE("a pipeline keeps its buffers where a dead peer may still write, and frees them where it cannot") {
  CHECK(left_of_a_stage(late_writes::may_land) != 0);
  CHECK(left_of_a_stage(late_writes::fail) == 0);
}

TEST_CASE("a destroyed halo plan keeps its buffers where a dead peer may still write, and frees them where it cannot") {
  CHECK(left_of_a_block(late_writes::may_land) != 0);
  CHECK(left_of_a_block(late_writes::fail) == 0);
}

TEST_CASE("a rehearsal keeps its buffers where a dead peer may still write, and frees them where it cannot") {
  CHECK(left_of_a_rehearsal(late_writes::may_land) != 0);
  CHECK(left_of_a_rehearsal(late_writes::fail) == 0);
}
