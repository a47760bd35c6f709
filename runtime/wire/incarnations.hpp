#pragma once
/// Names the process in each rank's place by a number that no other process has.
///
///     incarnations known(std::vector<std::uint64_t>{17, 4, 99});   // of ranks 0, 1 and 2
///     incarnations mine = known;                                   // shares them: ranks of one process hold them once
///     mine.replace(1, 5);                                          // another process has come; `known` does not change
///
/// The high bits of such a number count the earlier processes in that place, so that a newer process can be distinguished from an older
/// one. The low bits are random, so that processes of different jobs can also be distinguished.
#include <parley/identifiers.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace parley::runtime {

inline constexpr unsigned incarnation_chance_bits = 48;
inline constexpr std::uint32_t most_restarts = 0xffff;

constexpr std::uint32_t restarts_of(std::uint64_t incarnation) noexcept {
  return static_cast<std::uint32_t>(incarnation >> incarnation_chance_bits);
}
/// The number of a process that took its place after `restarts` others, at most `most_restarts`.
constexpr std::uint64_t incarnation_of(std::uint64_t chance, std::uint32_t restarts) noexcept {
  return (chance & ((std::uint64_t{1} << incarnation_chance_bits) - 1)) | std::uint64_t{restarts}
                                                                              << incarnation_chance_bits;
}

class incarnations {
 public:
  incarnations() = default;
  /// The numbers of the ranks, in the ranks' order; ranks beyond the end have 0.
  incarnations(std::vector<std::uint64_t> at_first)  // NOLINT(google-explicit-constructor): it is one
      : at_first_(std::make_shared<const std::vector<std::uint64_t>>(std::move(at_first))) {}

  std::uint64_t of(rank_id r) const {
    if (const auto later = since_.find(r); later != since_.end()) return later->second;
    return at_first_ != nullptr && r < at_first_->size() ? (*at_first_)[r] : 0;
  }
  void replace(rank_id r, std::uint64_t by) { since_[r] = by; }

 private:
  std::shared_ptr<const std::vector<std::uint64_t>> at_first_;
  std::map<rank_id, std::uint64_t> since_;  // ranks with a replaced process; few, if any
};

}  // namespace parley::runtime
