#pragma once
/// Ranks that declare one op of a group with other members each: its offers go where nobody has that op, and its members wait.
///
///     ask_for_other_members(services, op, generation, peer);   // who waits for a peer's part in the agreement asks now and then
///     answer_other_members(services, known);                   // each rank, once: what it has declared by that name
///
/// Ops are named by their members, so that such two never meet by themselves. A rank that is asked for an op which it does not have, and
/// has declared another one by that name, or that it has no part in it, answers: the leader of the asker's op with a rejection; to
/// a leader as with an offer that conflicts, which is refused on all members. Ranks that have declared nothing yet say nothing. The
/// question is not acknowledged: whoever waits asks again.
#include <parley/actors/declaration.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/other_way.hpp>
#include <parley/actors/services.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace parley::actors {

struct other_members {
  static constexpr std::uint16_t message_type = 31;
  std::uint64_t op = 0;  ///< that the asking rank has
  std::string name;
  std::string declaration;  ///< its, in words
  bool leads = false;       ///< the asking rank
  PARLEY_FIELDS(op, name, declaration, leads)
};

inline void ask_for_other_members(services& s, const op_declaration& op, std::uint64_t generation, rank_id peer) {
  if (op.participants.front().role == "sender") return;
  other_members m;
  m.op = op.id();
  m.name = op.name;
  m.declaration = op.text();
  m.leads = op.leader == s.net.rank();
  static_cast<void>(s.mail.send(peer, rank_itself, generation, m));
}

/// What a rank has declared by a name: the op's id, 0 where it has no part in it, and the declaration in words.
struct declared_by_name {
  std::uint64_t op = 0;
  std::string text;
};

inline void answer_other_members(services& s, std::function<const declared_by_name*(const std::string&)> known) {
  s.mail.bind<other_members>(rank_itself, [&s, known = std::move(known)](envelope from, other_members&& m) {
    const declared_by_name* const ours = known(m.name);
    if (ours == nullptr || ours->op == m.op) return runtime::errc::none;
    if (m.leads) {
      offer o;
      o.declaration = ours->text;
      static_cast<void>(s.mail.send(from.source, number_of(m.op, part::coordinator), from.generation, o));
    } else {
      op_reject r;
      r.code = static_cast<std::uint8_t>(runtime::errc::declaration_mismatch);
      r.text = "op " + m.name + ": rank " + std::to_string(from.source) + " declares {" + m.declaration + "}, rank " +
               std::to_string(s.net.rank()) + ", which leads that, declares {" + ours->text +
               "}; declare the op alike on all its ranks";
      static_cast<void>(s.mail.send(from.source, number_of(m.op, part::participant), from.generation, r));
    }
    return runtime::errc::none;
  });
}

}  // namespace parley::actors
