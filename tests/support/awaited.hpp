#pragma once
/// A completion that counts its calls and keeps the outcome; `pending`: it was not called.
#include <parley/runtime/wire/link.hpp>

namespace parley::tests {

struct awaited final : runtime::completion {
  awaited() noexcept : completion(&note) {}
  static void note(completion& self, runtime::errc how) noexcept {
    auto& mine = static_cast<awaited&>(self);
    mine.outcome = how;
    ++mine.calls;
  }
  runtime::errc outcome = runtime::errc::pending;
  int calls = 0;
};

}  // namespace parley::tests
