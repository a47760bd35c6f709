#pragma once
/// Control messages between neighbours in an op that consists of messages between ranks (ops/core/neighbours.hpp).
#include <parley/identifiers.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::actors {

/// A property that all ranks of an op must declare alike, such as the grid of a halo, in words.
struct declared_term {
  std::string name;
  std::string value;
  bool operator==(const declared_term&) const = default;
  PARLEY_FIELDS(name, value)
};

/// A question of a rank that waits for a neighbour.
struct neighbour_question {
  static constexpr std::uint16_t message_type = 53;
  std::uint64_t call = 0;   ///< calls that both have made together; 0: asks only about the declaration
  std::uint64_t terms = 0;  ///< hash of the terms of this call
  std::string words;
  std::vector<declared_term> declared;
  PARLEY_FIELDS(call, terms, words, declared)
};
/// Says what differs between the two ranks.
struct neighbour_refusal {
  static constexpr std::uint16_t message_type = 54;
  std::string why;
  PARLEY_FIELDS(why)
};
/// A call has failed, on the sender or on another rank, so no call follows in the generation that the envelope names. Repeated until the
/// other rank sends the same, or an answer. An answer is not answered; otherwise two ranks would answer each other for ever.
struct neighbour_failure {
  static constexpr std::uint16_t message_type = 55;
  std::uint8_t code = 0;  ///< error of the calls that end; 0: an answer to a `neighbour_failure`
  std::string why;
  runtime::rank_id began_with = 0;  ///< the rank whose end caused the failure
  std::string its_end;              ///< what happened to that rank; empty: no rank's end caused it
  PARLEY_FIELDS(code, why, began_with, its_end)
};

}  // namespace parley::actors
