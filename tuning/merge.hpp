#pragma once
/// Turns the offers of all participants into the candidates that may be assigned.
///
///     outcome<merged> all = merge({sender_offer, receiver_offer});
///     all->candidates[0];                  // c0, always
///     all->candidates[1].digest;           // available on every participant
///     all->no_common_config;               // a sentence when nothing beyond c0 is left to try, else empty
///
/// The union is ordered by rank, then by each rank's own list; the first occurrence counts. The order in which offers arrive does not
/// matter. Configs are paired by digest, never by their place in a list. A config that a participant can neither run nor replace is no
/// candidate (S4). A stamp cannot tell two different configs with one digest apart, so both are left out. Conflicting declarations are a
/// `problem` that names both sides.
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
  bits available{};  ///< one per config; c0 always counts as available
};

struct participant {
  std::uint32_t rank = 0;
  std::string role{};
  bits available{};  ///< over `merged::configs`
  friend bool operator==(const participant&, const participant&) = default;
};

/// Something that all participants can run together. Most candidates have the digest and the id of their config. A candidate of
/// `merged::mixture` has another digest and id, because the variants behind a digest in force must not change.
struct candidate {
  std::uint64_t digest = 0;  ///< what stamps carry
  std::string id{};
  std::size_t config = 0;               ///< index into `merged::configs`
  std::vector<std::size_t> variants{};  ///< per participant: the index in `merged::configs` of the config that it runs
  friend bool operator==(const candidate&, const candidate&) = default;
};

/// A config that some participants offer and none may run.
struct left_out {
  std::string id{};
  std::string why{};
  friend bool operator==(const left_out&, const left_out&) = default;
};

/// The time of the participant at `place` with `config` (of `merged::configs`), by its own rows; infinite if it is unknown.
using own_times = std::function<double(std::size_t place, std::size_t config)>;

struct merged {
  std::vector<participant> participants;  ///< by rank, ascending
  std::vector<catalogue::entry> configs;  ///< the union; element 0 is c0
  std::vector<candidate> candidates;      ///< the assignable ones; element 0 is c0
  std::vector<left_out> excluded;         ///< configs that are no candidates although participants have them
  std::string no_common_config;           ///< lists each rank's configs when only c0 is left though more was offered

  std::optional<std::size_t> find_candidate(std::uint64_t digest) const noexcept;
  std::optional<std::size_t> find_candidate(std::string_view id) const noexcept;
  /// A hash of the configs that the participants run; 0 if all run the candidate's own config.
  std::uint64_t mixture_of(const candidate& c) const noexcept;
  /// True if the participant at `place` has `config` and may run it instead of `wanted`: both have the same wire class and ABI. A config
  /// without a wire class cannot replace another config.
  bool serves(std::size_t place, std::size_t config, std::size_t wanted) const noexcept;
  /// The fastest variants for a candidate: each participant that lacks the candidate's config runs the config that was fastest on that
  /// participant. If no other config is faster by more than noise, or no times are known, a participant keeps its present variant, or else
  /// takes the config that comes first.
  std::vector<std::size_t> fastest_variants(const candidate& of, const own_times& time_ns) const;
  /// Makes another mixture for a config, in addition to the candidate that has the config's name. Its name is `name_in_file`.
  candidate mixture(std::size_t config, std::vector<std::size_t> variants) const;
  /// Makes the mixture of that name. Returns no value if no such mixture is possible, or if it is a candidate already. First tries the
  /// mixtures in which ranks with the same configs run the same config, then other mixtures: all of them, or only some if many participants
  /// lack the config.
  std::optional<candidate> find_mixture(std::string_view name) const;
  /// The wire classes that all participants in this role can speak, sorted.
  std::vector<std::string> wire_classes(std::string_view role) const;
  /// A hash of participants, candidates' digests and variants: equal on two ranks that merged the same offers.
  std::uint64_t hash() const;
  friend bool operator==(const merged&, const merged&) = default;
};

/// The variants that a candidate may consist of.
enum class variants {
  equal,       ///< the same digest on every participant
  wire_class,  ///< a participant without the config runs its first available one of that wire class and ABI:
               ///< a mixture, tried as one candidate. Without a wire class there is none. Later
               ///< `merged::fastest_variants` finds the fastest one
};

outcome<merged> merge(std::vector<offer> offers, variants allowed = variants::equal);

/// Checks that each of these roles is filled exactly once, for example one sender and one receiver. Returns no problem if so.
std::optional<problem> check_roles(std::span<const offer> offers, std::span<const std::string_view> filled_once);

}  // namespace parley::tuning
