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
#include <functional>
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

/// Something that all participants can run together. Most have the digest and the id of their config; what `merged::mixture` makes
/// has others, as a digest that is in force keeps its variants.
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

/// What a participant, by its place, took with a config of `merged::configs` by its own rows; infinite where that is not known.
using own_times = std::function<double(std::size_t place, std::size_t config)>;

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
  /// Whether a participant has `config` and may run it in the place of `wanted`: of the same wire class and ABI. Who names no wire
  /// class promises nothing about what else it can talk to.
  bool serves(std::size_t place, std::size_t config, std::size_t wanted) const noexcept;
  /// A candidate's variants where whoever lacks its config runs what it took the least time with. Within noise, and where nothing is
  /// known, it stays with what it runs for it now, and then with what comes first.
  std::vector<std::size_t> fastest_variants(const candidate& of, const own_times& time_ns) const;
  /// Another mixture for a config, beside the candidate that has its name: named as in a results file (`name_in_file`).
  candidate mixture(std::size_t config, std::vector<std::size_t> variants) const;
  /// The same from that name. Nothing where no such mixture is possible, or it is a candidate already. Of many participants that lack the
  /// config only those mixtures are looked for in which ranks with the same configs do alike.
  std::optional<candidate> find_mixture(std::string_view name) const;
  /// The wire classes that every participant in this role can speak, sorted.
  std::vector<std::string> wire_classes(std::string_view role) const;
  /// Over the candidates' digests and variants: equal on two ranks that merged the same offers.
  std::uint64_t hash() const;
  friend bool operator==(const merged&, const merged&) = default;
};

/// Which local variants a candidate may be made of.
enum class variants {
  equal,  ///< the same digest on every participant
  wire_class,  ///< who lacks it runs its first available config of that wire class and ABI: a mixture, tried as one. Without a
               ///< wire class there is none. Which one is the fastest nobody knows yet: `merged::fastest_variants`
};

outcome<merged> merge(std::vector<offer> offers, variants allowed = variants::equal);

/// One sender and one receiver, for example. Empty when each role is filled exactly once.
std::optional<problem> check_roles(std::span<const offer> offers, std::span<const std::string_view> filled_once);

}  // namespace parley::tuning
