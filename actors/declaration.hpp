#pragma once
/// The declaration of an op: its name, its participants in order with their roles, and its leader. All participants must declare the same
/// op; `hash` covers all of the declaration. An edge is an op of one sender, which leads, and one receiver.
///
///     op_declaration edge = declare_edge("activations", 0, 1, "f32");
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
  std::string name;    ///< name of the op that the user declared
  std::string scheme;  ///< `stamp d=0` on host edges
  std::vector<op_participant> participants;
  rank_id leader = 0;
  std::string dtype;
  std::string default_config;  ///< c0's id
  std::uint64_t default_digest = 0;

  /// All fields except `default_digest`, in words.
  std::string text() const;
  std::uint64_t hash() const;
  /// Identifies the op within a job. Only the name and the participants count, so two ranks that declare the op differently still exchange
  /// messages and can report the conflict.
  std::uint64_t id() const;
  /// `activations 0->1`
  std::string title() const;
  /// The facts of an error in this op on `rank`.
  runtime::error_facts about(rank_id rank) const { return {.op = title(), .rank = rank}; }
};

/// One declaration under some name: the op's id (0 if the rank is not a member) and the declaration in words, or its title.
struct declared_by_name {
  std::uint64_t op = 0;
  std::string text;
};

/// Says how two declarations differ, with both values; each is given as its `text`: `rank 1 declares dtype i32, the leader rank 0 declares
/// dtype f32`. If a text does not have that form, the result quotes both texts whole.
std::string difference(const std::string& who, std::string_view theirs, const std::string& whose,
                       std::string_view ours);

op_declaration declare_edge(std::string name, rank_id sender, rank_id receiver, std::string dtype);

/// The generation at the declaration. Every participant computes it without a message. It differs whenever a participant is a new process.
/// If several ops restart together, pass the ranks of all these ops as `coupled`: a restart of any of those ranks then changes the
/// generation. `judge` (generations.hpp) defines the order of generations.
std::uint64_t first_generation(const op_declaration& op, const runtime::incarnations& of_world,
                               const std::vector<rank_id>& coupled = {});

}  // namespace parley::actors
