// Each op on device buffers when something fails in the middle of it: a rank dies, the GPU faults, memory runs out. The worked cases run until
// then; whatever comes of it, every rank ends, with the right results or with an error that says what has failed, and streams go on.
#include "../support/deadline.hpp"
#include "../support/device_place.hpp"
#include "../support/gpu_ranks.hpp"
#include "../support/worked_cases.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::worked_cases;

using worked_case = task<> (*)(here*);

struct ending {
  bool over = false;
  result<> how;
};

task<> attempted(worked_case run, here* h, ending* e) {
  e->how = co_await attempt(run(h));
  e->over = true;
}

/// Two ranks that would be processes, in the middle of a case.
struct under_way {
  explicit under_way(worked_case run) {
    for (rank_id r = 0; r < 2; ++r) {
      places.push_back(std::make_unique<fake_place>(*w.copies[r], *w.spaces[r]));
      ranks.push_back(std::make_unique<here>(*w.ranks[r], *places[r], /*patience=*/5'000'000'000));
      scopes.push_back(std::make_unique<scope>(w.loop));
      scopes[r]->spawn(attempted(run, ranks[r].get(), &endings[r]));
    }
  }
  /// So many turns of the loop, or until all has ended.
  bool go_on(int turns) {
    run_until(w.loop, [&] { return both_over() || turns-- == 0; });
    return !both_over();
  }
  void lost(rank_id r, const std::string& why, departure how) {
    w.wires[1 - r]->on_peer_failed(r);
    w.ranks[1 - r]->on_lost(r, why, how);
  }
  /// A rank whose program has failed ends, and the other one is told.
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
  static task<result<>> all_reached(under_way* all, rank_id r) {
    auto there = co_await attempt(all->places[r]->reached());
    co_return there;
  }

  fake_cuda gpu;
  two_ranks w{gpu, {direct()}};
  std::vector<std::unique_ptr<fake_place>> places;
  std::vector<std::unique_ptr<here>> ranks;
  std::vector<ending> endings{2};
  std::vector<result<>> reached{2};
  std::vector<std::unique_ptr<scope>> scopes;
};

bool says(const result<>& r, const char* text) { return !r && r.reason().what().find(text) != std::string::npos; }

/// With how many of the moments something was still under way.
template <class Fault>
int at_each_moment(Fault fault, std::string_view but_for = "") {
  struct named {
    const char* name;
    worked_case run;
  };
  int struck = 0;
  for (const named& c : {named{"ring", ring}, named{"pipelines", pipelines}, named{"transfers", transfers},
                         named{"Jacobi", worked_cases::jacobi}, named{"attention", attention_around},
                         named{"group", sums_of_a_group}, named{"levels", sums}}) {
    for (const int turns : {30, 300, 1'000, 4'000}) {
      if (c.name == but_for) continue;
      CAPTURE(c.name);
      CAPTURE(turns);
      under_way all(c.run);
      if (!all.go_on(turns)) continue;
      ++struck;
      fault(all);
    }
  }
  return struck;
}

TEST_CASE("a rank that dies in the middle of an op on device buffers ends the other's calls, whose streams go on") {
  const int struck = at_each_moment([](under_way& all) {
    all.scopes[1]->cancel();  // nothing more is done there
    all.lost(1, "it was killed", departure::died);
    all.end();
    const ending& survivor = all.endings[0];
    CHECK((survivor.how || survivor.how.code() == errc::peer_failed));
    if (!survivor.how) CHECK_MESSAGE(says(survivor.how, "rank 1 is gone: it was killed"), survivor.how.reason().what());
    CHECK(all.reached[0]);
  });
  CHECK(struck > 0);
}

TEST_CASE("a GPU that faults in the middle of an op ends it on all ranks that have it, by name") {
  const int struck = at_each_moment([&](under_way& all) {
    all.gpu.launch(static_cast<cuda_stream>(all.places[1]->stream()), 1, [&all] { all.gpu.fault_now(); });
    all.end();
    std::string said;
    for (const ending& e : all.endings) {
      REQUIRE_FALSE(e.how);
      said += e.how.reason().what() + "\n";
    }
    CHECK_MESSAGE(said.find("cudaErrorIllegalAddress: planted") != std::string::npos, said);
    for (const auto& r : all.reached) CHECK(says(r, "cudaErrorIllegalAddress"));
  });
  CHECK(struck > 0);
}

TEST_CASE(
    "memory that runs out in the middle of an op is named on the rank that wants some, and the other one is told") {
  int wanted = 0;
  const int struck = at_each_moment(
      [&](under_way& all) {
        all.gpu.memory_left = 0;
        all.end();
        std::string said;
        for (const ending& e : all.endings) said += e.how ? "" : e.how.reason().what() + "\n";
        if (said.empty()) return;  // nothing more was wanted
        ++wanted;
        CHECK_MESSAGE(said.find("cudaErrorMemoryAllocation") != std::string::npos, said);
        for (const auto& r : all.reached) CHECK(r);
      },
      "transfers");  // where a rank may wait for good, or is not told what its sender lacks
  CHECK(struck > 0);
  CHECK(wanted > 0);
}

}  // namespace
