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
  runtime::result<std::string> read(const std::string& path) override {
    const auto at = files.find(path);
    if (at == files.end()) return runtime::error{errc::unavailable, path + " does not exist"};
    return at->second;
  }
  runtime::result<> replace(const std::string& path, std::string_view text) override {
    files[path] = text;
    return {};
  }
  runtime::result<> update(const std::string& path, const edit& change) override {
    if (locked.contains(path)) return runtime::error{runtime::errc::timeout, path + ".lock is held by somebody"};
    const auto text = change(read(path));
    return text ? replace(path, *text) : runtime::result<>();
  }
  runtime::result<> append(const std::string& path, std::string_view text) override {
    files[path].append(text);
    return {};
  }
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
                 std::vector<memory_storage> disks = {})
      : links(clock, n, std::move(o)), seen(n), disk(std::move(disks)), settings_(std::move(settings)), machines_(of) {
    disk.resize(n);
    for (rank_id r = 0; r < n; ++r) incarnations.push_back(1000 + r);
    for (rank_id r = 0; r < n; ++r) ranks.push_back(make(r));
  }
  ops::rank& operator[](rank_id r) { return *ranks[r]; }

  /// Destroys rank `r` and its program, and starts a new process in its place. `tell_of` tells the other ranks later.
  void restart(rank_id r) {
    ranks[r].reset();
    incarnations[r] += runtime::incarnation_of(0, 1);
    ranks[r] = make(r);
  }
  void tell_of(rank_id restarted) {
    for (rank_id r = 0; r < ranks.size(); ++r) {
      if (r != restarted) ranks[r]->on_restarted(restarted, incarnations[restarted]);
    }
  }

  runtime::virtual_time clock;
  memory_world links;
  std::vector<int> seen;
  std::vector<memory_storage> disk;
  std::vector<std::uint64_t> incarnations;
  std::map<rank_id, std::string>
      held_dead;  ///< ranks that others take for dead, and why; each learns it when a call of it is about to fail
  std::vector<std::unique_ptr<ops::rank>> ranks;

 private:
  std::unique_ptr<ops::rank> make(rank_id r) {
    ops::rank_foundation on{clock, links[r], &disk[r], incarnations, {}};
    on.hosts = machines_.hosts;
    on.kinds = machines_.kinds;
    if (r < machines_.skews.size()) on.skew = machines_.skews[r];
    on.held_dead = [this, r] {
      const auto why = held_dead.find(r);
      return why == held_dead.end() ? std::string() : why->second;
    };
    return std::make_unique<ops::rank>(std::move(on), settings_);
  }
  ops::rank_settings settings_;
  machines machines_;
};

}  // namespace parley::tests
