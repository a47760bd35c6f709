// The three thin layers of parley/registration.hpp in one program: send and receive halves that are matched by id, a
// choice of configs for each role, and ranks with different capabilities. Needs an even number of ranks.
//
//     parley run -n 4 ./thin_layers
//     ./thin_layers --sim 16
#include "command_line.hpp"
#include <parley/registration.hpp>

#include <parley/parley.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {

using namespace parley;
using ops::paired_entry;

task<> send_whole(part_sender& out, std::span<const std::byte> data) { co_await out.send(0, data); }
task<> receive_whole(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }

task<> send_halves(part_sender& out, std::span<const std::byte> data) {
  const std::size_t half = data.size() / 2;
  out.keep_in_flight(2);
  co_await out.send(0, data.first(half));
  co_await out.send(half, data.subspan(half));
}
task<> receive_halves(part_receiver& in, std::span<std::byte> data) {
  const std::size_t half = data.size() / 2;
  in.keep_in_flight(2);
  co_await in.receive(0, data.first(half));
  co_await in.receive(half, data.subspan(half));
}

task<> add_one_by_one(std::span<std::byte> data) {
  for (std::byte& b : data) b = static_cast<std::byte>(static_cast<unsigned>(b) + 1);
  co_return;
}
task<> add_to_words(std::span<std::byte> data) {
  const auto add = [](std::byte b) { return static_cast<std::byte>(static_cast<unsigned>(b) + 1); };
  std::transform(data.begin(), data.end(), data.begin(), add);
  co_return;
}

// Ranks 0 and 1 have the newer machine, which supports both configs.
std::vector<bool> capability_check(rank_id r) { return {true, r < 2}; }

task<> rank_main(rank& self) {
  // The two halves of a pair may be listed anywhere; parley matches them by id.
  const std::vector<paired_entry> pairs{{"whole", send_whole, receive_whole},
                                        {"halves", send_halves, nullptr},
                                        {"only_sent", send_halves, nullptr},
                                        {"halves", nullptr, receive_halves}};
  auto pair = ops::register_paired_op_autotuning(
      self, "send", "receive", pairs, [](rank_id r) { return std::string(r % 2 == 0 ? "send" : "receive"); });
  auto stage = ops::register_asymmetric_autotuning(self, "stage", {{"even", add_one_by_one}, {"odd", add_to_words}},
                                                   {{"even", "words", add_to_words}},
                                                   [](rank_id r) { return std::string(r % 2 == 0 ? "even" : "odd"); });
  collective_options sum;
  sum.name = "sum";
  sum.role = [](rank_id r) { return r == 0 ? parley::role::leader : parley::role::worker; };
  auto group =
      ops::register_heterogeneous_autotuning(self, sum, {configs::star(), configs::chain(4_KiB)}, capability_check);

  std::vector<std::byte> data(64'000);
  std::vector<float> values(1000);
  for (int i = 0; i < 50; ++i) {
    co_await stage.run(data);
    if (self.id() % 2 == 0) {
      co_await pair.op.send(data, {.to = self.id() + 1});
    } else {
      const auto got = co_await pair.op.receive(data, {.from = self.id() - 1});
      if (got != data.size()) runtime::raise({errc::exception, "a message lost bytes"});
    }
    std::fill(values.begin(), values.end(), 1.0F);
    co_await group.all_reduce(std::span(values));
    if (values[999] != static_cast<float>(self.world_size())) runtime::raise({errc::exception, "a sum is wrong"});
  }
  if (self.id() == 0)
    std::printf("50 rounds; left out: %s\n", pair.left_out.empty() ? "none" : pair.left_out.front().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return examples::command_line(
             "The thin layers: halves that meet by their ids, a choice for each role, unequal ranks.")
      .run(argc, argv, rank_main);
}
