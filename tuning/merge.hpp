#pragma once
/// From what each participant offers to what may be assigned.
///
///     outcome<merged> all = merge({sender_offer, receiver_offer});
///     all->candidates[0];                  // c0, always
///     all->candidates[1].digest;           // available on every participant
///     all->no_common_config;               // a sentence when nothing beyond c0 is left to try, else empty
///
/// The union keeps the participants' order: ranks ascending, each in its own order, first seen wins; the order in which
/// offers arrived cannot matter. Configs are paired by digest, never by their place in a list, and what one role lacks
/// is no candidate (S4). Two different configs that have one digest cannot be told apart by a stamp, so both are left out.
/// Conflicting declarations are a `problem` that names both sides.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <parley/tuning/bits.hpp>
#include <parley/tuning/config.hpp>
#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

struct offer {
  std::uint32_t rank = 0;
  std::string role{};
  catalogue configs{};
  bits available{};  ///< one per config; c0 counts as available whatever its bit says
};

struct participant {
  std::uint32_t rank = 0;
  std::string role{};
  bits available{};  ///< over `merged::configs`
  friend bool operator==(const participant&, const participant&) = default;
};

/// Something that all participants can run together.
struct candidate {
  std::uint64_t digest = 0;  ///< what stamps carry
  std::string id{};
  std::size_t config = 0;               ///< index into `merged::configs`
  std::vector<std::size_t> variants{};  ///< per participant, what it runs: an index into `merged::configs`
  friend bool operator==(const candidate&, const candidate&) = default;
};

/// A config that somebody offers and nobody may run.
struct left_out {
  std::string id{};
  std::string why{};
  friend bool operator==(const left_out&, const left_out&) = default;
};

struct merged {
  std::vector<participant> participants;  ///< by rank, ascending
  std::vector<catalogue::entry> configs;  ///< the union; element 0 is c0
  std::vector<candidate> candidates;      ///< the assignable ones; element 0 is c0
  std::vector<left_out> excluded;         ///< what is no candidate though participants have it
  std::string no_common_config;           ///< lists each rank's configs when only c0 is left though more was offered

  std::optional<std::size_t> find_candidate(std::uint64_t digest) const noexcept;
  std::optional<std::size_t> find_candidate(std::string_view id) const noexcept;
  /// Names who runs what; 0 when all participants run the candidate itself.
  std::uint64_t mixture_of(const candidate& c) const noexcept;
  /// The wire classes that every participant in this role can speak, sorted.
  std::vector<std::string> wire_classes(std::string_view role) const;
  /// Over the candidates' digests and variants: equal on two ranks that merged the same offers.
  std::uint64_t hash() const;
  friend bool operator==(const merged&, const merged&) = default;
};

/// Which local variants a candidate may be made of.
enum class variants {
  equal,       ///< the same digest on every participant
  wire_class,  ///< who lacks it runs its first available config of that wire class and ABI: a mixture, tried as one.
               ///< Without a wire class there is none
};

outcome<merged> merge(std::vector<offer> offers, variants allowed = variants::equal);

/// One sender and one receiver, for example. Empty when each role is filled exactly once.
std::optional<problem> check_roles(std::span<const offer> offers, std::span<const std::string_view> filled_once);

}  // namespace parley::tuning
