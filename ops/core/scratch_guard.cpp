#include <parley/ops/core/scratch_guard.hpp>

#include <parley/error.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace parley::ops {

namespace {

const std::array<std::byte, guard_bytes>& expected() noexcept {
  static const auto all = [] {
    std::array<std::byte, guard_bytes> made{};
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(runtime::mix(i + 1));
    return made;
  }();
  return all;
}

}  // namespace

runtime::task<> scratch_guard::set() const { return space_.copy(guard_, expected()); }

runtime::task<> scratch_guard::check() const {
  std::vector<std::byte> here(guard_bytes);
  co_await space_.copy(here, guard_);
  const auto wrong = std::mismatch(here.begin(), here.end(), expected().begin()).first;
  if (wrong == here.end()) co_return;
  runtime::raise({runtime::errc::config_failed,
                  "the rehearsal wrote beyond its buffer of " + std::to_string(place_) + " bytes, at byte " +
                      std::to_string(place_ + static_cast<std::size_t>(wrong - here.begin()))});
}

}  // namespace parley::ops
