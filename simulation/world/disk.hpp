#pragma once
/// A disk in memory, with the faults of bad disks.
///
///     disk d(dice(seed, purpose::disk, rank));
///     d.faults = {.fail_per_thousand = 100, .room_bytes = 4096};
///     d.files["results.csv"] = "PT_VERSION,…";         // a file that is already there
///
/// A call that fails leaves the file as it was, as `runtime::storage` promises. Only `crash` damages files: it cuts the latest append at a
/// random place and, with `tear_per_thousand`, also the file replaced last, like a disk that reports writes before they are done.
#include <parley/runtime/storage.hpp>
#include <parley/simulation/world/dice.hpp>

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace parley::simulation {

struct disk_faults {
  std::uint64_t fail_per_thousand = 0;                               ///< calls that fail by chance
  std::uint64_t tear_per_thousand = 0;                               ///< crashes that cut the file replaced last
  std::size_t room_bytes = std::numeric_limits<std::size_t>::max();  ///< of all files together
};

class disk final : public runtime::storage {
 public:
  disk() noexcept : disk(dice(1, purpose::disk)) {}
  explicit disk(dice luck) noexcept : luck_(luck) {}

  runtime::result<std::string> read(const std::string& path) override;
  runtime::result<> replace(const std::string& path, std::string_view text) override;
  runtime::result<> update(const std::string& path, const edit& change) override;
  runtime::result<> append(const std::string& path, std::string_view text) override;
  /// The writing process ends: its last write may be cut.
  void crash();

  std::map<std::string, std::string> files;
  std::set<std::string> locked;  ///< by another process
  disk_faults faults;
  std::uint64_t refused = 0;  ///< calls that failed

 private:
  runtime::result<> refuse(const std::string& path, const char* why);
  bool fits(const std::string& path, std::size_t bytes) const;
  dice luck_;
  std::string replaced_;
  std::string added_to_;
  std::size_t added_bytes_ = 0;
};

}  // namespace parley::simulation
