#pragma once
/// The sender of one invocation of an edge, as a config's implementation sees it. The receiver is in part_receiver.hpp.
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

/// Sends the parts of one invocation. When the invocation fails, its sender sends a poison at once. The receiver then drops the parts that
/// it holds, so that sends which wait for the receiver also complete.
///
///     runtime::task<> send_in_halves(part_sender& out, std::span<const std::byte> data) {
///       const std::size_t half = data.size() / 2;
///       out.keep_in_flight(2);
///       co_await out.send(0, data.first(half));
///       co_await out.send(half, data.subspan(half));
///     }                                          // the library waits for what is still in flight of `data`
class part_sender final : public parts_in_flight {
 public:
  /// `s`, and `access` if given, must outlive this object.
  part_sender(runtime::link& net, rank_id to, const stamp& s, const one_sided_access* access = nullptr) noexcept
      : parts_in_flight(net), to_(to), stamp_(s), access_(access) {}

  /// Starts sending the part at `offset`, then waits until another part may start. Throws if the invocation has failed. Throws
  /// `bad_argument` for a part outside the payload, or for an offset that was sent before.
  step send(std::uint64_t offset, std::span<const std::byte> part) {
    start(offset, part);
    return room();
  }
  /// Sends a part from device memory, which the transport itself reads (`link::send_device`). The receiver may use `receive_device`.
  step send_device(std::uint64_t offset, std::span<const std::byte> part) {
    start(offset, part, &runtime::link::send_device);
    return room();
  }
  /// Starts a part without waiting.
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

  /// Writes the part at `offset` into the receiver's buffer, for which this invocation has a credit, then waits until another part may
  /// start. The stamp follows once all parts have landed.
  step put(std::uint64_t offset, std::span<const std::byte> part, runtime::device_copy by = {}) {
    start_put(offset, part, by);
    return room();
  }
  /// Starts a put without waiting.
  void start_put(std::uint64_t offset, std::span<const std::byte> part, runtime::device_copy by) noexcept;
  /// Lets the receiver read the whole payload from registered memory, and waits until it has done so.
  step offer() {
    start_offer();
    return room();
  }

  /// True if this invocation has put parts into the receiver's buffer. If so, a fence must be sent before the stamp or poison with which
  /// the receiver releases the buffer. Once all parts have begun, call `fence`, which carries the stamp if the link can do that. Once all
  /// parts have ended and `fenced` is true, call `announce`, which sends the stamp or poison if the fence did not carry it. Then wait again
  /// until all parts have ended.
  bool has_put() const noexcept { return has_put_; }
  void fence() noexcept;
  /// True if a fence has ended with a result. A fence that was cancelled together with the puts has no result: another fence must follow.
  bool fenced() const noexcept { return fenced_ != runtime::errc::pending && fenced_ != runtime::errc::cancelled; }
  void announce() noexcept;
  /// How the fence ended: `device_failed` if this rank's own device failed to do the puts.
  runtime::errc fence_outcome() const noexcept { return fenced_; }
  /// True if the transport did not accept the poison, so that the receiver does not know of the failure: `poison` must be sent later.
  bool owes_poison() const noexcept { return owes_poison_; }
  stamp poison() const noexcept;
  /// After a failed fence it is unknown what was written, or when. Nothing more is sent to the receiver, because either the receiver or
  /// this rank counts as dead.
  bool fence_failed() const noexcept { return fenced_ != runtime::errc::none && fenced_ != runtime::errc::pending; }

 private:
  // The receiver would drop a second part at one offset as a duplicate.
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
  std::uint64_t next_offset_ = 0;  // all bytes below it were sent
  // Offsets above `next_offset_`, for a config that does not send from front to back.
  std::unique_ptr<std::unordered_set<std::uint64_t>> beyond_;
  runtime::errc fenced_ = runtime::errc::pending;
  bool has_put_ = false;
  bool owes_poison_ = false;
  bool announced_ = false;  // the link sends the stamp once all puts have landed, even if the call here fails
  std::span<const std::byte> put_from_;  // the memory range of all puts so far: as a rule the payload
};

}  // namespace parley::actors
