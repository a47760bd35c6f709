// Collectives of another library, whose messages do not name the algorithm. For each call, all ranks must use the
// same algorithm; otherwise they wait for each other forever. parley's actors find the fastest algorithm for each
// size while the program makes its own calls, and leases make all ranks switch at the same call.
//
//     parley run -n 4 ./other_library [--calls 2000] [--elements 16384]
//     ./other_library --sim 16 --calls 200
//
// This stand-in for MPI or NCCL has a ring, a star and pairs (recursive doubling), on host memory.
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

int calls = 2000;
std::size_t elements = 16'384;

// ---- the library ------------------------------------------------------------------------------------------------------

/// The library's handle, like an MPI_Comm or an ncclComm_t: it matches the calls of its ranks by their order. A real
/// library moves bytes by its own means; this one uses parley, so that it also runs on virtual ranks.
class library_world final : public parley::communicator {
 public:
  library_world(parley::rank& self, parley::p2p wires, std::uint32_t number)
      : self_(self.id()), size_(self.world_size()), wires_(std::move(wires)), number_(number) {}

  parley::rank_id self() const noexcept { return self_; }
  parley::rank_id size() const noexcept { return size_; }
  /// Sends `out` and receives `in` concurrently; either may be empty.
  parley::task<> exchange(std::span<const float> out, parley::rank_id to, std::span<float> in, parley::rank_id from) {
    return parley::with_dataflow(&move, wires_, number_, out, to, in, from);
  }

 private:
  static parley::task<> move(parley::dataflow& flow, parley::p2p wires, std::uint32_t number,
                             std::span<const float> out, parley::rank_id to, std::span<float> in,
                             parley::rank_id from) {
    if (!out.empty()) wires.start(flow, {parley::p2p::isend(out, {.to = to, .tag = number})});
    if (!in.empty()) wires.start(flow, {parley::p2p::irecv(in, {.from = from, .tag = number})});
    co_await flow.join();
  }
  parley::rank_id self_;
  parley::rank_id size_;
  parley::p2p wires_;
  std::uint32_t number_;
};

void add(std::span<float> to, std::span<const float> what) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
}

// All ranks send to rank 0, which adds the data up and sends the sum back.
parley::task<> all_reduce_star(library_world& w, std::span<float> data) {
  if (w.self() != 0) {
    co_await w.exchange(data, 0, {}, 0);
    co_await w.exchange({}, 0, data, 0);
    co_return;
  }
  std::vector<float> other(data.size());
  for (parley::rank_id r = 1; r < w.size(); ++r) {
    co_await w.exchange({}, r, other, r);
    add(data, other);
  }
  for (parley::rank_id r = 1; r < w.size(); ++r) co_await w.exchange(data, r, {}, r);
}

// Ring reduce-scatter, then ring all-gather: parts of the data go around until each is summed up on one rank, and
// then around again until every rank has all sums.
parley::task<> all_reduce_ring(library_world& w, std::span<float> data) {
  const parley::rank_id n = w.size();
  const parley::rank_id next = (w.self() + 1) % n;
  const parley::rank_id previous = (w.self() + n - 1) % n;
  const auto part = [&](parley::rank_id i) {
    const std::size_t from = data.size() * (i % n) / n;
    return data.subspan(from, data.size() * (i % n + 1) / n - from);
  };
  std::vector<float> other(data.size() / n + 1);
  for (parley::rank_id step = 0; step + 1 < n; ++step) {
    const std::span<float> mine = part(w.self() + n - step);
    const std::span<float> theirs = part(w.self() + n - step - 1);
    const std::span<float> came = std::span(other).first(theirs.size());
    co_await w.exchange(mine, next, came, previous);
    add(theirs, came);
  }
  for (parley::rank_id step = 0; step + 1 < n; ++step) {
    const std::span<float> mine = part(w.self() + 1 + n - step);
    const std::span<float> theirs = part(w.self() + n - step);
    co_await w.exchange(mine, next, theirs, previous);
  }
}

// Recursive doubling with partners at distance 1, 2, 4, …; needs a power of two of ranks.
parley::task<> all_reduce_pairs(library_world& w, std::span<float> data) {
  std::vector<float> other(data.size());
  for (parley::rank_id distance = 1; distance < w.size(); distance *= 2) {
    const parley::rank_id partner = w.self() ^ distance;
    co_await w.exchange(data, partner, other, partner);
    add(data, other);
  }
}

// ---- what parley needs to know about the library
// ----------------------------------------------------------------------

using algorithm = parley::task<> (*)(library_world&, std::span<float>);

class library_config final : public parley::symmetric_config {
 public:
  library_config(const char* name, algorithm runs, bool is_available)
      : symmetric_config({.name = name, .wire_class = name}), run_(runs), available_(is_available) {}
  parley::result<> available() const override {
    if (available_) return {};
    return parley::error{parley::errc::unavailable, "the number of ranks is not a power of two"};
  }
  parley::task<> run(parley::symmetric_call call, std::span<std::byte> data) const override {
    auto& world = static_cast<library_world&>(*call.communicator);
    return run_(world, {reinterpret_cast<float*>(data.data()), data.size() / sizeof(float)});
  }

 private:
  algorithm run_;
  bool available_;
};

/// Makes separate worlds for rehearsals, which run concurrently with the program's calls.
class library_worlds final : public parley::communicator_source {
 public:
  library_worlds(parley::rank& self, parley::p2p wires) : self_(self), wires_(std::move(wires)) {}
  std::shared_ptr<library_world> make(std::uint32_t number) const {
    return std::make_shared<library_world>(self_, wires_, number);
  }
  std::vector<std::byte> make_id() override {
    ++latest_;
    const auto bytes = std::as_bytes(std::span(&latest_, 1));
    return {bytes.begin(), bytes.end()};
  }
  bool beside_calls() const noexcept override { return true; }
  parley::task<std::shared_ptr<parley::communicator>> connect(std::vector<std::byte> id) override {
    std::uint32_t number = 0;
    std::memcpy(&number, id.data(), std::min(id.size(), sizeof number));
    co_return make(number);
  }

 private:
  parley::rank& self_;
  parley::p2p wires_;
  std::uint32_t latest_ = 0;  // number of the latest world; 0 is the program's own
};

parley::task<> rank_main(parley::rank& self) {
  parley::p2p wires(self, {.name = "library"});
  const auto worlds = std::make_shared<library_worlds>(self, wires);
  const bool power_of_two = std::has_single_bit(self.world_size());
  parley::symmetric_options op{.name = "sums", .communicator = worlds->make(0), .rehearse = worlds, .dtype = "f32"};
  op.configs = {std::make_shared<library_config>("star", all_reduce_star, true),
                std::make_shared<library_config>("ring", all_reduce_ring, true),
                std::make_shared<library_config>("pairs", all_reduce_pairs, power_of_two)};
  parley::symmetric all_reduce(self, op);

  const parley::rank_id n = self.world_size();
  const auto ranks = static_cast<float>(n * (n + 1)) / 2;
  std::vector<float> large(elements);
  std::vector<float> small(16);
  for (int call = 0; call < calls; ++call) {
    std::vector<float>& data = call % 2 == 0 ? large : small;
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<float>(self.id() + 1) * static_cast<float>(i % 7 + 1);
    co_await all_reduce.run(data);
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (data[i] != ranks * static_cast<float>(i % 7 + 1))
        parley::runtime::raise({parley::errc::config_failed, "the sum of element " + std::to_string(i) + " is wrong"});
    }
  }
  if (self.id() != 0) co_return;
  for (const std::size_t bytes : {small.size() * sizeof(float), large.size() * sizeof(float)}) {
    const parley::decision d = all_reduce.decision(bytes);  // the same on all ranks
    std::printf("%s, %s: %s, %s\n", d.op.c_str(), d.key.c_str(), d.config.c_str(), d.why.c_str());
  }
  std::printf("%u ranks, %d exact sums\n", n, calls);
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("Collectives of another library; all ranks run the same one.");
  line.count("--calls", calls, "of both sizes together");
  line.count("--elements", elements, "floats of the larger size");
  return line.run(argc, argv, rank_main);
}
