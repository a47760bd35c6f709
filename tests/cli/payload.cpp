#include <parley/cli/payload/payload.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace parley::cli;

namespace {

/// One pass over the whole payload after the other, as the stages of a pipeline do it.
std::vector<std::byte> through_stages(std::uint64_t number, std::size_t bytes, std::size_t stages) {
  std::vector<std::byte> payload(bytes);
  make_payload(number, payload);
  for (std::size_t s = 0; s < stages; ++s) multiply(payload, factor_of_stage(s));
  return payload;
}

}  // namespace

TEST_CASE("the reference digest, which is computed in blocks, equals that of whole passes, also for odd sizes") {
  for (const std::size_t bytes : {0UL, 1UL, 2UL, 31UL, 33UL, 16'383UL, 16'384UL, 16'385UL, 100'001UL}) {
    for (const std::size_t stages : {0UL, 1UL, 4UL})
      CHECK(digest_of(through_stages(7, bytes, stages)) == reference_digest(7, bytes, stages));
  }
}

TEST_CASE("one changed bit, two swapped words and a missing stage show in the digest") {
  const auto payload = through_stages(3, 4'096, 4);
  const std::uint64_t right = reference_digest(3, 4'096, 4);
  for (const std::size_t at : {0UL, 1'234UL, 4'095UL}) {
    auto wrong = payload;
    wrong[at] ^= std::byte{0x80};
    CHECK(digest_of(wrong) != right);
  }
  auto swapped = payload;
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 32);
  CHECK(digest_of(swapped) != right);
  CHECK(reference_digest(3, 4'096, 3) != right);
  CHECK(reference_digest(4, 4'096, 4) != right);
}
