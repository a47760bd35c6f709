#pragma once
/// Sends the control messages of one actor that must arrive. Each is sent again, with growing pauses and jitter, until its `ack` arrives. A
/// message that is too large for one body is sent in pieces.
///
///     outbox out(services, op, generation, owed);
///     out.post(leader, part::coordinator, some_offer);       // numbers it and sends it
///     auto m = co_await self.receive(out.next_resend());     // on timeout: out.resend();
///     out.acknowledge(from.source, a.number);
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/letters/pieces.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/actors/services.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace parley::actors {

class outbox {
 public:
  /// `owed` is kept equal to the number of letters that are not acknowledged yet.
  outbox(services& s, std::uint64_t op, std::uint64_t generation, std::size_t& owed)
      : services_(s), op_(op), generation_(generation), owed_(owed) {}

  template <class M>
  std::uint32_t post(rank_id to, part actor, M message) {
    message.number = ++last_number_;
    if constexpr (requires { message.clock; }) message.clock = services_.clock_for(to);
    std::vector<std::byte> body;
    runtime::encode(message, body);
    if (body.size() <= limits::piece_bytes) {
      post_letter(to, actor, M::message_type, message.number, std::move(body));
      return message.number;
    }
    for (piece& p : in_pieces(M::message_type, message.number, body)) {
      p.number = ++last_number_;
      std::vector<std::byte> part_body;
      runtime::encode(p, part_body);
      post_letter(to, actor, piece::message_type, p.number, std::move(part_body));
    }
    return message.number;
  }
  /// Acknowledges a message. The acknowledgement is sent once, because the sender repeats its message until one arrives.
  void acknowledge_to(rank_id to, part actor, std::uint32_t number, bool send_list = false) {
    ack a;
    a.number = number;
    a.send_list = send_list;
    a.clock = services_.clock_for(to);
    static_cast<void>(services_.mail.send(to, number_of(op_, actor), generation_, a));
  }
  void acknowledge(rank_id from, std::uint32_t number) {
    std::erase_if(letters_, [&](const letter& l) { return l.to == from && l.number == number; });
    owed_ = letters_.size();
  }

  runtime::time_ns next_resend() const noexcept {
    runtime::time_ns earliest = runtime::never;
    for (const letter& l : letters_) earliest = std::min(earliest, l.again.when());
    return earliest;
  }
  void resend() {
    for (letter& l : letters_) {
      if (l.again.is_due(services_)) send(l);
    }
  }

 private:
  struct letter {
    rank_id to;
    std::uint64_t actor;
    std::uint16_t type;
    std::uint32_t number;
    std::vector<std::byte> body;
    reminder<> again{};
  };
  void post_letter(rank_id to, part actor, std::uint16_t type, std::uint32_t number, std::vector<std::byte> body) {
    letters_.push_back({to, number_of(op_, actor), type, number, std::move(body)});
    owed_ = letters_.size();
    send(letters_.back());
  }
  // A letter that could not be sent because of an exception is sent again, like a lost letter.
  void send(letter& l) {
    l.again.said(services_);
    // If the window is full, or the peer has not joined yet, the letter is sent again later.
    static_cast<void>(services_.mail.send_raw(l.to, l.actor, generation_, l.type, l.body));
  }

  services& services_;
  std::uint64_t op_;
  std::uint64_t generation_;
  std::size_t& owed_;
  std::uint32_t last_number_ = 0;
  std::vector<letter> letters_;
};

}  // namespace parley::actors
