// Each op on device buffers when a fault strikes in the middle: a rank dies, its GPU faults, its memory runs out. The worked cases run
// up to that moment, with one GPU for each rank. After the fault every rank must end, with correct results or with an error that says what
// failed in which op, and streams must continue.
#include <parley/tests/support/cases/worked/attention.hpp>
#include <parley/tests/support/cases/worked/contextual.hpp>
#include <parley/tests/support/cases/worked/halos.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/cases/worked/paired_transfers.hpp>
#include <parley/tests/support/cases/worked/pipelines.hpp>
#include <parley/tests/support/cases/worked/ring.hpp>
#include <parley/tests/support/cases/worked/sums.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/device_place.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/errors.hpp>

#include <doctest/doctest.h>
#include <parley/config.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/replayed_calls.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::worked_cases;

/// A rank as in the other cases, with all that sums among devices run over.
struct device_rank final : here {
  device_rank(ops::rank& r, fake_place& where, fake_cuda& g, fake_nccl& n, transports::cuda_copies& c)
      : here(r, where, /*patience_ns=*/5'000'000'000), gpu(g), nccl(n), copies(c) {
    others = {put(), get()};
  }
  fake_cuda& gpu;
  fake_nccl& nccl;
  transports::cuda_copies& copies;
};

constexpr std::size_t count = 1'000;

task<symmetric> device_sums_named(device_rank* mine, std::string name, std::vector<symmetric_config_ptr> configs,
                                  bool replayed = false) {
  const gpu_world_source::options with{.nccl = &mine->nccl, .kernel_bytes = count * sizeof(float)};
  const auto source = std::make_shared<gpu_world_source>(mine->self, name, mine->copies, with);
  symmetric_options op;
  op.name = name;
  op.configs = std::move(configs);
  op.communicator = co_await source->connect_all();
  op.rehearse = source;
  op.timeout = std::chrono::nanoseconds(mine->patience);
  op.memory = mine->at.memory();
  op.replayed = replayed;
  co_return symmetric(mine->self, op);
}

task<> sum_often(here* h, std::string name, std::vector<symmetric_config_ptr> configs) {
  symmetric sums = co_await device_sums_named(static_cast<device_rank*>(h), std::move(name), std::move(configs));
  const array<float> x(h->at, count);
  for (int round = 0; round < 60; ++round) {
    const std::vector<float> mine = contribution(h->me, count);
    co_await bring(h->at, x, std::span(mine));
    h->at.compute(kernels::linear{h->at.seen(x), h->at.seen(x), nullptr, 2, 0}, count);
    h->at.before_messages(x.bytes());
    co_await sums.run(x.bytes());
    std::vector<float> sum = co_await taken(h->at, x);
    for (float& s : sum) s /= 2;
    CHECK(wrong_sums(sum, h->ranks) == 0);
  }
}

task<> device_sums(here* h) { return sum_often(h, "device sums", {nccl_sum(), kernel_sum(), nccl_graph_sum()}); }

task<> gathered_sums(here* h) { return sum_often(h, "gathered sums", {gathered_sum(8), gathered_sum(32)}); }

task<> step(device_rank* mine, const array<float>* x, cuda_stream s, captured_call sum) {
  mine->gpu.launch(s, 50, [numbers = mine->at.seen(*x), r = mine->me] {
    const std::vector<float> all = contribution(r, count);
    std::copy(all.begin(), all.end(), numbers);
  });
  co_await sum(x->bytes());
}

task<> replays(here* h) {
  auto* const mine = static_cast<device_rank*>(h);
  std::vector<symmetric_config_ptr> configs{nccl_sum(), kernel_sum()};
  symmetric sums = co_await device_sums_named(mine, "replayed sums", configs, true);
  const array<float> x(h->at, count);
  const auto captured = [mine, &x](cuda_stream s, captured_call sum) { return step(mine, &x, s, sum); };
  replayed_calls steps(
      sums, mine->copies, captured,
      symmetric_call_options{.bytes = count * sizeof(float), .timeout = std::chrono::nanoseconds(h->patience)});
  for (int round = 0; round < 60; ++round) {
    co_await steps.replay(static_cast<cuda_stream>(h->at.stream()));
    const std::vector<float> sum = co_await taken(h->at, x);
    CHECK(wrong_sums(sum, h->ranks) == 0);
  }
}

struct named_case {
  const char* name;
  task<> (*run)(here*);
  std::vector<const char*> ops;  ///< names of the ops that an error may name
};
const std::vector<named_case> all_cases{
    {"ring", ring, {"ring"}},
    {"pipelines", pipelines, {"gpipe", "1F1B", "interleaved", "own list", "two in a row", "folded"}},
    {"transfers", transfers, {"activations", "tried", "decisions"}},
    {"Jacobi", worked_cases::jacobi, {"rims"}},
    {"attention", attention_around, {"attention of"}},
    {"group", sums_of_a_group, {"in a group", "from a leader", "to a leader"}},
    {"levels", sums, {"gradients"}},
    {"sums", device_sums, {"device sums"}},
    {"gathered", gathered_sums, {"gathered sums"}},
    {"replays", replays, {"replayed sums"}},
    {"contextual", contextual_table, {"layer"}}};

struct ending {
  bool over = false;
  result<> how;
};

task<> attempted(task<> (*run)(here*), here* h, ending* e) {
  e->how = co_await attempt(run(h));
  e->over = true;
}

/// Two ranks, each set up like a process with a GPU of its own, in the middle of a case.
struct exchange {
  explicit exchange(const named_case& c) : what(c) {
    for (rank_id r = 0; r < 2; ++r) {
      places.push_back(std::make_unique<fake_place>(*w.copies[r], *w.spaces[r]));
      ranks.push_back(std::make_unique<device_rank>(*w.ranks[r], *places[r], gpu, nccl, *w.copies[r]));
      scopes.push_back(std::make_unique<scope>(w.loop));
      scopes[r]->spawn(attempted(c.run, ranks[r].get(), &endings[r]));
    }
  }
  /// Makes up to `turns` turns of the loop. Returns false if a rank has ended by then, because no fault can reach that rank any more.
  /// In that case both ranks have ended on return.
  bool go_on(int turns) {
    const auto any_over = [&] { return endings[0].over || endings[1].over; };
    run_until(w.loop, [&] { return any_over() || turns-- <= 0; });
    const bool in_the_midst = !any_over();
    if (!in_the_midst) end();
    return in_the_midst;
  }
  void lost(rank_id r, const std::string& why, departure how) {
    w.wires[1 - r]->on_peer_failed(r);
    w.ranks[1 - r]->on_lost(r, why, how);
  }
  /// Waits until both ranks have ended. If a rank's program fails, the other rank is told.
  void end() {
    const deadline limit;
    std::vector<bool> told(2);
    run_until(w.loop, [&] {
      for (rank_id r = 0; r < 2; ++r) {
        if (!endings[r].over || endings[r].how || told[r]) continue;
        told[r] = true;
        lost(r, endings[r].how.reason().what(), departure::failed);
      }
      return both_over() || limit.is_over();
    });
    CHECK_FALSE(limit.is_over());
    for (rank_id r = 0; r < 2 && !limit.is_over(); ++r) reached[r] = runtime::run(w.loop, all_reached(this, r));
  }
  bool both_over() const { return endings[0].over && endings[1].over; }
  static task<result<>> all_reached(exchange* all, rank_id r) {
    auto there = co_await attempt(all->places[r]->reached());
    co_return there;
  }

  const named_case& what;
  fake_cuda gpu{2};
  fake_nccl nccl{gpu};
  two_ranks w{gpu, {direct()}};
  std::vector<std::unique_ptr<fake_place>> places;
  std::vector<std::unique_ptr<device_rank>> ranks;
  std::vector<ending> endings{2};
  std::vector<result<>> reached{2};
  std::vector<std::unique_ptr<scope>> scopes;
};

bool says(const result<>& r, std::string_view text) { return !r && r.reason().what().find(text) != std::string::npos; }

struct tally {
  int struck = 0;  ///< moments at which both ranks were still running
  int told = 0;    ///< errors of ranks
  int named = 0;   ///< errors that name an op
  int with_config = 0;
};

// Only a fault that the program itself meets, in its own copy or in a wait for its kernels, names no op.
void note(tally& all, const exchange& of) {
  for (rank_id r = 0; r < 2; ++r) {
    const result<>& how = of.endings[r].how;
    if (!of.endings[r].over || how || how.code() == errc::cancelled) continue;  // cancelled: the test killed this rank
    const std::string text = how.reason().what();
    const error_facts& about = how.reason().about();
    const auto is_of = [&](const char* name) { return about.op.find(name) != std::string::npos; };
    const bool op = std::ranges::any_of(of.what.ops, is_of) || is_of("about");
    const bool by_itself = about.op.empty() && is(how, {.quotes = "cudaError"});
    CAPTURE(r);
    CHECK_MESSAGE((op || by_itself), text);
    const bool config = !about.config.empty() || says(how, "config-");  // kernels of the layer have such config names
    const bool in_a_call = about.invocation.has_value();
    const bool of_its_own = how.code() == errc::config_failed || how.code() == errc::device_failed;
    // Work of a thunk outside its kernels has no config, on this rank or on the other one.
    const std::string other = std::to_string(1 - r);
    const bool of_a_thunk =
        says(how, "layer 0->1, invocation ") && (says(how, ": device " + std::to_string(r) + ": ") ||
                                                 says(how, ": rank " + other + ": device " + other + ": "));
    if (in_a_call && of_its_own && !of_a_thunk) CHECK_MESSAGE(config, text);
    ++all.told;
    all.named += op ? 1 : 0;
    all.with_config += config ? 1 : 0;
  }
}

template <class Fault>
tally at_each_moment(Fault fault) {
  tally all;
  for (const named_case& c : all_cases) {
    for (const int turns : {30, 300, 1'000, 4'000}) {
      CAPTURE(c.name);
      CAPTURE(turns);
      exchange one(c);
      if (!one.go_on(turns)) continue;
      ++all.struck;
      fault(one);
      note(all, one);
    }
  }
  return all;
}

TEST_CASE(
    "if a rank dies in the middle of an op on device buffers, the other rank's calls end, and its streams continue") {
  const tally all = at_each_moment([](exchange& one) {
    one.scopes[1]->cancel();  // the rank stops at once
    one.lost(1, "it was killed", departure::died);
    one.end();
    const ending& survivor = one.endings[0];
    CHECK((survivor.how || survivor.how.code() == errc::peer_failed));
    if (!survivor.how) CHECK(is(survivor.how, {.culprit = 1, .quotes = "it was killed"}));
    CHECK(one.reached[0]);
  });
  CHECK(all.struck > 30);
  CHECK(all.named > 30);
}

TEST_CASE("a GPU fault in the middle of an op is named on its rank, reaches the other rank, and spares the other GPU") {
  const tally all = at_each_moment([&](exchange& one) {
    one.gpu.launch(static_cast<cuda_stream>(one.places[1]->stream()), 1, [&one] { one.gpu.fault_now(1); });
    one.end();
    REQUIRE_FALSE(one.endings[1].how);
    const auto& there = one.endings[1].how;
    const auto& other = one.endings[0].how;
    const char* const planted = "cudaErrorIllegalAddress: planted";
    CHECK(is(there, {.quotes = planted}));
    // The other rank can name CUDA's error only where one of its own copies met the fault. Elsewhere it names the rank whose device failed.
    const auto hears = is(other, {.quotes = planted});
    const auto names = is(other, {.code = errc::device_failed, .peer = 1});
    CHECK_MESSAGE((hears || names), hears, names);
    CHECK(is(one.reached[1], {.quotes = "cudaErrorIllegalAddress"}));
    CHECK(one.reached[0]);
  });
  CHECK(all.struck > 30);
  CHECK(all.named > 30);
  CHECK(all.with_config > 10);
}

TEST_CASE("if memory runs out in the middle of an op, both ranks end, the errors name it, and all streams continue") {
  const tally all = at_each_moment([&](exchange& one) {
    one.gpu.memory_left = 0;
    one.end();
    std::string said;
    for (const ending& e : one.endings) said += e.how ? "" : e.how.reason().what() + "\n";
    if (!said.empty()) CHECK_MESSAGE(said.find("cudaErrorMemoryAllocation") != std::string::npos, said);
    for (const auto& r : one.reached) CHECK(r);
  });
  CHECK(all.struck > 30);
  CHECK(all.named > 10);
}

}  // namespace
