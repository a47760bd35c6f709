#pragma once
/// The secret that the ranks of one job share: 32 bytes by which they authenticate each other (docs/protocol.md, Joining).
///
///     auto key = job_key::from_descriptor(placement.key_fd);     // inherited from `parley run`; closes the fd
///     if (!key) return key.reason();
///     rendezvous meeting(io, options, std::move(key).value());
///
/// A key never appears in argv, in an environment value, in a log or in an error's text. It can be moved but not copied, and
/// its bytes are overwritten when it is destroyed or moved from. An empty key is legal and means "unauthenticated".
#include <parley/error.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace parley::transports {

class job_key {
 public:
  static constexpr std::size_t size_bytes = 32;

  job_key() noexcept = default;
  job_key(job_key&& other) noexcept { take(other); }
  job_key& operator=(job_key&& other) noexcept;
  job_key(const job_key&) = delete;
  job_key& operator=(const job_key&) = delete;
  ~job_key() { wipe(); }

  /// A fresh key from the system's random source; throws `failure` (`unavailable`) if that gives no bytes.
  static job_key generate();
  /// Reads exactly 32 bytes up to the end of an inherited pipe or memory file. The descriptor is closed either way.
  static runtime::result<job_key> from_descriptor(int fd);
  /// Reads a file of exactly 32 bytes that belongs to this user and that only this user may read or write (0600 or 0400).
  static runtime::result<job_key> from_file(const std::string& path);
  /// Reads 64 hexadecimal digits, the form of a key in a launcher's key-value space or a meeting's file.
  static runtime::result<job_key> from_hexadecimal(std::string_view digits);
  /// The digits that `from_hexadecimal` reads; "" for an empty key. Pass them only where no other user can read them.
  std::string hexadecimal() const;
  /// A copy of the key, for a launcher that serves several ranks and for tests.
  job_key duplicate() const noexcept;

  bool empty() const noexcept { return empty_; }
  /// The secret itself: 32 bytes, or none if the key is empty. For hashing and for passing on, never for printing.
  std::span<const std::byte> secret() const noexcept {
    return std::span<const std::byte>(bytes_).first(empty_ ? 0 : size_bytes);
  }

 private:
  static runtime::result<job_key> read_exactly(int fd, const std::string& source);
  void take(job_key& other) noexcept;
  void wipe() noexcept;

  std::array<std::byte, size_bytes> bytes_{};
  bool empty_ = true;
};

}  // namespace parley::transports
