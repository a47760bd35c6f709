#include <parley/bootstrap.hpp>
#include <parley/error.hpp>
#include <parley/transports/join/bootstrap_meeting.hpp>
#include <parley/transports/join/meeting.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <doctest/doctest.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace parley::transports;
using parley::runtime::errc;
using parley::runtime::failure;
using parley::runtime::rank_id;

namespace {

using bytes = bootstrap::bytes;

/// A communicator between threads.
class communicator {
 public:
  explicit communicator(rank_id size) : brought_(size) {}
  std::vector<bytes> all_gather(rank_id rank, std::span<const std::byte> mine) {
    std::unique_lock lock(mutex_);
    brought_[rank].assign(mine.begin(), mine.end());
    const std::size_t round = round_;
    ++present_;
    end_round();
    changed_.wait(lock, [&] { return round_ != round; });
    return last_;
  }
  /// From now on the others do not wait for this rank, which has given up.
  void leave() {
    const std::lock_guard lock(mutex_);
    ++gone_;
    end_round();
  }

 private:
  void end_round() {
    if (present_ == 0 || present_ + gone_ < brought_.size()) return;
    present_ = 0;
    ++round_;
    last_ = brought_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bytes> brought_;
  std::vector<bytes> last_;
  std::size_t present_ = 0;
  std::size_t gone_ = 0;
  std::size_t round_ = 0;
};

struct outcome {
  std::optional<joined> in;
  errc code = errc::none;
  std::string text;
  bool one_host = false;
};

/// Returns the outcome of each rank; `spoil` may change what rank 1's gather function returns.
std::vector<outcome> join_all(rank_id size, const std::function<void(std::vector<bytes>&)>& spoil = {}) {
  communicator all(size);
  std::vector<outcome> outcomes(size);
  std::vector<std::thread> threads;
  for (rank_id rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto gather = [&](std::span<const std::byte> mine) {
        auto everybodys = all.all_gather(rank, mine);
        if (spoil && rank == 1) spoil(everybodys);
        return everybodys;
      };
      try {
        bootstrap_meeting meeting({.rank = rank, .world_size = size, .all_gather = gather});
        outcomes[rank].one_host = meeting.one_host();
        outcomes[rank].in = meeting.join(this_process(bytes(10 + rank, static_cast<std::byte>(rank))));
      } catch (const failure& f) {
        outcomes[rank].code = f.code();
        outcomes[rank].text = f.what();
        all.leave();
      }
    });
  }
  for (auto& t : threads) t.join();
  return outcomes;
}

}  // namespace

TEST_CASE("ranks that join through an all-gather function get the same roster and session key") {
  for (const rank_id size : {1U, 2U, 5U}) {
    const auto all = join_all(size);
    for (rank_id rank = 0; rank < size; ++rank) {
      REQUIRE(all[rank].in);
      CHECK(all[rank].one_host);
      CHECK(all[rank].in->authenticated);
      CHECK(all[rank].in->members.size() == size);
      CHECK(all[rank].in->members[rank].address == bytes(10 + rank, static_cast<std::byte>(rank)));
      CHECK(all[rank].in->members == all[0].in->members);
      CHECK(all[rank].in->session_key == all[0].in->session_key);
    }
  }
  CHECK(join_all(2)[0].in->session_key != join_all(2)[0].in->session_key);
}

TEST_CASE("an all-gather function that returns missing, foreign or swapped entries is refused with the fault") {
  const auto refused = [](const std::function<void(std::vector<bytes>&)>& spoil, const char* says) {
    const auto all = join_all(3, spoil);
    CHECK(all[1].code == errc::bad_argument);
    CHECK_MESSAGE(all[1].text.find(says) != std::string::npos, all[1].text);
    CHECK_MESSAGE(all[1].text.find("rank 1 of 3") != std::string::npos, all[1].text);
  };
  refused([](auto& all) { all.pop_back(); }, "it returned 2 entries");
  refused([](auto& all) { std::swap(all[0], all[2]); }, "in the order of ranks");
  refused([](auto& all) { all[2].clear(); }, "not from a rank of parley");
  refused([](auto& all) { all[2].pop_back(); }, "the entry of rank 2");
  refused([](auto& all) { all[2].push_back(std::byte{0}); }, "the entry of rank 2");
  CHECK_THROWS_AS(
      bootstrap_meeting({.rank = 2, .world_size = 2, .all_gather = [](auto) { return std::vector<bytes>(2); }}),
      failure);
  CHECK_THROWS_AS(bootstrap_meeting({.rank = 0, .world_size = 2}), failure);
}

TEST_CASE("a bootstrap entry of another version is refused with protocol_version") {
  const auto all = join_all(2, [](auto& both) { both[0][8] = std::byte{99}; });
  CHECK(all[1].code == errc::protocol_version);
  CHECK(all[1].text.find("99") != std::string::npos);
}
