#pragma once
/// Binds the messages of one actor to its mailbox, whole or in pieces.
///
///     open_inbox<ack, merged, warm>(services, op, generation, part::participant, part::coordinator, to);
///     services.mail.unbind(number_of(op, part::participant));                                  // closes it
///
/// A full mailbox holds back its senders; a closed one drops what comes.
#include <parley/actors/declaration.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/pieces.hpp>
#include <parley/actors/services.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace parley::actors {

/// What has been put together of an actor's messages that came in pieces, while its mailbox has no room for it.
struct piece_inbox {
  piece_collector collector;
  std::optional<piece_collector::whole> complete;
  envelope from;
};

template <class M, class Address>
runtime::errc deliver_whole(const piece_inbox& box, const Address& to) {
  received<M> m{box.from, {}};
  runtime::wire_reader reader(box.complete->body);
  if (!reader.get(m.body) || !reader.at_end()) return runtime::errc::malformed;
  return to.try_send(std::move(m));
}

/// The messages are of `generation`; others change nothing (S5). `from_part` is the part of those who send in pieces, where
/// their acknowledgements go.
template <class... Ms, class Address>
void open_inbox(services& s, std::uint64_t op, std::uint64_t generation, part own, part from_part, const Address& to) {
  const std::uint64_t actor = number_of(op, own);
  const auto bind_one = [&]<class M>(std::type_identity<M>) {
    const auto deliver = [to, generation](envelope from, M&& body) {
      if (from.generation != generation) return runtime::errc::closed;
      received<M> m{from, std::move(body)};
      return to.try_send(std::move(m));
    };
    if constexpr (requires(M& m) { m.clock; }) {
      s.mail.bind<M>(actor, [&s, deliver](envelope from, M&& body) {
        s.note_clock(from.source, body.clock);
        return deliver(from, std::move(body));
      });
    } else {
      s.mail.bind<M>(actor, deliver);
    }
  };
  (bind_one(std::type_identity<Ms>{}), ...);
  auto box = std::make_shared<piece_inbox>();
  const auto deliver = [to, box] {
    runtime::errc outcome = runtime::errc::none;
    if (!box->complete) return outcome;
    const auto try_one = [&]<class M>(std::type_identity<M>) {
      if (M::message_type != box->complete->type) return false;
      outcome = deliver_whole<M>(*box, to);
      return true;
    };
    static_cast<void>((try_one(std::type_identity<Ms>{}) || ...));
    if (outcome != runtime::errc::full) box->complete.reset();
    return outcome;
  };
  const std::uint64_t back = number_of(op, from_part);
  s.mail.bind<piece>(actor, [&s, back, generation, box, deliver](envelope from, piece&& p) {
    if (from.generation != generation) return runtime::errc::closed;
    ack a;
    a.number = p.number;
    if (deliver() == runtime::errc::full) return runtime::errc::full;
    box->from = from;
    box->complete = box->collector.add(from.source, std::move(p));
    if (deliver() == runtime::errc::full) return runtime::errc::full;
    static_cast<void>(s.mail.send(from.source, back, generation, a));
    return runtime::errc::none;
  });
}

}  // namespace parley::actors
