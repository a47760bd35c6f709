#pragma once
/// Ranks that declare one op of a group with other members each: its offers go where nobody has that op, and its members wait.
///
///     ask_for_other_members(services, op, generation, peer);   // who waits for a peer's part in the agreement asks now and then
///     answer_other_members(services, known);                   // each rank, once: what it has declared by that name
///
/// Ops are named by their members, so that such two never meet by themselves. A rank that is asked for an op which it does not have, and
/// has declared another one by that name, or that it has no part in it, says so. It may still declare the one that was asked for, as a
/// name may serve several groups; so nothing ends by that. The asking rank warns, and a call that waits in vain says it
/// (`services::declared_otherwise`). The question is not acknowledged: whoever waits asks again.
#include <parley/actors/declaration.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/other_way.hpp>
#include <parley/actors/services.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

struct other_members {
  static constexpr std::uint16_t message_type = 31;
  std::uint64_t op = 0;  ///< that the asking rank has
  std::string name;
  std::string declaration;  ///< its, in words
  PARLEY_FIELDS(op, name, declaration)
};

inline void ask_for_other_members(services& s, const op_declaration& op, std::uint64_t generation, rank_id peer) {
  if (op.participants.front().role == "sender") return;
  other_members m;
  m.op = op.id();
  m.name = op.name;
  m.declaration = op.text();
  static_cast<void>(s.mail.send(peer, rank_itself, generation, m));
}

/// The answer, to the rank itself.
struct other_declaration {
  static constexpr std::uint16_t message_type = 32;
  std::uint64_t op = 0;
  std::string text;
  PARLEY_FIELDS(op, text)
};

/// What a rank has declared by a name: the op's id, 0 where it has no part in it, and the declaration in words.
struct declared_by_name {
  std::uint64_t op = 0;
  std::string text;
};

/// `known` answers null for a name that the rank has not declared.
inline void answer_other_members(services& s,
                                 const std::function<const std::vector<declared_by_name>*(const std::string&)>& known) {
  constexpr std::size_t most_text = 4000;
  s.mail.bind<other_members>(rank_itself, [&s, known](envelope from, other_members&& m) {
    const auto* const ours = known(m.name);
    const auto is_it = [&](const declared_by_name& d) { return d.op == m.op; };
    if (ours == nullptr || std::any_of(ours->begin(), ours->end(), is_it)) return runtime::errc::none;
    other_declaration d;
    d.op = m.op;
    d.text = "rank " + std::to_string(from.source) + " declares {" + m.declaration + "}, rank " +
             std::to_string(s.net.rank()) + " declares ";
    for (const declared_by_name& one : *ours) d.text += (&one == &ours->front() ? "{" : ", {") + one.text + "}";
    d.text = d.text.substr(0, most_text) + "; declare the op alike on all its ranks";
    static_cast<void>(s.mail.send(from.source, rank_itself, from.generation, d));
    return runtime::errc::none;
  });
  s.mail.bind<other_declaration>(rank_itself, [&s, known](envelope, other_declaration&& d) {
    constexpr std::size_t most_ops = 1000;
    if (d.text.size() > 2 * most_text || s.declared_otherwise.size() >= most_ops) return runtime::errc::none;
    if (s.declared_otherwise.insert_or_assign(d.op, d.text).second)
      warn(s, "an op of this rank waits for one that may not know of it: " + d.text);
    return runtime::errc::none;
  });
}

/// For the text of a call of `op` that waited in vain.
inline std::string or_declared_otherwise(const services& s, std::uint64_t op) {
  const auto known = s.declared_otherwise.find(op);
  return known == s.declared_otherwise.end() ? std::string() : "; " + known->second;
}

}  // namespace parley::actors
