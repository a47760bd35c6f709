#pragma once
/// Files on a real disk: implements runtime/storage.hpp.
///
///     file_storage disk;
///     auto text = disk.read("results.csv");                 // unavailable: there is none yet
///     auto saved = disk.replace("results.csv", new_text);   // all of it or nothing, also when the power fails
///     auto merged = disk.update("results.csv", change);     // read, changed and replaced under a lock (file_lock.hpp)
///     auto added = disk.append("trace.jsonl", line);        // whole texts, also when several ranks append
///
/// `replace` writes a new file in the same folder, syncs it to the disk and renames it. It keeps the mode of the file that it
/// replaces, and follows symbolic links to the file itself. `append` locks the file (flock) while it writes, and removes a text
/// that a full disk cut short. The object writes only files of this process's user, even as root, and for that it follows only
/// links of that user or of root. Calls block, and several threads may make them; run them in `compute`.
/// An error names the file, the step and the system's reason.
#include <parley/runtime/storage.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace parley::transports {

class file_storage final : public runtime::storage {
 public:
  static constexpr std::size_t max_file_bytes = 64UL << 20U;

  /// `lock_patience_ns`: how long `update` waits for the lock.
  explicit file_storage(std::int64_t lock_patience_ns = 3'000'000'000) noexcept : lock_patience_ns_(lock_patience_ns) {}

  runtime::result<std::string> read(const std::string& path) override;
  runtime::result<> replace(const std::string& path, std::string_view text) override;
  runtime::result<> update(const std::string& path, const edit& change) override;
  runtime::result<> append(const std::string& path, std::string_view text) override;
  bool may_block() const noexcept override { return true; }
  runtime::result<> place_for_files(const std::string& path) override;

 private:
  std::int64_t lock_patience_ns_;
};

}  // namespace parley::transports
