#include <parley/tests/support/world.hpp>

#include <utility>

namespace parley::tests {

runtime::result<std::string> memory_storage::read(const std::string& path) {
  const auto at = files.find(path);
  if (at == files.end()) return runtime::error{errc::unavailable, path + " does not exist"};
  return at->second;
}

runtime::result<> memory_storage::replace(const std::string& path, std::string_view text) {
  files[path] = text;
  return {};
}

runtime::result<> memory_storage::update(const std::string& path, const edit& change) {
  if (locked.contains(path)) return runtime::error{runtime::errc::timeout, path + ".lock is held by another process"};
  const auto text = change(read(path));
  return text ? replace(path, *text) : runtime::result<>();
}

runtime::result<> memory_storage::append(const std::string& path, std::string_view text) {
  files[path].append(text);
  return {};
}

world::world(rank_id n, ops::rank_settings settings, memory_link_options o, const machines& of,
             std::vector<memory_storage> disks)
    : links(clock, n, std::move(o)), seen(n), disk(std::move(disks)), settings_(std::move(settings)), machines_(of) {
  disk.resize(n);
  for (rank_id r = 0; r < n; ++r) incarnations.push_back(1000 + r);
  for (rank_id r = 0; r < n; ++r) ranks.push_back(make(r));
}

world::~world() = default;

void world::restart(rank_id r) {
  ranks[r].reset();
  incarnations[r] += runtime::incarnation_of(0, 1);
  ranks[r] = make(r);
}

void world::tell_of(rank_id restarted) {
  for (rank_id r = 0; r < ranks.size(); ++r) {
    if (r != restarted) ranks[r]->on_restarted(restarted, incarnations[restarted]);
  }
}

std::unique_ptr<ops::rank> world::make(rank_id r) {
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

}  // namespace parley::tests
