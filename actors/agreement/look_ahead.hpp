#pragma once
/// Stamps with look-ahead d (docs/protocol.md, The idea, State and guards), as pure values: the leader's assignments, and the assignments
/// that a follower knows.
///
///     ahead_writer log(d, c0);                   // at the leader, the only writer
///     ahead_reader seen(d, c0);                  // at each follower
///     log.write(digest);                         // for the next invocation: i + d at the latest when invocation i returns
///     seen.learn(i, digest_of_i, digest_of_i_plus_d);      // the stamp of i is here
///     if (auto digest = seen.config_of(n)) …     // n < d, or the stamp of n - d is here; otherwise wait
///
/// A follower that runs n before it has the stamp of n - d breaks S2: the test of this header explores that by brute force. The leader
/// guesses the size of an invocation that has not begun with `size_history`.
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace parley::actors {

/// One value per invocation, for a moving range of invocations. Numbers below the range or far above it are refused, so that a peer's
/// messages cannot make the log grow.
template <class T>
class invocation_log {
 public:
  static constexpr std::uint64_t most = 4096;
  /// The first invocation for which the log still has a place.
  std::uint64_t first() const noexcept { return first_; }
  const T* find(std::uint64_t n) const noexcept {
    if (n - first_ >= size_) return nullptr;  // also true below `first_`
    const std::optional<T>& value = at(n);
    return value ? &*value : nullptr;
  }
  T* find(std::uint64_t n) noexcept { return const_cast<T*>(std::as_const(*this).find(n)); }
  /// False when `n` has a value already or no place.
  bool put(std::uint64_t n, T value) {
    if (n - first_ >= most || find(n) != nullptr) return false;
    if (n - first_ >= ring_.size()) grow_to(n - first_ + 1);
    at(n) = std::move(value);
    size_ = std::max(size_, n - first_ + 1);
    return true;
  }
  void drop_below(std::uint64_t n) {
    for (; first_ < n && size_ != 0; ++first_, --size_) at(first_).reset();
    first_ = std::max(first_, n);
  }
  friend bool operator==(const invocation_log& a, const invocation_log& b) {
    if (a.first_ != b.first_ || a.size_ != b.size_) return false;
    for (std::uint64_t n = a.first_; n != a.first_ + a.size_; ++n) {
      if (a.at(n) != b.at(n)) return false;
    }
    return true;
  }

 private:
  std::optional<T>& at(std::uint64_t n) noexcept { return ring_[n & (ring_.size() - 1)]; }
  const std::optional<T>& at(std::uint64_t n) const noexcept { return ring_[n & (ring_.size() - 1)]; }
  void grow_to(std::uint64_t size) {
    std::vector<std::optional<T>> larger(std::bit_ceil(std::max<std::uint64_t>(size, 4)));
    for (std::uint64_t n = first_; n != first_ + size_; ++n) larger[n & (larger.size() - 1)] = std::move(at(n));
    ring_ = std::move(larger);
  }
  std::uint64_t first_ = 0;
  std::uint64_t size_ = 0;
  std::vector<std::optional<T>> ring_;  // each value at its number modulo a power of two
};

/// The leader's half: written once for each invocation (S1).
class ahead_writer {
 public:
  ahead_writer(std::uint64_t depth, std::uint64_t default_digest, std::uint64_t first = 0)
      : depth_(depth), default_(default_digest), first_written_(first + depth) {
    log_.drop_below(first);
  }
  std::uint64_t depth() const noexcept { return depth_; }
  /// Invocations below this one have c0; they are never written.
  std::uint64_t first_written() const noexcept { return first_written_; }
  /// The next invocation that has no config.
  std::uint64_t unwritten() const noexcept { return unwritten_; }
  bool has_place(std::uint64_t n) const noexcept { return n < log_.first() + invocation_log<std::uint64_t>::most; }
  /// False if there is no place for it; then nothing changes.
  [[nodiscard]] bool write(std::uint64_t digest) {
    if (!log_.put(unwritten_, digest)) return false;
    ++unwritten_;
    return true;
  }
  std::optional<std::uint64_t> config_of(std::uint64_t n) const noexcept {
    if (n < first_written_) return default_;
    const std::uint64_t* at = log_.find(n);
    return at == nullptr ? std::nullopt : std::optional(*at);
  }
  void drop_below(std::uint64_t n) { log_.drop_below(n); }
  friend bool operator==(const ahead_writer&, const ahead_writer&) = default;

 private:
  std::uint64_t depth_;
  std::uint64_t default_;
  std::uint64_t first_written_;
  std::uint64_t unwritten_ = first_written_;
  invocation_log<std::uint64_t> log_;
};

/// A follower's half: the leader's stamps that it has seen.
class ahead_reader {
 public:
  ahead_reader(std::uint64_t depth, std::uint64_t default_digest, std::uint64_t first = 0)
      : depth_(depth), default_(default_digest), first_learned_(first + depth) {
    log_.drop_below(first);
  }
  /// The config of `n`, if it is known. A follower checks this before each invocation.
  std::optional<std::uint64_t> config_of(std::uint64_t n) const noexcept {
    if (n < first_learned_) return default_;
    const std::uint64_t* at = log_.find(n);
    return at == nullptr ? std::nullopt : std::optional(*at);
  }
  /// Learns the stamp of `n`: the config of n, and the config of n + d, which is 0 if the sender of the stamp does not know it. Returns
  /// false if the stamp contradicts an earlier one (S1).
  bool learn(std::uint64_t n, std::uint64_t digest, std::uint64_t next_digest) {
    const bool agrees = note(n, digest);
    return (depth_ == 0 || next_digest == 0 || note(n + depth_, next_digest)) && agrees;
  }
  void drop_below(std::uint64_t n) { log_.drop_below(n); }
  friend bool operator==(const ahead_reader&, const ahead_reader&) = default;

 private:
  bool note(std::uint64_t n, std::uint64_t digest) {
    if (n < log_.first()) return true;  // it has ended here
    if (const auto known = config_of(n)) return *known == digest;
    return log_.put(n, digest);
  }
  std::uint64_t depth_;
  std::uint64_t default_;
  std::uint64_t first_learned_;  // invocations below this one have c0
  invocation_log<std::uint64_t> log_;
};

/// Guesses the size of the invocation that comes d calls later: the size that came d calls after the last call of the present size bucket.
/// A guess in the wrong bucket costs nothing except the trial: the assigned config runs and is safe, and its time counts for no key.
class size_history {
 public:
  explicit size_history(std::uint64_t depth, std::uint64_t first = 0) : depth_(depth) { latest_.drop_below(first); }
  /// Invocation `n` has begun. Called for each one in order.
  void begun(std::uint64_t n, std::uint64_t bytes) {
    latest_.put(n, bytes);
    last_ = bytes;
    if (n >= depth_) {
      if (const std::uint64_t* before = latest_.find(n - depth_)) followed_[bucket(*before)] = bytes;
    }
    if (n > depth_) latest_.drop_below(n - depth_);
  }
  /// The guess for `n`, or its true size if it has begun. Empty before the first invocation has begun.
  std::optional<std::uint64_t> expected(std::uint64_t n) const noexcept {
    if (const std::uint64_t* known = latest_.find(n)) return *known;
    const std::uint64_t* before = n >= depth_ ? latest_.find(n - depth_) : nullptr;
    if (before == nullptr) return last_;
    const auto& last_time = followed_[bucket(*before)];
    return last_time ? last_time : *before;
  }

 private:
  static unsigned bucket(std::uint64_t bytes) noexcept { return tuning::size_bucket::of(bytes).index(); }
  std::uint64_t depth_;
  std::optional<std::uint64_t> last_;
  invocation_log<std::uint64_t> latest_;
  std::array<std::optional<std::uint64_t>, tuning::size_bucket::count> followed_{};
};

}  // namespace parley::actors
