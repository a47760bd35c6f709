#pragma once
/// What ops of a simulated job have sent, and what they have brought: a payload has to be the same at both ends (S8), whatever config
/// moved it.
///
///     payload_book book([](std::string text) { … });         // told of what differs
///     book.listen(rank);                                     // of each rank, before its ops are declared
///
/// Of edges it compares what came with what was sent; of groups what their members have in the end, which all have alike; of gathers
/// the leader's blocks with what the members brought.
#include <parley/actors/services.hpp>
#include <parley/rank.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace parley::simulation {

/// Of bytes, quickly; equal on all machines of one byte order.
std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

class payload_book final : public actors::payload_watcher {
 public:
  explicit payload_book(std::function<void(std::string)> differs) : differs_(std::move(differs)) {}
  void listen(ops::rank& self);
  /// Another job: invocations count from the beginning.
  void begin_job() { known_.clear(); }

 private:
  void on_payload(runtime::rank_id rank, const actors::payload_seen& seen) override;
  // Op, generation, tag (of a gather the member's place), invocation.
  using key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t>;
  struct payload {
    runtime::rank_id rank = 0;  // at which it was seen first
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;
  };
  std::function<void(std::string)> differs_;
  std::map<key, payload> known_;
};

}  // namespace parley::simulation
