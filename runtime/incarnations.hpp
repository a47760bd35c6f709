#pragma once
/// Which process is in each rank's place, as a number that no other process has.
///
///     incarnations known(std::vector<std::uint64_t>{17, 4, 99});   // of ranks 0, 1 and 2
///     incarnations mine = known;                                   // shares them: ranks of one process hold them once
///     mine.replace(1, 5);                                          // another process has come; `known` does not change
#include <parley/runtime/identifiers.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace parley::runtime {

class incarnations {
 public:
  incarnations() = default;
  /// Of the ranks, in their order; those beyond its end are 0.
  incarnations(std::vector<std::uint64_t> at_first)  // NOLINT(google-explicit-constructor): it is one
      : at_first_(std::make_shared<const std::vector<std::uint64_t>>(std::move(at_first))) {}

  std::uint64_t of(rank_id r) const {
    if (const auto later = since_.find(r); later != since_.end()) return later->second;
    return at_first_ != nullptr && r < at_first_->size() ? (*at_first_)[r] : 0;
  }
  void replace(rank_id r, std::uint64_t by) { since_[r] = by; }

 private:
  std::shared_ptr<const std::vector<std::uint64_t>> at_first_;
  std::map<rank_id, std::uint64_t> since_;  // few, if any
};

}  // namespace parley::runtime
