#include <parley/transports/files/file_storage.hpp>

#include <parley/transports/files/file_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
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
  return {errc::io, path + ": larger than the limit of 64 MiB; move the file away to start a new one"};
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

/// Creates the folder of `path`, one level only, for logs that have their own folder. Several ranks may call this at once.
bool make_folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return false;
  return ::mkdir(path.substr(0, slash).c_str(), 0777) == 0 || errno == EEXIST;
}

error not_plain(const std::string& path) { return {errc::io, path + ": not a plain file"}; }

error foreign(const std::string& path, const char* what, uid_t owner) {
  return {errc::io, path + ": " + what + " belongs to user " + std::to_string(owner) +
                        ", and this process runs as user " + std::to_string(::geteuid()) +
                        ": it is left alone; name a file of your own"};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Follows symbolic links to the file itself; otherwise a rename would replace the user's link by a plain file. Follows only links that
/// belong to this user or to root: another user who can create a link in the folder could point it at any file of this user.
result<std::string> behind_links(const std::string& path) {
  constexpr int most_links = 40;  // like Linux
  std::string at = path;
  for (int links = 0;; ++links) {
    struct stat about{};
    if (::lstat(at.c_str(), &about) != 0 || !S_ISLNK(about.st_mode)) return at;
    if (about.st_uid != ::geteuid() && about.st_uid != 0) return foreign(path, "the link there", about.st_uid);
    if (links == most_links) return refused(path, "follow its links", ELOOP);
    std::string to(PATH_MAX, '\0');
    const ssize_t length = ::readlink(at.c_str(), to.data(), to.size());
    if (length < 0) return refused(path, "follow its link", errno);
    to.resize(static_cast<std::size_t>(length));
    at = to.starts_with('/') ? to : folder_of(at) + "/" + to;
  }
}

/// The status of the file, which must be a plain file of this user; nothing if there is no file yet. It is read through one
/// descriptor, so that all of it describes the same file.
result<std::optional<struct stat>> own_file(const std::string& path, const std::string& target) {
  const descriptor file(::open(target.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!file.open() && errno == ENOENT) return std::optional<struct stat>();
  struct stat about{};
  if (!file.open() || ::fstat(file.get(), &about) != 0) return refused(path, "look at it", errno);
  if (!S_ISREG(about.st_mode)) return not_plain(path);
  if (about.st_uid != ::geteuid()) return foreign(path, "the file there", about.st_uid);
  return std::optional(about);
}

/// Creates a file with a new name and `mode`, to which the system applies the umask. This never reads the umask: reading it requires
/// setting it, and other threads may create files at that moment.
int make_beside(const std::string& target, mode_t mode, std::string& fresh) {
  constexpr int tries = 100;
  std::random_device random;
  for (int i = 0; i < tries; ++i) {
    std::array<char, 9> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x", random());
    fresh = target + "." + digits.data();
    const int fd = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

/// Detects that a file has changed, without reading it.
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
  if (!S_ISREG(about.st_mode)) return not_plain(path);
  if (static_cast<std::size_t>(about.st_size) > max_file_bytes) return too_large(path);
  std::string text(static_cast<std::size_t>(about.st_size) + 1, '\0');  // one byte more, to notice growth
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
  const auto meant = behind_links(path);
  if (!meant) return meant.reason();
  const std::string& target = *meant;
  const auto before = own_file(path, target);
  if (!before) return before.reason();

  std::string fresh;
  descriptor file(make_beside(target, *before ? (*before)->st_mode & 07777U : 0666U, fresh));
  if (!file.open()) return refused(path, "make a new file next to it", errno);
  const auto give_up = [&](const char* step) {
    const int reason = errno;
    ::unlink(fresh.c_str());
    return refused(path, step, reason);
  };
  if (*before && ::fchmod(file.get(), (*before)->st_mode & 07777U) != 0)
    return give_up("set the mode of the new file next to it");
  if (!write_all(file.get(), text)) return give_up("write the new file next to it");
  if (::fsync(file.get()) != 0) return give_up("bring the new file next to it to the disk");
  if (!file.close()) return give_up("finish the new file next to it");
  if (::rename(fresh.c_str(), target.c_str()) != 0) return give_up("rename the new file onto it");

  // The new name must survive a crash too. Errors are ignored: some file systems cannot sync folders.
  const descriptor folder(::open(folder_of(target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.open()) static_cast<void>(::fsync(folder.get()));
  return {};
}

result<> file_storage::update(const std::string& path, const edit& change) {
  constexpr int tries = 5;
  const auto meant = behind_links(path);
  if (!meant) return meant.reason();
  const std::string& target = *meant;
  if (const auto before = own_file(path, target); !before) return before.reason();
  const auto held = file_lock::take(target, lock_patience_ns_);
  if (!held) return held.reason();
  for (int i = 0; i < tries; ++i) {
    const signature before(target);
    const auto text = change(read(target));
    if (!text) return {};
    // Editors and other programs do not use the lock, so check that the file has not changed since it was read.
    if (signature(target) == before) return replace(target, *text);
  }
  return error{errc::io, path + ": it keeps changing although it is locked; find out who writes it"};
}

result<> file_storage::append(const std::string& path, std::string_view text) {
  constexpr int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;
  const auto meant = behind_links(path);
  if (!meant) return meant.reason();
  int opened = ::open(meant->c_str(), how, 0666);
  if (opened < 0 && errno == ENOENT && make_folder_of(*meant)) opened = ::open(meant->c_str(), how, 0666);
  descriptor file(opened);
  if (!file.open()) return refused(path, "open it to add to it", errno);
  struct stat about{};
  if (::fstat(file.get(), &about) != 0) return refused(path, "look at it", errno);
  if (!S_ISREG(about.st_mode)) return not_plain(path);
  if (about.st_uid != ::geteuid()) return foreign(path, "the file there", about.st_uid);
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

result<> file_storage::place_for_files(const std::string& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) return not_plain(path);
  return {};
}

}  // namespace parley::transports
