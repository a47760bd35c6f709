#include <parley/simulation/checkers/payload_book.hpp>

#include <parley/actors/declaration.hpp>
#include <parley/actors/services.hpp>
#include <parley/op_end.hpp>

#include <algorithm>
#include <bit>
#include <cstring>

namespace parley::simulation {

// Uses four independent chains, because each step of one chain waits for the step before.
std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept {
  std::uint64_t h[4] = {1, 2, 3, 4};
  const auto add = [&](std::size_t i, std::size_t size) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, size);
    std::uint64_t& chain = h[i / 8 % 4];
    chain = std::rotl(chain ^ word, 29) * 0x9e3779b97f4a7c15U;
  };
  std::size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    for (std::size_t k = 0; k < 32; k += 8) add(i + k, 8);
  }
  for (; i < bytes.size(); i += 8) add(i, std::min<std::size_t>(8, bytes.size() - i));
  return runtime::mix(h[0] + runtime::mix(h[1] + runtime::mix(h[2] + runtime::mix(h[3] + bytes.size()))));
}

void payload_book::listen(ops::rank& self) {
  self.services().watcher = this;
  ranks_[self.id()] = &self;
}

std::string payload_book::title_of(runtime::rank_id at, std::uint64_t op) const {
  for (const ops::op_end* const end : ranks_.at(at)->ops()) {
    if (end->declaration().id() == op) return end->declaration().title();
  }
  return "op " + std::to_string(op);
}

void payload_book::on_payload(runtime::rank_id rank, const actors::payload_seen& seen) {
  const payload mine{rank, seen.bytes.size(), hash_of(seen.bytes)};
  const auto [at, first] = known_.try_emplace({seen.op, seen.generation, seen.tag, seen.invocation}, mine);
  if (first) return;
  const payload& other = at->second;
  if (other.hash != mine.hash)
    differs_(title_of(rank, seen.op) + ", generation " + std::to_string(seen.generation) + ", tag " +
             std::to_string(seen.tag) + ", invocation " + std::to_string(seen.invocation) + ": rank " +
             std::to_string(rank) + " has " + std::to_string(mine.bytes) + " bytes, which are not the " +
             std::to_string(other.bytes) + " of rank " + std::to_string(other.rank));
  if (seen.end != actors::payload_seen::what::agreed) known_.erase(at);  // both of its ends have been seen
}

}  // namespace parley::simulation
