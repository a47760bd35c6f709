#pragma once
/// The bookkeeping of credits on one stream of an edge, for both ends (docs/protocol.md, Edges). A credit lets the sender of invocation i
/// write into the receiver's buffer. A credit does not commit either rank to a config: a sender without a credit runs another config.
///     receiver                                          sender
///       given.give(index)        -- credit(i, r) -->      held.take(c, next)
///                                                         held.find(next, bytes), held.begun(next)
///       given.revoke()           -- revoke(r) ----->      held.revoke(r)
///       given.answered(r)        <- answer(r, n) ---      the sender's next invocation n
///
/// Pure values: they send nothing and wait for nothing. They belong to one generation, and all credits end with it. The numbers of the
/// rules are those of the exhaustively searched model: R2 a timeout voids every credit, R3 numbers are never reused, R4 no credit is given
/// while a revoke is unanswered. If a peer breaks the rules, this end only ignores the peer's credits.
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace parley::actors {

/// The receiver's end: the credits that are out.
class credits_given {
 public:
  /// R4: false while a revoke is unanswered.
  bool may_give() const noexcept { return !revoking_; }
  /// Gives a credit to the receive at `index` and returns the credit's number. From now on the credit counts as out. Indices ascend until a
  /// revoke.
  std::uint64_t give(std::uint64_t index);
  /// The sender has begun all invocations below `count`: their credits are used or void.
  void begun(std::uint64_t count) noexcept;
  /// R2: true if a receive at `index` may leave the queue without asking the sender first. Later receives then move up.
  bool may_leave(std::uint64_t index) const noexcept { return out_.empty() || out_.back() < index; }
  bool any_out() const noexcept { return !out_.empty(); }
  /// Voids all credits that are out and returns the number to send: it stays the same until the revoke is answered.
  std::uint64_t revoke() noexcept;
  std::optional<std::uint64_t> revoking() const noexcept { return revoking_; }
  /// The sender has answered the revoke of `number`. Returns whether that is the unanswered revoke.
  bool answered(std::uint64_t number) noexcept;

  friend auto operator<=>(const credits_given&, const credits_given&) = default;

 private:
  std::uint64_t last_number_ = 0;
  std::optional<std::uint64_t> revoking_;
  std::vector<std::uint64_t> out_;  // indices, ascending
};

/// A credit at the sender: the memory into which the sender may write.
struct held_credit {
  std::uint64_t index = 0;
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t capacity = 0;
  std::uint64_t flag = 0;
  std::vector<std::byte> key;
  friend auto operator<=>(const held_credit&, const held_credit&) = default;
};

/// The sender's end: the credits that it may use.
class credits_held {
 public:
  /// Further credits are ignored: receives posted that far ahead run with other configs.
  static constexpr std::size_t most = 1024;

  /// Keeps a credit and returns true. R3: returns false and changes nothing if the credit is for an invocation below `next`, was revoked,
  /// or is the second one for its invocation.
  bool take(held_credit c, std::uint64_t next);
  /// The credit of invocation `index` if it has room for `bytes`.
  const held_credit* find(std::uint64_t index, std::uint64_t bytes) const noexcept;
  /// True if `find` would return that credit once earlier credits are used or void.
  bool has(std::uint64_t index, std::uint64_t bytes) const noexcept;
  /// Invocation `index` has begun, with or without its credit: its credit and all earlier ones are dropped.
  void begun(std::uint64_t index) noexcept;
  /// Drops every credit up to `number`, and ignores those that arrive later.
  void revoke(std::uint64_t number) noexcept;
  std::size_t size() const noexcept { return held_.size(); }

  friend auto operator<=>(const credits_held&, const credits_held&) = default;

 private:
  std::uint64_t revoked_ = 0;
  std::vector<held_credit> held_;  // few; sorted by index
};

}  // namespace parley::actors
