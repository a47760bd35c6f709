#pragma once
/// The exchange between ranks of one process that does not use their links (`end::gather`).
#include <parley/tests/links/contract.hpp>

#include <optional>

namespace parley::tests {

class gathering {
 public:
  explicit gathering(rank_id ranks) : places_(ranks) {}

  void bring(rank_id r, std::span<const std::byte> mine) { places_[r].mine.emplace(mine.begin(), mine.end()); }
  bool brought(rank_id r) const { return places_[r].all.has_value(); }
  std::vector<blob> take(rank_id r) { return *std::exchange(places_[r].all, std::nullopt); }
  /// The rank brings nothing more: it has ended or is dead.
  void leave(rank_id r) { places_[r].here = false; }
  bool here(rank_id r) const { return places_[r].here; }
  bool empty() const {
    return std::none_of(places_.begin(), places_.end(), [](const place& p) { return p.here; });
  }
  /// Once all ranks that are here have brought their data, hands all of it to everybody; returns whether it did.
  bool match() {
    if (std::any_of(places_.begin(), places_.end(), [](const place& p) { return p.here && !p.mine; })) return false;
    std::vector<blob> all;
    for (place& p : places_) all.push_back(std::exchange(p.mine, std::nullopt).value_or(blob{}));
    for (place& p : places_) p.all = all;
    return true;
  }

 private:
  struct place {
    std::optional<blob> mine{};
    std::optional<std::vector<blob>> all{};
    bool here = true;
  };
  std::vector<place> places_;
};

}  // namespace parley::tests
