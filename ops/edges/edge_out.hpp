#pragma once
/// The sending end of an edge.
///
///     edge_out out(services, {.name = "activations", .peer = 1, .configs = configs});
///     co_await out.send(bytes, {.tag = 0});
///
/// Failure and cancellation: see edge_end.hpp.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/ops/edges/edge_end.hpp>
#include <parley/ops/edges/refusals.hpp>
#include <parley/tuning/planners/plan_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::ops {

class edge_out final : public edge_end {
 public:
  edge_out(actors::services& s, const edge_options& o, const tuning::plan_options& plan = {});
  ~edge_out() override;

  /// Ends when `data` may be reused.
  send_call send(std::span<const std::byte> data, call_options o) noexcept { return {*this, data, o}; }
  /// The same for a short payload that nothing has to wait for: it has left, and may be reused. False: nothing has been done, and `send`
  /// is what it takes.
  bool send_at_once(std::span<const std::byte> data, const call_options& o);
  /// Whether a wait could tell the next message nothing of where to put its payload.
  bool knows_where(std::uint32_t tag, std::uint64_t bytes) { return sender_.knows_where(tag, bytes); }
  /// After it has failed, for good.
  void retire() noexcept;
  void fail(const runtime::error& why) noexcept override;
  bool owes_messages() const noexcept override {
    return edge_end::owes_messages() || (!failed_ && coordinator_.owed != 0);
  }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t tag) const override { return sender_.begun_in_words(tag); }
  time_ns untaken_ns() override { return delivered() ? 0 : options_.timeout_ns; }
  void list_undelivered(std::vector<std::pair<rank_id, std::string>>& all) override;
  /// What its receiver has refused.
  void list_left_over(std::vector<std::string>& lines) override;
  std::uint64_t flow_messages() const noexcept override { return sender_.statistics().questions_sent; }
  const actors::assignment& assigned() const noexcept { return assigned_; }
  const actors::coordinator_state* coordinator() const noexcept override { return &coordinator_; }
  const actors::edge_sender& sender() const noexcept { return sender_; }
  /// Of payloads that were copied so that nobody had to wait for them.
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }

 private:
  friend send_call;
  /// Whether the peer has taken what was sent, or is gone. Asks it, if not.
  bool delivered() { return failed_ || sender_.all_matched(); }
  runtime::errc send_short(const actors::outgoing& inv, std::span<const std::byte> data) {
    if (data.size() > actors::inside_message_bytes) copied_bytes_ += data.size();
    return services_.net.send(peer(), runtime::link::channel::data, bytes_of(inv.mark), data, nullptr);
  }
  void take_memory(const std::shared_ptr<actors::memory_region>& region) override;
  runtime::task<> rehearse(std::uint64_t digest) override;
  void give_up_rehearsal(std::uint64_t digest);
  /// What keeps a send from beginning.
  runtime::awaited why_not_admitted(std::uint32_t tag, std::uint64_t bytes, bool is_still_written);
  std::string words_of(runtime::awaited unmet) const;
  runtime::task<> send_when_admitted(std::span<const std::byte> data, call_options call);
  runtime::task<> run(actors::outgoing inv, std::span<const std::byte> data, time_ns until,
                      actors::payload_pieces* by_piece = nullptr, std::uint64_t batch = 0);
  /// Before a payload in pieces is sent: what it goes by, or null once it is packed, within the time of its config.
  actors::payload_pieces* packed_unless_by_piece(const actors::outgoing& inv, actors::payload_pieces* pieces) {
    return pieces == nullptr ? nullptr : pack(inv, *pieces);
  }
  actors::payload_pieces* pack(const actors::outgoing& inv, actors::payload_pieces& pieces);
  /// Whether kernels still write a payload, so that there is time for its receiver to say where it goes.
  bool may_wait_for_credit(std::uint32_t tag, std::span<const std::byte> data) {
    return options_.memory != nullptr && !sender_.knows_where(tag, data.size()) && options_.memory->busy(data);
  }
  /// Whether a call has something to wait for or to tell beside its own message.
  bool goes_slowly(std::uint32_t tag, std::span<const std::byte> data) {
    return unusual_ && (owes_refusal() || may_wait_for_credit(tag, data) || sender_.awaits_decided(tag, data));
  }
  bool owes_refusal() const noexcept { return refused_.owes(); }
  runtime::task<> send_and_tell(std::span<const std::byte> data, call_options call);
  runtime::error_facts about_refused(const refusal& r) const;
  std::string words_of(const refusal& r) const;
  void on_refused(refusal r);
  /// Whether a payload must be there before it is sent: a receiver that gets it knows nothing of what is enqueued here, and what
  /// kernels take is not charged to a config that is measured.
  bool waits_for_kernels(const actors::outgoing& inv, std::span<const std::byte> data) {
    return options_.memory != nullptr && is_still_written(inv, data);
  }
  bool is_still_written(const actors::outgoing& inv, std::span<const std::byte> data);
  void show_payload(const actors::outgoing& inv, std::span<const std::byte> data) const {
    if (services_.watcher != nullptr) [[unlikely]]
      services_.watcher->on_payload(services_.net.rank(), {actors::payload_seen::what::sent, sender_.op(),
                                                           sender_.generation(), inv.mark.tag, inv.invocation, data});
  }
  /// Ends when kernels have written it. Answers when they were last seen at work.
  runtime::task<time_ns> until_written(std::span<const std::byte> data);
  /// Nobody knows what of a put has landed, or will: the peer counts as dead.
  void after_failed_fence(runtime::errc how);
  void lose_peer();
  /// S3.
  void check_trial(const actors::outgoing& inv) const {
    if (has(inv.mark.flags, actors::stamp_flags::timed)) [[unlikely]]
      check_warmed(inv.mark.digest);
  }
  [[gnu::cold]] void check_warmed(std::uint64_t digest) const;
  /// Of a trial: what it has taken so far but for its waits, which may be for a peer that is late, is its work.
  [[gnu::cold]] void note_worked(actors::outgoing& inv, time_ns waited_ns);
  /// Ends an invocation all of whose parts have ended; throws unless `bytes` were sent.
  void end(const actors::outgoing& inv, part_sender& out, std::size_t bytes, std::string_view why = {}) {
    if (out.failed() != runtime::errc::none || out.sent_bytes() != bytes) end_failed(inv, out, bytes, why);
    sender_.end(inv, runtime::errc::none);
  }
  [[noreturn]] void end_failed(const actors::outgoing& inv, part_sender& out, std::size_t bytes, std::string_view why);

  void on_nack(const actors::nack& n) noexcept;
  void on_rejected(const runtime::error& why) noexcept override;

  // A send of several parts, which the receiver's word that it failed can still reach.
  struct under_way : runtime::list_hook {
    under_way(const actors::outgoing& inv, part_sender& parts) noexcept : invocation(inv), out(parts) {}
    const actors::outgoing& invocation;
    part_sender& out;
    std::uint64_t batch = 0;
    std::string why;
  };
  struct late_guard;

  refusals refused_;
  bool unusual_ = options_.memory != nullptr || one_sided();
  // What has left when the link has been given it. From a device's memory nothing does: that takes a copy which somebody has to wait for.
  std::size_t short_bytes_ = options_.memory == nullptr ? services_.net.short_bytes() : 0;
  std::uint64_t copied_bytes_ = 0;
  std::size_t at_once_below_ = 0;  // what leaves so whichever config it is stamped with
  runtime::intrusive_list<under_way> under_way_;
  runtime::intrusive_list<whole_send> wholes_;
  actors::assignment assigned_;
  actors::edge_sender sender_;
  actors::coordinator_state coordinator_;
  actors::coordinator_address leads_;
};

}  // namespace parley::ops
