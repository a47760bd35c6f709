#pragma once
/// Compares the payloads that ops of a simulated job send and receive. With every config, a payload must be the same at both ends (S8).
///
///     payload_book book([](std::string text) { … });         // called for each difference
///     book.listen(rank);                                     // for each rank, before its ops are declared
///
/// For edges it compares the received payload with the sent one. For groups it compares the final data of all members, which must be
/// equal, and for gathers the leader's blocks with the members' data.
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

/// A fast hash of bytes; equal on all machines of one byte order.
std::uint64_t hash_of(std::span<const std::byte> bytes) noexcept;

class payload_book final : public actors::payload_watcher {
 public:
  explicit payload_book(std::function<void(std::string)> differs) : differs_(std::move(differs)) {}
  void listen(ops::rank& self);
  /// A new job begins: its invocations count from the beginning.
  void begin_job() { known_.clear(); }

 private:
  void on_payload(runtime::rank_id rank, const actors::payload_seen& seen) override;
  // Op, generation, tag (in a gather the member's place), invocation.
  using key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t>;
  struct payload {
    runtime::rank_id rank = 0;  // where it was seen first
    std::uint64_t bytes = 0;
    std::uint64_t hash = 0;
  };
  /// Called while rank `at` lives.
  std::string title_of(runtime::rank_id at, std::uint64_t op) const;
  std::function<void(std::string)> differs_;
  std::map<runtime::rank_id, const ops::rank*> ranks_;
  std::map<key, payload> known_;
};

}  // namespace parley::simulation
