#pragma once
/// What neighbours in an op that is made of messages say to each other beside these (ops/core/common_terms.hpp).
#include <parley/identifiers.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::actors {

/// What an op's ranks declare alike, such as the grid of a halo, in words.
struct declared_term {
  std::string name;
  std::string value;
  bool operator==(const declared_term&) const = default;
  PARLEY_FIELDS(name, value)
};

/// Of a rank that waits.
struct neighbour_question {
  static constexpr std::uint16_t message_type = 53;
  std::uint64_t call = 0;   ///< how many calls the two have had together; 0: only whether it is known
  std::uint64_t terms = 0;  ///< of this call
  std::string words;
  std::vector<declared_term> declared;
  PARLEY_FIELDS(call, terms, words, declared)
};
/// There is something wrong between the two.
struct neighbour_refusal {
  static constexpr std::uint16_t message_type = 54;
  std::string why;
  PARLEY_FIELDS(why)
};
/// A call has failed, here or on another rank, so that there are no others in this generation, which the envelope names. Said again until
/// the other one says the same, or answers. An answer draws none, or two ranks would answer each other for ever.
struct neighbour_failure {
  static constexpr std::uint16_t message_type = 55;
  std::uint8_t code = 0;  ///< with what its calls end; 0: an answer to who has said so
  std::string why;
  runtime::rank_id began_with = 0;  ///< the rank whose end it follows from
  std::string its_end;              ///< what became of that one; empty: it follows from no rank's end
  PARLEY_FIELDS(code, why, began_with, its_end)
};

}  // namespace parley::actors
