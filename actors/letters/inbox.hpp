#pragma once
/// Delivers the messages of one actor, whole or in pieces, to its mailbox.
///
///     open_inbox<ack, merged, warm>(services, op, generation, part::participant, part::coordinator, to);
///     services.mail.unbind(number_of(op, part::participant));                                  // closes it
///
/// A full mailbox holds back the senders; a closed mailbox drops arriving messages.
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/actors/letters/pieces.hpp>
#include <parley/actors/services.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace parley::actors {

/// Accepts messages of the types `Ms` and of `generation`; other messages change nothing (S5). One handler serves all types, because each
/// of thousands of ops has only a few messages.
template <class Address, class... Ms>
class inbox {
 public:
  inbox(services& s, std::uint64_t generation, std::uint64_t from_actor, Address to)
      : services_(&s), generation_(generation), from_actor_(from_actor), to_(std::move(to)) {}

  static constexpr std::uint64_t types() noexcept {
    return (runtime::router::type_bit(piece::message_type) | ... | runtime::router::type_bit(Ms::message_type));
  }
  runtime::errc operator()(const envelope& from, std::span<const std::byte> body) {
    if (from.type == piece::message_type) return take_piece(from, body);
    runtime::errc outcome = runtime::errc::closed;
    const auto is_it = [&]<class M>(std::type_identity<M>) {
      if (M::message_type != from.type) return false;
      outcome = take<M>(from, body);
      return true;
    };
    static_cast<void>((is_it(std::type_identity<Ms>{}) || ...));
    return outcome;
  }

 private:
  template <class M>
  runtime::errc take(const envelope& from, std::span<const std::byte> bytes) {
    auto body = runtime::decode<M>(bytes);
    if (!body) return runtime::errc::malformed;
    if constexpr (requires { body->clock; }) services_->note_clock(from.source, body->clock);
    if (from.generation != generation_) return runtime::errc::closed;
    received<M> m{from, std::move(*body)};
    return to_.try_send(std::move(m));
  }
  runtime::errc take_piece(const envelope& from, std::span<const std::byte> bytes) {
    auto body = runtime::decode<piece>(bytes);
    if (!body) return runtime::errc::malformed;
    if (from.generation != generation_) return runtime::errc::closed;
    if (parts_ == nullptr) parts_ = std::make_shared<in_parts>();
    ack a;
    a.number = body->number;
    if (deliver_complete() == runtime::errc::full) return runtime::errc::full;
    parts_->from = from;
    parts_->complete = parts_->collector.add(from.source, std::move(*body));
    if (deliver_complete() == runtime::errc::full) return runtime::errc::full;
    static_cast<void>(services_->mail.send(from.source, from_actor_, generation_, a));
    return runtime::errc::none;
  }
  runtime::errc deliver_complete() {
    if (!parts_->complete) return runtime::errc::none;
    runtime::errc outcome = runtime::errc::none;
    const auto is_it = [&]<class M>(std::type_identity<M>) {
      if (M::message_type != parts_->complete->type) return false;
      outcome = deliver_whole<M>();
      return true;
    };
    static_cast<void>((is_it(std::type_identity<Ms>{}) || ...));
    if (outcome != runtime::errc::full) parts_->complete.reset();
    return outcome;
  }
  template <class M>
  runtime::errc deliver_whole() {
    received<M> m{parts_->from, {}};
    runtime::wire_reader reader(parts_->complete->body);
    if (!reader.get(m.body) || !reader.at_end()) return runtime::errc::malformed;
    return to_.try_send(std::move(m));
  }

  // A message that arrived in pieces, kept while the mailbox has no room for it.
  struct in_parts {
    piece_collector collector;
    std::optional<piece_collector::whole> complete;
    envelope from;
  };
  services* services_;
  std::uint64_t generation_;
  std::uint64_t from_actor_;
  Address to_;
  std::shared_ptr<in_parts> parts_;  // few messages are sent in pieces
};

/// `from_part` is the part of the actors that send in pieces; acknowledgements of the pieces go there.
template <class... Ms, class Address>
void open_inbox(services& s, std::uint64_t op, std::uint64_t generation, part own, part from_part, const Address& to) {
  using box = inbox<Address, Ms...>;
  s.mail.bind_raw(number_of(op, own), box::types(), box(s, generation, number_of(op, from_part), to));
}

}  // namespace parley::actors
