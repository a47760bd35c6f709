#pragma once
/// Decoders under fuzzing: each target takes arbitrary bytes as a peer, a launcher or a file may send them.
///
///     void my_decoder(parley::fuzz::input bytes) {
///       const auto value = decode(bytes);
///       if (value) require(encode(*value) == bytes, "decode and encode are inverse");
///     }
///
/// Targets are listed in targets.cpp. A target must neither crash nor need more memory or time than the size of its input explains, and
/// checks everything else that it promises with `require`. Two programs run the targets: `parley_fuzz` under libFuzzer (./dev fuzz), and
/// `fuzz_replay`, which runs the corpus of this folder as a test.
#include <parley/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::fuzz {

using input = std::span<const std::byte>;

struct target {
  std::string_view name;
  void (*run)(input);
};
std::span<const target> targets();

/// The control message bodies that target `message` decodes. The corpus has an input for each.
std::vector<std::string_view> body_types();
/// The body type that an input decodes as; "" if it does not decode.
std::string_view body_type_of(input bytes);

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

inline std::string_view text_of(input bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

/// Consumes small values from the front of the input; returns zeros once the input is used up.
class choices {
 public:
  explicit choices(input bytes) : left_(bytes) {}
  bool empty() const { return left_.empty(); }
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const auto first = std::to_integer<std::uint8_t>(left_.front());
    left_ = left_.subspan(1);
    return first;
  }
  std::uint64_t below(std::uint64_t limit) { return byte() % limit; }
  /// At most `most` bytes; the input says how many.
  input bytes(std::size_t most) {
    std::size_t count = byte();
    if (most > 255) count |= static_cast<std::size_t>(byte()) << 8U;
    count = std::min({count, most, left_.size()});
    const input taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  input rest() { return std::exchange(left_, {}); }

 private:
  input left_;
};

// Peers
void control_frame(input bytes);
void message(input bytes);
void router_frames(input bytes);
void stamp(input bytes);
void pieces(input bytes);
void credits(input bytes);
void lent_payloads(input bytes);
void carried_memory(input bytes);
void nccl_requests(input bytes);
void cuda_keys(input bytes);
void rendezvous_frames(input bytes);
void rendezvous_host(input bytes);
void rendezvous_guest(input bytes);
void rendezvous_restart(input bytes);
// Launchers and files
void environment(input bytes);
void meeting_file(input bytes);
void pmi(input bytes);
void results_file(input bytes);
void spec(input bytes);
void expression(input bytes);
void rank_report(input bytes);
void scenario(input bytes);

}  // namespace parley::fuzz
