#pragma once
/// The receiving end of an edge.
///
///     edge_in in(services, {.name = "activations", .peer = 0, .configs = configs});
///     std::uint64_t got = co_await in.receive(buffer, {.tag = 0});
///
/// Failure and cancellation: see edge_end.hpp.
#include <parley/actors/agreement/ended.hpp>
#include <parley/actors/edge/edge_receiver.hpp>
#include <parley/ops/edges/edge_end.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

class edge_in final : public edge_end {
 public:
  edge_in(actors::services& s, const edge_options& o);
  ~edge_in() override;

  /// Returns the number of bytes received; `into` may be larger.
  receive_call receive(std::span<std::byte> into, call_options o) noexcept { return {*this, into, o}; }
  /// Ends it permanently, after it has failed. Returns the messages that arrived for a later generation.
  std::vector<runtime::arrival> retire() noexcept;
  void fail(const runtime::error& why) noexcept override;
  const actors::edge_receiver& receiver() const noexcept { return receiver_; }
  void list_waiting(runtime::waiting_list& all) override;
  std::string progress_in_words(std::uint32_t tag) const override { return receiver_.posted_in_words(tag); }
  /// Ends the op on both ranks. Called when more data arrived before its receives than this rank keeps.
  void refuse_overflow();
  /// Reports all received data to the sender. A sender that leaves later must know which data was received, and could not ask a rank that
  /// has left.
  bool may_leave() override {
    receiver_.report_all();
    return receiver_.is_heard();
  }
  /// Nonzero while some of those reports are not sent yet because the window has no room. They would be lost with this rank.
  time_ns untaken_ns() override { return receiver_.has_told_all() ? 0 : options_.timeout_ns; }
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
  /// Null if the config is not here or was not warmed (S3).
  const paired_config* runnable(std::uint64_t digest) noexcept {
    const paired_config* const config = find(digest);
    return config == nullptr || config == options_.configs.front().get() || warmed(digest) ? config : nullptr;
  }
  bool warmed(std::uint64_t digest) const noexcept;
  runtime::task<> until_runnable(part_receiver& in, std::uint64_t ran);
  runtime::task<std::uint64_t> receive_in_parts(part_receiver& in, std::span<std::byte> into);
  runtime::task<> run(part_receiver& in, std::uint64_t digest, std::span<std::byte> into);
  /// Ends an invocation whose parts have all ended. Returns the number of bytes received, which is all of them, or throws.
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
  /// True if the payload fills its pieces exactly. The caller handles a payload of another size.
  static bool is_in_pieces(const part_receiver& in) noexcept {
    return in.in_pieces() != nullptr && in.total_bytes() == in.in_pieces()->packed.size();
  }
  void unpack_unless_by_piece(part_receiver& in, std::uint64_t ran);
  /// S2: the invocation ran another config than its stamp names.
  [[gnu::cold]] void fail_other_config(part_receiver& in) noexcept;
  [[noreturn]] void throw_failed(const part_receiver& in, std::uint64_t ran, std::string_view why);
  [[noreturn]] void throw_unmatched(const part_receiver& in, std::size_t capacity, std::uint32_t tag);
  std::string late_because() const;
  std::string words_of_failure_there(runtime::errc code, const std::string& config) const;
  /// Tells the sender that its message was refused.
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
  /// Fails the invocation if its bytes differ from the bytes that the sender reported. The config is not charged for the comparison.
  [[gnu::cold]] void record_compared(part_receiver& in, std::uint64_t ran);

  actors::edge_receiver receiver_;
  std::size_t memory_said_ = 0;
  std::uint64_t rehearsals_ = 0;  // requested so far
};

}  // namespace parley::ops
