#include <parley/transports/file_storage.hpp>

#include <parley/transports/file_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace parley::transports {
namespace {

using runtime::errc;
using runtime::error;
using runtime::result;

class descriptor {
 public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  ~descriptor() { close(); }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  int get() const noexcept { return fd_; }
  bool open() const noexcept { return fd_ >= 0; }
  /// Some file systems report a failed write only here.
  bool close() noexcept { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

error refused(const std::string& path, const char* step, int reason) {
  return {errc::io, path + ": cannot " + step + ": " + std::strerror(reason)};
}

error too_large(const std::string& path) {
  return {errc::io, path + ": larger than 64 MiB, which is the limit; move it away and start anew"};
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// One level, for logs that have a folder of their own. Several ranks do it at once.
bool make_folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return false;
  return ::mkdir(path.substr(0, slash).c_str(), 0777) == 0 || errno == EEXIST;
}

/// The file that is meant: a rename would otherwise put a plain file where the user has a link.
std::string behind_links(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) != nullptr ? resolved : path;
}

/// Tells one content of a file from another without reading it.
struct signature {
  explicit signature(const std::string& path) {
    struct stat about{};
    if (::stat(path.c_str(), &about) != 0) return;
    inode = about.st_ino;
    bytes = about.st_size;
    changed_s = about.st_mtim.tv_sec;
    changed_ns = about.st_mtim.tv_nsec;
  }
  friend bool operator==(const signature&, const signature&) = default;
  ino_t inode = 0;
  off_t bytes = 0;
  time_t changed_s = 0;
  long changed_ns = 0;
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

result<std::string> file_storage::read(const std::string& path) {
  const descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) {
    if (errno == ENOENT) return error{errc::unavailable, path + ": there is no such file"};
    return refused(path, "open it", errno);
  }
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return refused(path, "look at it", errno);
  // A pipe or a device may never end.
  if (!S_ISREG(about.st_mode)) return error{errc::io, path + ": not a plain file"};
  if (static_cast<std::size_t>(about.st_size) > max_file_bytes) return too_large(path);
  std::string text(static_cast<std::size_t>(about.st_size) + 1, '\0');  // one more, to see that it has not grown
  std::size_t length = 0;
  for (;;) {
    if (length == text.size()) {
      if (length > max_file_bytes) return too_large(path);
      text.resize(length * 2);
    }
    const ssize_t n = ::read(file.get(), text.data() + length, text.size() - length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return refused(path, "read it", errno);
    if (n == 0) break;
    length += static_cast<std::size_t>(n);
  }
  if (length > max_file_bytes) return too_large(path);
  text.resize(length);
  return text;
}

result<> file_storage::replace(const std::string& path, std::string_view text) {
  if (text.size() > max_file_bytes) return too_large(path);
  const std::string target = behind_links(path);
  struct stat before{};
  const bool existed = ::stat(target.c_str(), &before) == 0;
  if (existed && !S_ISREG(before.st_mode)) return error{errc::io, path + ": not a plain file"};

  std::string fresh = target + ".XXXXXX";
  descriptor file(::mkostemp(fresh.data(), O_CLOEXEC));
  if (!file.open()) return refused(path, "make a new file beside it", errno);
  const auto give_up = [&](const char* step) {
    const int reason = errno;
    ::unlink(fresh.c_str());
    return refused(path, step, reason);
  };
  mode_t mode = before.st_mode & 07777U;
  if (!existed) {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    mode = 0666U & ~mask;
  }
  if (::fchmod(file.get(), mode) != 0) return give_up("set the mode of the new file beside it");
  if (!write_all(file.get(), text)) return give_up("write the new file beside it");
  if (::fsync(file.get()) != 0) return give_up("bring the new file beside it to the disk");
  if (!file.close()) return give_up("finish the new file beside it");
  if (::rename(fresh.c_str(), target.c_str()) != 0) return give_up("rename the new file onto it");

  // The new name must survive a crash too. Where folders cannot be synced the rename is as good as it gets.
  const descriptor folder(::open(folder_of(target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.open()) static_cast<void>(::fsync(folder.get()));
  return {};
}

result<> file_storage::update(const std::string& path, const edit& change) {
  constexpr int tries = 5;
  const std::string target = behind_links(path);
  const auto held = file_lock::take(target, lock_patience_ns_);
  if (!held) return held.reason();
  for (int i = 0; i < tries; ++i) {
    const signature before(target);
    const auto text = change(read(target));
    if (!text) return {};
    // An editor, or a program with other manners, does not ask for the lock.
    if (signature(target) == before) return replace(target, *text);
  }
  return error{errc::io, path + ": it keeps changing although it is locked; find out who writes it"};
}

result<> file_storage::append(const std::string& path, std::string_view text) {
  constexpr int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
  int opened = ::open(path.c_str(), how, 0666);
  if (opened < 0 && errno == ENOENT && make_folder_of(path)) opened = ::open(path.c_str(), how, 0666);
  descriptor file(opened);
  if (!file.open()) return refused(path, "open it to add to it", errno);
  struct stat about{};
  if (::fstat(file.get(), &about) == 0 && !S_ISREG(about.st_mode)) return error{errc::io, path + ": not a plain file"};
  while (::flock(file.get(), LOCK_EX) != 0)
    if (errno != EINTR) return refused(path, "lock it", errno);
  if (::fstat(file.get(), &about) != 0) return refused(path, "look at it", errno);
  if (text.size() > max_file_bytes || static_cast<std::size_t>(about.st_size) > max_file_bytes - text.size()) {
    return too_large(path);
  }
  if (!write_all(file.get(), text)) {
    const int reason = errno;
    if (::ftruncate(file.get(), about.st_size) != 0) {
      return error{errc::io, path + ": cannot add to it: " + std::strerror(reason) + "; its last line is cut short"};
    }
    return refused(path, "add to it", reason);
  }
  if (!file.close()) return refused(path, "finish adding to it", errno);
  return {};
}

}  // namespace parley::transports
