// A config of your own next to a built-in one: it sends the payload in two halves, the second half first.
//
//     parley run -n 2 ./own_config
//     ./own_config --sim 16                       # ranks 2 to 15 are idle
//
// Both implementations derive the parts from the byte count alone, so they always match. One class holds both, so
// neither can be forgotten.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

using namespace parley::literals;

namespace {

/// Sends the payload in two halves, the second half first.
class far_half_first final : public parley::paired_config {
 public:
  far_half_first() : paired_config({.name = "far_half_first", .wire_class = "halves"}) {}

  parley::task<> send(parley::part_sender& out, std::span<const std::byte> data) const override {
    const std::size_t middle = data.size() / 2;
    co_await out.send(middle, data.subspan(middle));
    if (middle != 0) co_await out.send(0, data.first(middle));
  }
  parley::task<> receive(parley::part_receiver& in, std::span<std::byte> data) const override {
    const std::size_t middle = data.size() / 2;
    co_await in.receive(middle, data.subspan(middle));
    if (middle != 0) co_await in.receive(0, data.first(middle));
  }
};

parley::role role_of(parley::rank_id r) {
  if (r > 1) return parley::role::idle;
  return r == 0 ? parley::role::sender : parley::role::receiver;
}

parley::task<> rank_main(parley::rank& self) {
  parley::transfer transfer(
      self,
      {.name = "halves", .role = role_of, .configs = {parley::configs::direct(), std::make_shared<far_half_first>()}});

  std::vector<std::uint64_t> data(1_MiB / sizeof(std::uint64_t));
  for (int i = 0; i < 500 && !transfer.idle(); ++i) {
    if (self.id() == 0) {
      std::iota(data.begin(), data.end(), static_cast<std::uint64_t>(i));
      co_await transfer.send(data, {.to = 1});
    } else {
      co_await transfer.receive(data, {.from = 0});
      for (std::size_t k = 0; k < data.size(); ++k) {
        if (data[k] != static_cast<std::uint64_t>(i) + k)
          parley::runtime::raise({parley::errc::config_failed, "word " + std::to_string(k) + " came out wrong"});
      }
    }
  }
  if (transfer.idle()) co_return;
  const auto agreed = transfer.decision(1_MiB);
  std::printf("%s: %s\n", agreed.config.c_str(), agreed.why.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return examples::command_line("A config of your own in addition to the built-in ones.").run(argc, argv, rank_main);
}
