#pragma once
/// Two ranks that declare one edge in opposite directions: both would send, or both receive, and wait for each other.
///
///     ask_for_other_way(services, op, generation);      // who waits for its peer asks now and then
///     answer_other_way(services, declared);             // each rank, once: `declared(id)` says which ops it has
///
/// Ops are named by their direction, so that the two never meet by themselves. A rank that has the other direction and not the one
/// asked for answers with a rejection, `role_conflict`, and asks the same of its own. The question is not acknowledged: whoever
/// waits asks again. Nothing is asked of an edge whose ends have met.
#include <parley/actors/declaration.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/services.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace parley::actors {

struct other_way {
  static constexpr std::uint16_t message_type = 28;
  std::uint64_t op = 0;        ///< that the asking rank has
  std::uint64_t reversed = 0;  ///< the same from receiver to sender
  std::string text;            ///< what is wrong if the other rank has that alone
  PARLEY_FIELDS(op, reversed, text)
};

/// No op has this number: theirs are hashes, of which this would be the one of nothing.
inline constexpr std::uint64_t rank_itself = number_of(0, part::participant);

inline void ask_for_other_way(services& s, const op_declaration& op, std::uint64_t generation) {
  if (op.participants.size() != 2 || op.participants[0].role != "sender") return;
  const rank_id from = op.participants[0].rank;
  const rank_id to = op.participants[1].rank;
  const rank_id self = s.net.rank();
  const rank_id peer = self == from ? to : from;
  const auto sends = [](rank_id a, rank_id b) {
    return "rank " + std::to_string(a) + " sends to rank " + std::to_string(b);
  };
  other_way m;
  m.op = op.id();
  m.reversed = declare_edge(op.name, to, from, op.dtype).id();
  m.text = op.title() + ": rank " + std::to_string(self) + " declares that " + sends(from, to) + ", rank " +
           std::to_string(peer) + " that " + sends(to, from) + "; give the op the same roles on all its ranks";
  static_cast<void>(s.mail.send(peer, rank_itself, generation, m));
}

inline void answer_other_way(services& s, std::function<bool(std::uint64_t)> declared) {
  s.mail.bind<other_way>(rank_itself, [&s, declared = std::move(declared)](envelope from, other_way&& m) {
    if (declared(m.op) || !declared(m.reversed)) return runtime::errc::none;
    op_reject r;
    r.code = static_cast<std::uint8_t>(runtime::errc::role_conflict);
    r.text = std::move(m.text);
    static_cast<void>(s.mail.send(from.source, number_of(m.op, part::participant), from.generation, r));
    return runtime::errc::none;
  });
}

}  // namespace parley::actors
