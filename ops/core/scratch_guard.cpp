#include <parley/ops/core/scratch_guard.hpp>

#include <parley/error.hpp>
#include <parley/runtime/random.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace parley::ops {

namespace {

const std::array<std::byte, guard_margin>& expected() noexcept {
  static const auto all = [] {
    std::array<std::byte, guard_margin> made{};
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(runtime::mix(i + 1));
    return made;
  }();
  return all;
}

// The place of the first byte that was written; the size if none was.
std::size_t first_written(const std::vector<std::byte>& margin) noexcept {
  return static_cast<std::size_t>(std::mismatch(margin.begin(), margin.end(), expected().begin()).first -
                                  margin.begin());
}

}  // namespace

runtime::task<> scratch_guard::set() const {
  co_await space_.copy(block_.first(guard_margin), expected());
  co_await space_.copy(block_.last(guard_margin), expected());
}

runtime::task<> scratch_guard::check() const {
  const std::string size = std::to_string(buffer().size());
  std::vector<std::byte> here(guard_margin);
  co_await space_.copy(here, block_.last(guard_margin));
  if (const std::size_t at = first_written(here); at != here.size())
    runtime::raise({runtime::errc::config_failed, "the rehearsal wrote beyond its buffer of " + size +
                                                      " bytes, at byte " + std::to_string(buffer().size() + at)});
  co_await space_.copy(here, block_.first(guard_margin));
  if (const std::size_t at = first_written(here); at != here.size())
    runtime::raise({runtime::errc::config_failed, "the rehearsal wrote before its buffer of " + size + " bytes, " +
                                                      std::to_string(here.size() - at) + " bytes ahead of it"});
}

}  // namespace parley::ops
