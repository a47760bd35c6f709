#pragma once
/// The sender of one invocation of an edge, as the implementation of a config sees it; the receiver's is part_receiver.hpp.
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/edge/parts_in_flight.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>

namespace parley::actors {

/// Sends the parts of one invocation. One that fails poisons its index at once, so that the receiver drops what it holds of
/// it, which is also what frees a part that waits there.
///
///     runtime::task<> send_in_halves(part_sender& out, std::span<const std::byte> data) {
///       const std::size_t half = data.size() / 2;
///       out.keep_in_flight(2);
///       co_await out.send(0, data.first(half));
///       co_await out.send(half, data.subspan(half));
///     }                                          // what is still in flight is awaited by the library
class part_sender final : public parts_in_flight {
 public:
  /// `s`, and `access` if given, must outlive it.
  part_sender(runtime::link& net, rank_id to, const stamp& s, const one_sided_access* access = nullptr) noexcept
      : parts_in_flight(net), to_(to), stamp_(s), access_(access) {}

  /// Starts the part at `offset` and waits until another one may start. Throws what the invocation failed with: also
  /// `bad_argument` for a part outside of the payload, or for an offset that was sent before.
  step send(std::uint64_t offset, std::span<const std::byte> part) {
    start(offset, part);
    return room();
  }
  /// The same of memory on a device, which the transport itself takes it from (`link::send_device`); the receiver's
  /// `receive_device` fits it.
  step send_device(std::uint64_t offset, std::span<const std::byte> part) {
    start(offset, part, &runtime::link::send_device);
    return room();
  }
  /// Without waiting.
  using send_function = runtime::errc (runtime::link::*)(rank_id, runtime::link::channel, std::span<const std::byte>,
                                                         std::span<const std::byte>, runtime::completion*);
  void start(std::uint64_t offset, std::span<const std::byte> part, send_function how = &runtime::link::send) {
    if (failed() != runtime::errc::none) return;
    if (part.empty() && stamp_.total_bytes != 0) return;
    if (part.size() > stamp_.total_bytes || offset > stamp_.total_bytes - part.size() || !is_new(offset)) {
      fail(runtime::errc::bad_argument);
      return;
    }
    stamp s = stamp_;
    s.offset = offset;
    if (offset == next_offset_) next_offset_ += part.size();
    sent_bytes_ += part.size();
    transfer_part* const sent = new_part();
    started(sent, (net_.*how)(to_, runtime::link::channel::data, bytes_of(s), part, sent));
  }
  const stamp& mark() const noexcept { return stamp_; }
  std::uint64_t total_bytes() const noexcept { return stamp_.total_bytes; }
  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }

  /// Writes the part at `offset` into the receiver's buffer, where this invocation has a credit; waits until another one may
  /// start. The stamp follows once all of them are there.
  step put(std::uint64_t offset, std::span<const std::byte> part, runtime::device_copy by = {}) {
    start_put(offset, part, by);
    return room();
  }
  /// The same without waiting.
  void start_put(std::uint64_t offset, std::span<const std::byte> part, runtime::device_copy by) noexcept;
  /// Lets the receiver get the whole payload from registered memory; waits until it has.
  step offer() {
    start_offer();
    return room();
  }

  /// Whether it has written into the receiver's buffer. Then what lets the receiver give that back, the stamp or the poison,
  /// waits for a fence: once all parts have begun, `fence`, which takes the stamp along where the link can; once all have ended and it is
  /// `fenced`, `announce`, which says what is left to say; and once more until all have ended.
  bool has_put() const noexcept { return has_put_; }
  void fence() noexcept;
  /// Whether a fence has said something. One that was cancelled with the parts before it has not: there must be another one.
  bool fenced() const noexcept { return fenced_ != runtime::errc::pending && fenced_ != runtime::errc::cancelled; }
  void announce() noexcept;
  /// How the fence ended: `device_failed` where it is this rank's own device that did not do what was to be fenced.
  runtime::errc fence_outcome() const noexcept { return fenced_; }
  /// Whether the receiver was not told that it failed, as the transport did not take that: somebody has to say `poison` later.
  bool owes_poison() const noexcept { return owes_poison_; }
  stamp poison() const noexcept;
  /// Nobody knows what was written, or when. Nothing more is said to the receiver: it counts as dead, or this rank does.
  bool fence_failed() const noexcept { return fenced_ != runtime::errc::none && fenced_ != runtime::errc::pending; }

 private:
  // The receiver takes a second part at one offset for the first one come twice.
  bool is_new(std::uint64_t offset) {
    if (offset == next_offset_ && beyond_ == nullptr) [[likely]]
      return true;
    return offset >= next_offset_ && note_beyond(offset);
  }
  [[gnu::cold]] bool note_beyond(std::uint64_t offset);
  void start_offer() noexcept;
  void on_failed() noexcept override;
  runtime::errc say(const stamp& s) noexcept;
  void say_poison() noexcept;
  rank_id to_;
  const stamp& stamp_;
  const one_sided_access* access_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t next_offset_ = 0;  // all below it was sent
  // The offsets above it, of a config that does not go from the front to the back.
  std::unique_ptr<std::unordered_set<std::uint64_t>> beyond_;
  runtime::errc fenced_ = runtime::errc::pending;
  bool has_put_ = false;
  bool owes_poison_ = false;
  bool announced_ = false;  // the link brings the stamp as soon as all has landed, whatever becomes of the call here
  std::span<const std::byte> put_from_;  // where all that it put lies, as a rule the payload
};

}  // namespace parley::actors
