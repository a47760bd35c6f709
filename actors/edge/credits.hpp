#pragma once
/// The bookkeeping of credits on one stream of an edge, for both ends (docs/protocol.md, Edges). A credit lets the sender of
/// invocation i write into the receiver's buffer. It binds nobody to a config: a sender without one runs another config.
///
///     receiver                                          sender
///       given.give(index)        -- credit(i, r) -->      held.take(c, next)
///                                                         held.find(next, bytes), held.begun(next)
///       given.revoke()           -- revoke(r) ----->      held.revoke(r)
///       given.answered(r)        <- answer(r, n) ---      the sender's next invocation n
///
/// Pure values: they send nothing, wait for nothing and belong to one generation; with it all its credits end. The rules
/// have the numbers of the exhaustively searched model: R2 a time-out voids every credit, R3 numbers are never reused, R4 none
/// is given while a revoke is unanswered. A peer that breaks them can only make this end ignore its credits.
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace parley::actors {

/// The receiver's end: which credits are out.
class credits_given {
 public:
  /// R4.
  bool may_give() const noexcept { return !revoking_; }
  /// The number of a credit for the receive at `index`, which counts as out from here on. Indices ascend until a revoke.
  std::uint64_t give(std::uint64_t index);
  /// Invocations below `count` have begun at the sender: their credits are used or void.
  void begun(std::uint64_t count) noexcept;
  /// R2: whether a receive at `index` may leave the queue, so that later ones move up, without asking the sender first.
  bool may_leave(std::uint64_t index) const noexcept { return out_.empty() || out_.back() < index; }
  bool any_out() const noexcept { return !out_.empty(); }
  /// Voids all credits that are out; answers the number to send. While a revoke is unanswered that is the same one.
  std::uint64_t revoke() noexcept;
  std::optional<std::uint64_t> revoking() const noexcept { return revoking_; }
  /// The sender has answered the revoke of `number`: whether that is the one that is open.
  bool answered(std::uint64_t number) noexcept;

  friend auto operator<=>(const credits_given&, const credits_given&) = default;

 private:
  std::uint64_t last_number_ = 0;
  std::optional<std::uint64_t> revoking_;
  std::vector<std::uint64_t> out_;  // indices, ascending
};

/// What a credit lets the sender write into.
struct held_credit {
  std::uint64_t index = 0;
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t capacity = 0;
  std::uint64_t flag = 0;
  std::vector<std::byte> key;
  friend auto operator<=>(const held_credit&, const held_credit&) = default;
};

/// The sender's end: which credits it may use.
class credits_held {
 public:
  /// More than that is ignored: what a receiver posts ahead beyond it runs with other configs.
  static constexpr std::size_t most = 1024;

  /// R3: a credit for an invocation below `next`, one that was revoked or one that is here already changes nothing. Answers
  /// whether it was taken.
  bool take(held_credit c, std::uint64_t next);
  /// The credit of invocation `index` if it has room for `bytes`.
  const held_credit* find(std::uint64_t index, std::uint64_t bytes) const noexcept;
  /// Whether that credit is here, though earlier ones may not be used yet.
  bool has(std::uint64_t index, std::uint64_t bytes) const noexcept;
  /// Invocation `index` has begun, with its credit or without: it and those before are over.
  void begun(std::uint64_t index) noexcept;
  /// Forgets every credit up to `number`, also those that come later.
  void revoke(std::uint64_t number) noexcept;
  std::size_t size() const noexcept { return held_.size(); }

  friend auto operator<=>(const credits_held&, const credits_held&) = default;

 private:
  std::uint64_t revoked_ = 0;
  std::vector<held_credit> held_;  // few; by index
};

}  // namespace parley::actors
