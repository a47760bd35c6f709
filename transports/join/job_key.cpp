#include <parley/transports/join/job_key.hpp>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

job_key& job_key::operator=(job_key&& other) noexcept {
  if (this != &other) {
    wipe();
    take(other);
  }
  return *this;
}

void job_key::take(job_key& other) noexcept {
  bytes_ = other.bytes_;
  empty_ = other.empty_;
  other.wipe();
}

void job_key::wipe() noexcept {
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
  empty_ = true;
}

job_key job_key::duplicate() const noexcept {
  job_key copy;
  copy.bytes_ = bytes_;
  copy.empty_ = empty_;
  return copy;
}

job_key job_key::generate() {
  job_key key;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(key.bytes_.data()), static_cast<int>(size_bytes)) != 1) {
    runtime::raise({errc::unavailable, "the system's random source gives no bytes, so no job key can be made"});
  }
  key.empty_ = false;
  return key;
}

result<job_key> job_key::from_descriptor(int fd) {
  auto key = read_exactly(fd, "descriptor " + std::to_string(fd));
  ::close(fd);
  return key;
}

result<job_key> job_key::from_file(const std::string& path) {
  // Open the file first and check it through the descriptor, so that it cannot be replaced between the two steps. Non-blocking, so
  // that a FIFO in its place cannot block the rank.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return error(errc::unavailable, "the job key file " + path + " cannot be opened: " + std::strerror(errno));
  }
  struct stat status{};
  std::string complaint;
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    complaint = " is not a regular file";
  } else if (status.st_uid != ::geteuid()) {
    complaint = " belongs to another user; use one of your own";
  } else if ((status.st_mode & 077U) != 0) {
    complaint = " is accessible to other users, so its key counts as known to them; make a new key after `chmod 600`";
  }
  if (!complaint.empty()) {
    ::close(fd);
    return error(errc::unauthenticated, "the job key file " + path + complaint);
  }
  auto key = read_exactly(fd, "file " + path);
  ::close(fd);
  return key;
}

result<job_key> job_key::from_hexadecimal(std::string_view digits) {
  job_key key;
  bool good = digits.size() == 2 * size_bytes;
  for (std::size_t i = 0; good && i < size_bytes; ++i) {
    const char* const pair = digits.data() + 2 * i;
    unsigned byte = 0;
    const auto [stop, fault] = std::from_chars(pair, pair + 2, byte, 16);
    good = fault == std::errc() && stop == pair + 2;
    key.bytes_[i] = static_cast<std::byte>(byte);
  }
  if (!good) return error(errc::malformed, "a job key is 64 hexadecimal digits");
  key.empty_ = false;
  return key;
}

std::string job_key::hexadecimal() const {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : secret()) {
    text += digits[std::to_integer<unsigned>(b) >> 4U];
    text += digits[std::to_integer<unsigned>(b) & 15U];
  }
  return text;
}

result<job_key> job_key::read_exactly(int fd, const std::string& source) {
  // One byte more than the key, to detect longer content.
  std::array<std::byte, size_bytes + 1> buffer{};
  std::size_t filled = 0;
  int fault = 0;
  while (filled < buffer.size()) {
    const ssize_t got = ::read(fd, buffer.data() + filled, buffer.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fault = errno;
    if (got <= 0) break;
    filled += static_cast<std::size_t>(got);
  }
  job_key key;
  if (fault == 0 && filled == size_bytes) {
    std::memcpy(key.bytes_.data(), buffer.data(), size_bytes);
    key.empty_ = false;
  }
  OPENSSL_cleanse(buffer.data(), buffer.size());
  if (fault != 0) {
    return error(errc::io, "the job key cannot be read from " + source + ": " + std::strerror(fault));
  }
  if (key.empty_) {
    return error(errc::malformed, source + " holds " + (filled > size_bytes ? "more" : "fewer") +
                                      " than the 32 bytes of a job key; make one with `head -c 32 /dev/urandom`");
  }
  return key;
}

}  // namespace parley::transports
