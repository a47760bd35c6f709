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
  /// Sends a short payload that can be sent without waiting. On return the message is sent, and `data` may be reused. False: nothing was
  /// done; call `send` instead.
  bool send_at_once(std::span<const std::byte> data, const call_options& o);
  /// True if there is no point in waiting for a credit for the next payload: the credit is here already, or would be of no use.
  bool knows_where(std::uint32_t tag, std::uint64_t bytes) { return sender_.knows_where(tag, bytes); }
  /// Ends it permanently, after it has failed.
  void retire() noexcept;
  void fail(const runtime::error& why) noexcept override;
  bool owes_messages() const noexcept override {
    return edge_end::owes_messages() || (!failed_ && coordinator_.owed != 0);
  }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t tag) const override { return sender_.begun_in_words(tag); }
  time_ns untaken_ns() override { return delivered() ? 0 : options_.timeout_ns; }
  void list_undelivered(std::vector<std::pair<rank_id, std::string>>& all) override;
  /// Lists the messages that the receiver has refused and that no call has reported.
  void list_left_over(std::vector<std::string>& lines) override;
  std::uint64_t flow_messages() const noexcept override { return sender_.statistics().questions_sent; }
  const actors::assignment& assigned() const noexcept { return assigned_; }
  const actors::coordinator_state* coordinator() const noexcept override { return &coordinator_; }
  const actors::edge_sender& sender() const noexcept { return sender_; }
  /// Bytes of payloads that were copied so that no call had to wait for them.
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }

 private:
  friend send_call;
  /// True if the peer has matched all sent messages, or this end has failed. Otherwise asks the peer.
  bool delivered() { return failed_ || sender_.all_matched(); }
  runtime::errc send_short(const actors::outgoing& inv, std::span<const std::byte> data) {
    if (data.size() > actors::inside_message_bytes) copied_bytes_ += data.size();
    return services_.net.send(peer(), runtime::link::channel::data, bytes_of(inv.mark), data, nullptr);
  }
  void take_memory(const std::shared_ptr<actors::memory_region>& region) override;
  runtime::task<> rehearse(std::uint64_t digest) override;
  void give_up_rehearsal(std::uint64_t digest);
  /// The reason why a send cannot begin yet.
  runtime::awaited why_not_admitted(std::uint32_t tag, std::uint64_t bytes, bool is_still_written);
  std::string words_of(runtime::awaited unmet) const;
  runtime::task<> send_when_admitted(std::span<const std::byte> data, call_options call);
  runtime::task<> run(actors::outgoing inv, std::span<const std::byte> data, time_ns until,
                      actors::payload_pieces* by_piece = nullptr, std::uint64_t batch = 0);
  /// Prepares a payload in pieces. Returns the pieces if the config sends by the piece. Otherwise packs them, which is charged to the
  /// config, and returns null.
  actors::payload_pieces* packed_unless_by_piece(const actors::outgoing& inv, actors::payload_pieces* pieces) {
    return pieces == nullptr ? nullptr : pack(inv, *pieces);
  }
  actors::payload_pieces* pack(const actors::outgoing& inv, actors::payload_pieces& pieces);
  /// True if kernels still write the payload, and the credit that says where to put it may arrive until they end.
  bool may_wait_for_credit(std::uint32_t tag, std::span<const std::byte> data) {
    return options_.memory != nullptr && !sender_.knows_where(tag, data.size()) && options_.memory->busy(data);
  }
  /// True if a call has to do more than send: report a refusal, or wait for a credit or something else that its config needs.
  bool goes_slowly(std::uint32_t tag, std::span<const std::byte> data) {
    return unusual_ && (owes_refusal() || may_wait_for_credit(tag, data) || sender_.awaits_decided(tag, data));
  }
  bool owes_refusal() const noexcept { return refused_.owes(); }
  runtime::task<> send_and_tell(std::span<const std::byte> data, call_options call);
  runtime::error_facts about_refused(const refusal& r) const;
  std::string words_of(const refusal& r) const;
  void on_refused(refusal r);
  /// True if the send must wait until kernels have written the payload. There are two reasons: a receiver that fetches the payload does not
  /// know of kernels enqueued here, and a measured config must not be charged for the kernels' time.
  bool waits_for_kernels(const actors::outgoing& inv, std::span<const std::byte> data) {
    return options_.memory != nullptr && is_still_written(inv, data);
  }
  bool is_still_written(const actors::outgoing& inv, std::span<const std::byte> data);
  void show_payload(const actors::outgoing& inv, std::span<const std::byte> data) const {
    if (services_.watcher != nullptr) [[unlikely]]
      services_.watcher->on_payload(services_.net.rank(), {actors::payload_seen::what::sent, sender_.op(),
                                                           sender_.generation(), inv.mark.tag, inv.invocation, data});
  }
  /// Ends when kernels have written the payload. Returns the time at which they were last seen at work.
  runtime::task<time_ns> until_written(std::span<const std::byte> data);
  /// After a failed fence it is unknown which bytes of a put have landed or will land. So this rank declares the peer dead; if its own
  /// device failed, it gives itself up.
  void after_failed_fence(runtime::errc how);
  void lose_peer();
  /// S3: only a warmed config is tried.
  void check_trial(const actors::outgoing& inv) const {
    if (has(inv.mark.flags, actors::stamp_flags::timed)) [[unlikely]]
      check_warmed(inv.mark.digest);
  }
  [[gnu::cold]] void check_warmed(std::uint64_t digest) const;
  /// For a trial: counts the time so far without waits as its work, because it may have waited for a late peer.
  [[gnu::cold]] void note_worked(actors::outgoing& inv, time_ns waited_ns);
  /// Ends an invocation whose parts have all ended; throws unless `bytes` were sent.
  void end(const actors::outgoing& inv, part_sender& out, std::size_t bytes, std::string_view why = {}) {
    if (out.failed() != runtime::errc::none || out.sent_bytes() != bytes) end_failed(inv, out, bytes, why);
    sender_.end(inv, runtime::errc::none);
  }
  [[noreturn]] void end_failed(const actors::outgoing& inv, part_sender& out, std::size_t bytes, std::string_view why);

  void on_nack(const actors::nack& n) noexcept;
  void on_rejected(const runtime::error& why) noexcept override;

  // A send of several parts, in flight. If the receiver reports that it failed, the report ends it.
  struct send_in_flight : runtime::list_hook {
    send_in_flight(const actors::outgoing& inv, part_sender& parts) noexcept : invocation(inv), out(parts) {}
    const actors::outgoing& invocation;
    part_sender& out;
    std::uint64_t batch = 0;
    std::string why;
  };
  struct late_guard;

  refusals refused_;
  bool unusual_ = options_.memory != nullptr || one_sided();
  // The send of a payload of up to so many bytes ends as soon as the link accepts it. 0 for device memory: a send from there needs a copy,
  // which the call has to wait for.
  std::size_t short_bytes_ = options_.memory == nullptr ? services_.net.short_bytes() : 0;
  std::uint64_t copied_bytes_ = 0;
  std::size_t at_once_below_ = 0;  // every config sends shorter payloads at once
  runtime::intrusive_list<send_in_flight> in_flight_;
  runtime::intrusive_list<whole_send> wholes_;
  actors::assignment assigned_;
  actors::edge_sender sender_;
  actors::coordinator_state coordinator_;
  actors::coordinator_address leads_;
};

}  // namespace parley::ops
