#include <parley/simulation/world/disk.hpp>

namespace parley::simulation {

using runtime::errc;
using runtime::error;
using runtime::result;

result<> disk::refuse(const std::string& path, const char* why) {
  ++refused;
  return error{errc::io, path + ": " + why};
}

bool disk::fits(const std::string& path, std::size_t bytes) const {
  std::size_t used = bytes;
  for (const auto& [other, text] : files) used += other == path ? 0 : text.size();
  return used <= faults.room_bytes;
}

result<std::string> disk::read(const std::string& path) {
  if (luck_.chance(faults.fail_per_thousand)) return refuse(path, "the disk cannot read it").reason();
  const auto at = files.find(path);
  if (at == files.end()) return error{errc::unavailable, path + " does not exist"};
  return at->second;
}

result<> disk::replace(const std::string& path, std::string_view text) {
  if (luck_.chance(faults.fail_per_thousand)) return refuse(path, "the disk cannot write it");
  if (!fits(path, text.size())) return refuse(path, "no space left on the disk");
  files[path] = text;
  replaced_ = path;
  added_bytes_ = 0;
  return {};
}

result<> disk::update(const std::string& path, const edit& change) {
  if (locked.contains(path)) return error{errc::timeout, path + ".lock is held by another process"};
  const auto text = change(read(path));
  return text ? replace(path, *text) : result<>();
}

result<> disk::append(const std::string& path, std::string_view text) {
  if (luck_.chance(faults.fail_per_thousand)) return refuse(path, "the disk cannot write it");
  std::string& all = files[path];
  if (!fits(path, all.size() + text.size())) return refuse(path, "no space left on the disk");
  all.append(text);
  added_to_ = path;
  added_bytes_ = text.size();
  return {};
}

void disk::crash() {
  if (const auto torn = files.find(replaced_); torn != files.end() && luck_.chance(faults.tear_per_thousand))
    torn->second.resize(static_cast<std::size_t>(luck_.below(torn->second.size() + 1)));
  if (added_bytes_ == 0) return;
  std::string& text = files[added_to_];
  text.resize(text.size() - static_cast<std::size_t>(luck_.below(added_bytes_ + 1)));
  added_bytes_ = 0;
}

}  // namespace parley::simulation
