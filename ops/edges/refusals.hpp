#pragma once
/// The sender's record of an edge's messages that the receiver refused. A call that has not ended throws the refusal of its own message.
/// If the call had ended before the refusal arrived, a later call reports the refusal.
///
///     refusals refused;
///     refused.add({.tag = 0, .invocation = 7, .bytes = 8, .code = errc::buffer_too_small, .why = …}, refusals::call::has_ended);
///     if (auto mine = refused.take(tag, invocation)) …       // by the call itself
///     if (refused.owes()) earlier = refused.next();          // by the next call; `put_back` if that call itself fails
///
/// Up to 64 of each kind are kept. `forgotten` counts further ones that were left for later calls.
#include <parley/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::ops {

struct refusal {
  std::uint32_t tag = 0;
  std::uint64_t invocation = 0;
  std::uint64_t bytes = 0;
  runtime::errc code = runtime::errc::none;
  std::string why;

  bool is_of(std::uint32_t t, std::uint64_t i) const noexcept { return tag == t && invocation == i; }
};

class refusals {
 public:
  enum class call : std::uint8_t { goes_on, has_ended };

  /// Ignores a refusal that is known, because the receiver may send it twice.
  void add(refusal r, call of) {
    auto& known = of == call::goes_on ? for_calls_ : untold_;
    if (find(known, r.tag, r.invocation) != known.end()) return;
    if (known.size() == most_refusals) {
      forgotten_ += of == call::goes_on ? 0 : 1;
      return;
    }
    known.push_back(std::move(r));
  }
  std::optional<refusal> take(std::uint32_t tag, std::uint64_t invocation) {
    const auto at = find(for_calls_, tag, invocation);
    if (at == for_calls_.end()) return std::nullopt;
    refusal mine = std::move(*at);
    for_calls_.erase(at);
    return mine;
  }
  /// True if the next call must report the refusal of an earlier one.
  bool owes() const noexcept { return !untold_.empty(); }
  refusal next() {
    refusal oldest = std::move(untold_.front());
    untold_.erase(untold_.begin());
    return oldest;
  }
  void put_back(refusal r) { untold_.insert(untold_.begin(), std::move(r)); }
  const std::vector<refusal>& untold() const noexcept { return untold_; }
  std::size_t forgotten() const noexcept { return forgotten_; }

 private:
  static constexpr std::size_t most_refusals = 64;
  static std::vector<refusal>::iterator find(std::vector<refusal>& among, std::uint32_t tag, std::uint64_t invocation) {
    return std::find_if(among.begin(), among.end(), [=](const refusal& r) { return r.is_of(tag, invocation); });
  }
  std::vector<refusal> for_calls_;
  std::vector<refusal> untold_;
  std::size_t forgotten_ = 0;
};

}  // namespace parley::ops
