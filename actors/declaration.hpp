#pragma once
/// What an op is: its name, its participants in order with their roles, and its leader. All participants must declare the
/// same; `hash` covers all of it. An edge is an op of one sender, who leads, and one receiver.
///
///     op_declaration edge = declare_edge("activations", 0, 1);
///     edge.id();                                      // the same 64 bits on both ranks
///     number_of(edge.id(), part::coordinator);        // the actor, as control frames name it
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/wire/incarnations.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace parley::actors {

using runtime::rank_id;

/// The part that an actor has in its op.
enum class part : std::uint64_t { participant = 0, coordinator = 1, data_sender = 2, data_receiver = 3 };
constexpr std::uint64_t number_of(std::uint64_t op, part p) noexcept {
  return (op & ~std::uint64_t{3}) | static_cast<std::uint64_t>(p);
}

struct op_participant {
  rank_id rank = 0;
  std::string role;
};

struct op_declaration {
  std::string name;    ///< of the op that the user declared
  std::string scheme;  ///< `stamp d=0` on host edges
  std::vector<op_participant> participants;
  rank_id leader = 0;
  std::string dtype;
  std::string default_config;  ///< c0's id
  std::uint64_t default_digest = 0;

  /// Everything above but the default's digest, in words.
  std::string text() const;
  std::uint64_t hash() const;
  /// Names the op among all of a job: by name and participants only, so that two ranks which declare it differently still
  /// meet and can say so.
  std::uint64_t id() const;
  /// `activations 0->1`
  std::string title() const;
  /// For errors that a rank meets in this op.
  runtime::error_facts about(rank_id rank) const { return {.op = title(), .rank = rank}; }
};

/// What a rank has declared by a name: the op's id, 0 where it has no part in it, and the declaration in words, or its title.
struct declared_by_name {
  std::uint64_t op = 0;
  std::string text;
};

/// `rank 1 declares dtype i32, the leader rank 0 declares dtype f32`: in what two declarations, each as its `text`, differ, with both values.
/// Both whole where they are not of one form.
std::string difference(const std::string& who, std::string_view theirs, const std::string& whose,
                       std::string_view ours);

op_declaration declare_edge(std::string name, rank_id sender, rank_id receiver, std::string dtype);

/// Generation 0: known to all without a message, and another one in every run of every participant. Of an op whose parts begin anew
/// together, another one whenever one of the ranks of all its parts, `coupled`, comes back as a new process. `judge` says in which order
/// they are.
std::uint64_t first_generation(const op_declaration& op, const runtime::incarnations& of_world,
                               const std::vector<rank_id>& coupled = {});

}  // namespace parley::actors
