#pragma once
/// One directed edge of an op on one rank: the end that this rank has, with its actors and its configs. Ops such as the
/// paired transfer and the pipeline are made of these.
///
///     edge_out out(services, {.name = "activations", .peer = 1, .configs = configs});
///     co_await out.send(bytes, {.tag = 0});
///     edge_in in(services, {.name = "activations", .peer = 0, .configs = configs});
///     std::uint64_t got = co_await in.receive(buffer, {.tag = 0});
///
/// A call throws `failure` that names op, ranks and invocation: `timeout`, `peer_failed`, `send_failed`, `buffer_too_small`,
/// `config_failed`, `declaration_mismatch`, … After a failure of one invocation the edge goes on with the next one; after the
/// death of the peer or a rejected declaration every call fails. When the peer comes back as a new process, another end of the
/// next generation takes the place of this one (declared_edge.hpp). Cancelling a call's scope ends it once the transport has let
/// go of the buffer.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/ended.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/edge/edge_receiver.hpp>
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/actors/services.hpp>
#include <parley/agreement.hpp>
#include <parley/config.hpp>
#include <parley/op_end.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/edges/calls.hpp>
#include <parley/registered_memory.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/record/waiting_call.hpp>
#include <parley/tuning/planners/plan.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::ops {

class declared_edge;

struct edge_options {
  std::string name;
  rank_id peer = 0;
  std::vector<config_ptr> configs;
  std::string dtype;
  runtime::memory_space* memory = nullptr;  ///< where its scratch lies; null: in host memory
  time_ns timeout_ns = 30'000'000'000;      ///< for a call that names no deadline of its own
  actors::tuning_policy policy = actors::tuning_policy::online;
  /// All ranks of an op whose edges begin anew together (`first_generation`): when one has restarted, each of the others `rejoin`s.
  /// Null: this edge goes on by itself when its peer comes back.
  std::shared_ptr<const std::vector<rank_id>> coupled{};
  std::size_t budget_sharers = 1;  ///< edges of one op that together may spend what the plan allows (N4)
  actors::window_limits window{};
  const machine* on = nullptr;  ///< what configs may require; null: all is there
  capability_function capable{};
  tuning::constraints allowed{};
  std::shared_ptr<const capabilities> asked{};      ///< what came of asking, where that has been done
  std::vector<actors::remembered_best> remembered;  ///< from this rank's results file
  /// Test switch: the receiver runs its default whatever the stamp says. The demo must notice.
  bool mutant_ignores_stamp = false;
};

/// What went wrong in a config's own function: its exceptions are `config_failed`, unless its call was cancelled.
runtime::errc failure_of_config(const std::exception_ptr& thrown);

/// Which of its configs an edge's end can run over `net`, by what they and the user say. Throws where `capable` answers wrongly.
capabilities capabilities_of(const edge_options& o, const actors::op_declaration& op, const runtime::link& net);

/// What both ends share: the configs that this rank knows, and what its participant actor needs.
class edge_end : public op_end, private actors::implementations {
 public:
  const actors::participant_state& participant() const noexcept { return participant_; }
  const actors::participant_state* as_participant() const noexcept final { return &participant_; }
  const actors::op_declaration& declaration() const noexcept final { return participant_.declaration; }
  /// What the two ends have agreed on and how they come to it: see agreement.hpp.
  agreement agreed() noexcept;
  /// Like `fail`, where the peer takes nothing any more of what is under way, either.
  void refuse(const runtime::error& why) noexcept { on_rejected(why); }
  const std::optional<runtime::error>& failed() const noexcept { return failed_; }
  rank_id peer() const noexcept { return options_.peer; }
  /// Whether its generation is that of the processes which are in the places of its ranks now.
  bool is_current() const;
  bool ends_with(rank_id r) const noexcept final { return peer() == r; }
  bool restarts_with(rank_id r) const noexcept final;
  const edge_options& options() const noexcept { return options_; }
  time_ns timeout_ns() const noexcept { return options_.timeout_ns; }
  /// Where the buffers lie that this op makes for itself.
  runtime::memory_space& memory() const noexcept {
    return options_.memory == nullptr ? runtime::host_memory() : *options_.memory;
  }
  /// As its user knows it: all of an op's edges have one title.
  runtime::op_title title() const noexcept { return {"op", options_.name}; }
  /// Throws `bad_argument` where one of the op's own configs calls it, or a process that fork() made.
  void check_caller() const {
    if (services_.ex.guarded()) [[unlikely]]
      check_guarded_caller();
  }
  /// Throws `bad_argument` where a device's op is given a buffer that does not lie there.
  void check(std::span<const std::byte> buffer) const {
    if (options_.memory != nullptr) check_place(buffer);
  }
  /// Memory for this edge's puts and gets, as long as the handle lives. An empty handle where it has no use for any: none of
  /// its configs needs it, or the link has no one-sided transfers. Throws `unavailable` when the machine refuses.
  actors::registered_memory registered(std::span<std::byte> memory);
  /// The same for memory that is registered already.
  void add_memory(const std::shared_ptr<actors::memory_region>& region);
  bool owes_messages() const noexcept override { return !failed_ && participant_.owed + participant_.rehearsing != 0; }

 protected:
  edge_end(actors::services& s, edge_options o, rank_id sender, rank_id receiver, std::string role);
  /// Its actor ends, and no message reaches it any more. The calls that were under way still end with what it failed with.
  void retire_participant() noexcept;
  /// What the end that takes its place is made of.
  void hand_over(edge_end& next) const;
  void keep_memory(const std::shared_ptr<actors::memory_region>& region);
  virtual void take_memory(const std::shared_ptr<actors::memory_region>& region) = 0;
  /// Memory of the user's has been registered.
  virtual void say_memory() noexcept {}
  bool has_memory() const noexcept;
  /// Enough for several chunks, and for whatever the link does with long messages.
  std::size_t rehearsal_bytes() const noexcept;
  ~edge_end() override;

  friend declared_edge;
  const paired_config* find(std::uint64_t digest) noexcept {
    return latest_->digest() == digest ? latest_ : search(digest);
  }
  time_ns deadline_after(time_ns timeout_ns) const noexcept {
    return services_.deadline_of(timeout_ns != 0 ? timeout_ns : options_.timeout_ns);
  }
  time_ns deadline(const call_options& call) const noexcept { return deadline_after(call.timeout_ns); }
  /// `timeout: activations 0->1, invocation 12, on rank 1: …`
  runtime::failure explained(runtime::errc code, const runtime::error_facts& about, const std::string& what) const;
  runtime::failure in_words(runtime::errc code, const runtime::error_facts& about, const std::string& what) const;
  /// Of this end as a whole.
  runtime::error_facts about() const;
  /// Of a call.
  runtime::error_facts about(std::uint64_t invocation, std::uint32_t tag) const;
  /// Of a call that has not begun; this would have been its number.
  runtime::error_facts about_next(std::uint64_t invocation, std::uint32_t tag, runtime::awaited unmet) const;
  void start(actors::row_log& rows);
  /// What all of its waiting calls have in common.
  runtime::waiting_call waiting(std::string_view what) const;
  void ask_peer(std::uint32_t tag) const;
  /// For the text of a call that ran out of time: what the peer said it does.
  std::string words_of_peer() const;
  /// One that fails before it has a config is in the flight recorder, too.
  void record_unbegun(runtime::flight_event what, std::uint32_t tag, std::uint64_t invocation, std::uint64_t bytes,
                      time_ns began_ns) const;
  /// The digests of configs that need this.
  std::vector<std::uint64_t> those_that_need(needs what) const;
  bool one_sided() const noexcept { return one_sided_; }
  actors::registered_memory memory_for(needs what, std::uint64_t digest, std::span<std::byte> scratch);
  /// Tells the leader that a config failed here inside a real invocation.
  void report_failure(const part_receiver& in, std::uint64_t ran, runtime::errc why, const std::string& what);
  void on_rejected(const runtime::error& why) noexcept override { fail(why); }
  /// Ends the op on both ranks, here and now, with what is wrong with it.
  void reject(const runtime::error& why) noexcept;

  actors::services& services_;
  const paired_config* latest_ = nullptr;  // that was found; at first the default
  edge_options options_;
  actors::participant_state participant_;
  std::optional<runtime::error> failed_;
  std::vector<std::uint64_t> inexact_;  // configs, by digest, that say of themselves that they are

 private:
  std::uint64_t generation_now() const;
  [[gnu::cold]] void check_guarded_caller() const;
  void check_place(std::span<const std::byte> buffer) const;
  const paired_config* search(std::uint64_t digest) noexcept;
  std::vector<std::uint64_t> digests_;  // of options_.configs, for a short search
  bool one_sided_ = false;              // some of them are, and the link can do it
  std::vector<std::shared_ptr<actors::memory_region>> memory_;
};

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
  bool owes_refusal() const noexcept { return !untold_.empty(); }
  runtime::task<> send_and_tell(std::span<const std::byte> data, call_options call);
  struct refusal {
    std::uint32_t tag = 0;
    std::uint64_t invocation = 0;
    std::uint64_t bytes = 0;
    runtime::errc code = runtime::errc::none;
    std::string why;
  };
  runtime::error_facts about_refused(const refusal& r) const;
  std::string words_of(const refusal& r) const;
  void on_refused(refusal r);
  std::optional<refusal> take_refusal(const actors::outgoing& inv);
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

  static constexpr std::size_t most_refusals = 64;
  std::vector<refusal> refused_;  // of calls that have not ended, and say so themselves
  std::vector<refusal> untold_;   // of those whose message was sent when their receiver refused it
  std::size_t untold_more_ = 0;   // so many beyond what is kept
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

class edge_in final : public edge_end {
 public:
  edge_in(actors::services& s, const edge_options& o);
  ~edge_in() override;

  /// Answers how many bytes came; `into` may be larger.
  receive_call receive(std::span<std::byte> into, call_options o) noexcept { return {*this, into, o}; }
  /// After it has failed, for good. Answers what came for a generation that is to come.
  std::vector<runtime::arrival> retire() noexcept;
  void fail(const runtime::error& why) noexcept override;
  const actors::edge_receiver& receiver() const noexcept { return receiver_; }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t tag) const override { return receiver_.posted_in_words(tag); }
  /// More came early than is kept: the op ends on both ranks.
  void refuse_overflow();
  /// A sender that leaves after this rank must know that its last data was taken; later nobody would answer its question.
  bool may_leave() override {
    receiver_.report_all();
    return true;
  }
  std::uint64_t flow_messages() const noexcept override { return receiver_.statistics().matched_sent; }

 private:
  friend receive_call;
  void take_memory(const std::shared_ptr<actors::memory_region>& region) override;
  void say_memory() noexcept override;
  runtime::task<> rehearse(std::uint64_t digest) override;
  runtime::error seen_at_receiver(const part_receiver& in, runtime::errc code) const;
  runtime::task<std::uint64_t> rehearse_next(std::uint64_t due, std::uint64_t wanted, std::span<std::byte> scratch);
  std::uint64_t chosen(const actors::stamp& s) const noexcept {
    return options_.mutant_ignores_stamp ? options_.configs.front()->digest() : s.digest;
  }
  /// Null where the config is not here or was not warmed (S3).
  const paired_config* runnable(std::uint64_t digest) noexcept {
    const paired_config* const config = find(digest);
    return config == nullptr || config == options_.configs.front().get() || warmed(digest) ? config : nullptr;
  }
  bool warmed(std::uint64_t digest) const noexcept;
  runtime::task<> until_runnable(part_receiver& in, std::uint64_t ran);
  runtime::task<std::uint64_t> receive_in_parts(part_receiver& in, std::span<std::byte> into);
  runtime::task<> run(part_receiver& in, std::uint64_t digest, std::span<std::byte> into);
  /// Ends an invocation all of whose parts have ended: how many bytes came, all of them, or throws.
  std::uint64_t end(part_receiver& in, std::uint64_t ran, std::string_view why = {}) {
    if (in.received_bytes() != in.total_bytes()) in.fail(runtime::errc::config_failed);
    if (ran != in.digest()) [[unlikely]]
      fail_other_config(in);
    if (in.in_pieces() != nullptr && in.failed() == runtime::errc::none) unpack_unless_by_piece(in, ran);
    record(in, ran, in.failed());
    if (in.failed() != runtime::errc::none) throw_failed(in, ran, why);
    if (services_.watcher != nullptr) [[unlikely]]
      show_payload(in);
    return in.total_bytes();
  }
  [[gnu::cold]] void show_payload(const part_receiver& in) const;
  /// Whether all that came belongs into its pieces: another number of bytes is for its caller to look at.
  static bool is_in_pieces(const part_receiver& in) noexcept {
    return in.in_pieces() != nullptr && in.total_bytes() == in.in_pieces()->packed.size();
  }
  void unpack_unless_by_piece(part_receiver& in, std::uint64_t ran);
  /// S2: it ran another config than its invocation is stamped with.
  [[gnu::cold]] void fail_other_config(part_receiver& in) noexcept;
  [[noreturn]] void throw_failed(const part_receiver& in, std::uint64_t ran, std::string_view why);
  [[noreturn]] void throw_unmatched(const part_receiver& in, std::size_t capacity, std::uint32_t tag);
  std::string late_because() const;
  /// The sender shall hear of it, too.
  void tell_refused(const part_receiver& in, runtime::errc why);
  [[gnu::cold]] void note_stamp(const actors::stamp& s) noexcept {
    if (options_.policy != actors::tuning_policy::online) return;
    receiver_.rows().note_stamp(has(s.flags, actors::stamp_flags::timed));
  }
  void record(part_receiver& in, std::uint64_t ran, runtime::errc outcome) {
    const actors::stamp& s = *in.mark();
    auto& rows = receiver_.rows();
    if (rows.measuring() || !is_plain(s.flags)) {
      note_stamp(s);
      if (has(s.flags, actors::stamp_flags::checked) && outcome == runtime::errc::none) return record_compared(in, ran);
    }
    actors::note_ended(services_, rows, ended(in, s, ran, outcome));
    receiver_.note_end(in);
  }
  static actors::ended_invocation ended(const part_receiver& in, const actors::stamp& s, std::uint64_t ran,
                                        runtime::errc outcome) noexcept {
    return {.mark = s,
            .invocation = in.invocation(),
            .ran = ran,
            .began_ns = in.posted_ns(),
            .outcome = outcome,
            .what = runtime::flight_event::received,
            .failed = runtime::flight_event::receive_failed};
  }
  /// Fails it when it brought other bytes than its sender says it sent. That takes time, which is not charged to the config.
  [[gnu::cold]] void record_compared(part_receiver& in, std::uint64_t ran);

  actors::edge_receiver receiver_;
  std::size_t memory_said_ = 0;
  std::uint64_t rehearsals_ = 0;  // asked for
};

}  // namespace parley::ops
