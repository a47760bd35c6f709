#pragma once
/// Sends messages to actors on other ranks, over the link's control channel.
///
///     router mail(ex, link, {.job = job, .seal = seal});
///     mail.bind<offer>(number_of(op, part::coordinator), [&](envelope from, offer&& m) { return box.try_send({from, m}); });
///     errc sent = mail.send(peer, number, generation, some_offer);
///
/// A frame is delivered at most once. Frames may be lost or overtake one another, so a rank that needs an answer asks again. For each peer
/// at most `window` frames may be in flight that the peer has not accepted; then `send` returns `full`. If a handler returns `full`, it
/// gets the message again on a later turn, and until then the sender's window stays closed: messages are held back, never dropped. A frame
/// that reports acceptance may also be lost: a sender with a full window asks for a report, and a later attempt to send finds the window
/// open. Frames that are malformed, foreign, repeated, for no actor here or beyond their sender's window are counted and dropped, so that
/// no peer can make this rank keep more than a window of frames. A peer that exceeds its window is blamed.
#include <parley/error.hpp>
#include <parley/runtime/time/backoff.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/frame.hpp>
#include <parley/runtime/wire/incarnations.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace parley::runtime {

/// The sender of a message, the message's type, and the op's generation in which it was sent.
struct envelope {
  rank_id source = 0;
  std::uint16_t type = 0;
  std::uint64_t generation = 0;
};

class router final : public link::handler {
 public:
  struct options {
    std::uint64_t job = 0;
    frame_seal seal{};
    std::uint32_t window = 64;
  };
  struct counters {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::uint64_t credits_sent = 0;    ///< frames that only report acceptance
    std::uint64_t questions_sent = 0;  ///< frames that only ask for such a report
    std::uint64_t malformed = 0;
    std::uint64_t foreign = 0;  ///< of another job, or of a process that is no longer in its rank's place
    std::uint64_t unauthenticated = 0;
    std::uint64_t repeated = 0;
    std::uint64_t unclaimed = 0;      ///< for an actor or type that this rank does not have
    std::uint64_t beyond_window = 0;  ///< beyond their sender's window
  };
  using raw_handler = std::function<errc(envelope from, std::span<const std::byte> body)>;

  router(executor& ex, link& over, options o, incarnations known = {});
  router(const router&) = delete;
  router& operator=(const router&) = delete;
  ~router();

  /// Passes messages of type `M` for `actor` to `take(envelope, M&&) -> errc`; `full` means "again later".
  template <class M, class Take>
  void bind(std::uint64_t actor, Take take) {
    static_assert(M::message_type < 64, "types are bits of a set");
    bind_raw(actor, type_bit(M::message_type),
             [take = std::move(take)](envelope from, std::span<const std::byte> body) mutable -> errc {
               auto message = decode<M>(body);
               if (!message) return errc::malformed;
               return take(from, std::move(*message));
             });
  }
  /// Like `bind`, for several types at once, `type_bit(a) | type_bit(b)`. `actor` gets no other types.
  void bind_raw(std::uint64_t actor, std::uint64_t types, raw_handler take);
  static constexpr std::uint64_t type_bit(std::uint16_t type) noexcept {
    return type < 64 ? std::uint64_t{1} << type : 0;
  }
  void unbind(std::uint64_t actor);

  /// Sends to `actor` on another rank or on this rank. Returns `none`, `full`, or an error.
  template <class M>
  errc send(rank_id to, std::uint64_t actor, std::uint64_t generation, const M& message) {
    body_.clear();
    encode(message, body_);
    return send_raw(to, actor, generation, M::message_type, body_);
  }
  errc send_raw(rank_id to, std::uint64_t actor, std::uint64_t generation, std::uint16_t type,
                std::span<const std::byte> body);

  /// Call this when a new process has taken the place of a peer: its frames count from 1 again. Frames of the old process that wait here
  /// are dropped, and those that still arrive are foreign.
  void forget(rank_id peer, std::uint64_t new_incarnation) noexcept;

  /// Frames sent to one peer so far.
  std::uint64_t sent_to(rank_id peer) const noexcept {
    const auto known = peers_.find(peer);
    return known == peers_.end() ? 0 : known->second.next_sequence;
  }
  const counters& statistics() const noexcept { return counters_; }
  /// Frames sent, by message type; the last element counts all further types.
  const std::array<std::uint32_t, 32>& sent_by_type() const noexcept { return sent_by_type_; }
  rank_id rank() const noexcept { return link_.rank(); }

  void on_arrival(arrival&& message) noexcept override;

 private:
  struct peer_state {
    rank_id rank = 0;
    std::uint32_t acknowledged = 0;   // our frames that the peer has reported as accepted
    std::uint64_t session = 0;        // of frames from that process to this one
    std::uint64_t own_session = 0;    // of frames from this process to that one
    std::uint64_t next_sequence = 0;  // of the latest frame that we sent to it
    std::uint64_t highest_seen = 0;   // of its frames; sequences count from 1
    std::uint64_t seen = 0;           // the 64 numbers before `highest_seen`, as bits
    std::uint64_t accepted = 0;       // we have accepted its frames up to this number
    std::uint64_t accepted_told = 0;
    std::uint64_t question = 0;  // the sequence of our last question to it
    time_ns ask_at = 0;          // no question before this time; 0: it has accepted frames since the last one
    backoff<1'000'000, 100'000'000> asks{};
  };
  struct parked {
    frame_header header;
    std::vector<std::byte> body;
  };
  struct fetching;
  /// The state of a peer, made at the first frame to it or from it. Consecutive frames are often for the same peer, so the latest state is
  /// remembered.
  peer_state& state_of(rank_id peer) noexcept {
    return latest_ != nullptr && latest_->rank == peer ? *latest_ : find_state(peer);
  }
  peer_state& find_state(rank_id peer) noexcept;
  peer_state met(rank_id peer, std::uint64_t incarnation) const noexcept;
  static bool is_new(peer_state& from, std::uint64_t sequence) noexcept;
  bool has_room(const frame_header& h) noexcept;
  void refuse(rank_id source) noexcept;
  void take(std::span<const std::byte> header, std::span<const std::byte> body) noexcept;
  raw_handler* find_handler(std::uint64_t actor, std::uint16_t type) noexcept;
  errc deliver(const frame_header& h, std::span<const std::byte> body);
  void park(const frame_header& h, std::span<const std::byte> body);
  void retry() noexcept;
  void accept(peer_state& source);
  void update_accepted(peer_state& source) noexcept;
  void send_credit(peer_state& to);
  void answer_question(peer_state& from, const frame_header& question);
  void ask_for_room(peer_state& to);
  errc transmit(peer_state& to, frame_header& h, std::span<const std::byte> body);

  executor& executor_;
  link& link_;
  options options_;
  rank_id world_size_;
  incarnations incarnations_;                         // of ranks when this router began
  std::unordered_map<rank_id, peer_state> peers_{2};  // only looked up; a state stays where it is
  peer_state* latest_ = nullptr;
  struct bound {
    std::uint64_t types;
    raw_handler take;
  };
  std::unordered_map<std::uint64_t, std::vector<bound>> handlers_{5};
  struct found_handler {
    std::uint64_t actor = 0;
    std::uint16_t type = 0;
    raw_handler* handler = nullptr;
  } last_found_;
  std::list<parked> parked_;
  static constexpr time_ns shortest_retry_pause_ns = 1'000;
  static constexpr time_ns longest_retry_pause_ns = 1'000'000;
  timer_of<&router::retry> retry_timer_;
  time_ns retry_pause_ns_ = shortest_retry_pause_ns;
  random_stream jitter_;
  std::vector<std::byte> body_;
  std::vector<fetching*> fetching_;
  counters counters_;
  std::array<std::uint32_t, 32> sent_by_type_{};
};

}  // namespace parley::runtime
