#pragma once
/// Ranks of one job in virtual time, for tests: the real actors and ops over `memory_link`.
#include <parley/tests/support/memory_link.hpp>

#include <parley/ops/job/rank_foundation.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/storage.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/runtime/wire/incarnations.hpp>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace parley::tests {

/// A disk in memory.
class memory_storage final : public runtime::storage {
 public:
  runtime::result<std::string> read(const std::string& path) override;
  runtime::result<> replace(const std::string& path, std::string_view text) override;
  runtime::result<> update(const std::string& path, const edit& change) override;
  runtime::result<> append(const std::string& path, std::string_view text) override;
  std::map<std::string, std::string> files;
  std::set<std::string> locked;  ///< by another process
};

/// The hosts, clock skews and machine kinds of ranks; see rank_foundation.
struct machines {
  std::vector<std::uint64_t> hosts{};
  std::vector<actors::clock_skew> skews{};
  std::vector<std::string> kinds{};
};

struct world {
  /// `disks`: the disks of an earlier job, if there was one.
  explicit world(rank_id n, ops::rank_settings settings = {}, memory_link_options o = {}, const machines& of = {},
                 std::vector<memory_storage> disks = {});
  ~world();
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ops::rank& operator[](rank_id r) { return *ranks[r]; }

  /// Destroys rank `r` and its program, and starts a new process in its place. `tell_of` tells the other ranks later.
  void restart(rank_id r);
  void tell_of(rank_id restarted);

  runtime::virtual_time clock;
  memory_world links;
  std::vector<int> seen;
  std::vector<memory_storage> disk;
  std::vector<std::uint64_t> incarnations;
  std::map<rank_id, std::string>
      held_dead;  ///< ranks that others take for dead, and why; each learns it when a call of it is about to fail
  std::vector<std::unique_ptr<ops::rank>> ranks;

 private:
  std::unique_ptr<ops::rank> make(rank_id r);
  ops::rank_settings settings_;
  machines machines_;
};

}  // namespace parley::tests
