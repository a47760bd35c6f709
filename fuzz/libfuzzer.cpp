// libFuzzer's entry. PARLEY_FUZZ_TARGET names the target, because libFuzzer owns the command line.
#include "fuzz.hpp"

#include <string>

namespace {

const parley::fuzz::target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("PARLEY_FUZZ_TARGET");
  for (const auto& t : parley::fuzz::targets()) {
    if (name != nullptr && t.name == name) chosen = &t;
  }
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "set PARLEY_FUZZ_TARGET to one of:");
  for (const auto& t : parley::fuzz::targets()) std::fprintf(stderr, " %s", std::string(t.name).c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
