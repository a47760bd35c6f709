#pragma once
/// Checkers that read only the messages between ranks (promises, leases, stamps), not the state of ranks.
///
///     watchers all([&](std::string_view invariant, std::string text) { … }, window);
///     weather.tap(all);                                   // after the mutants, so that it sees what they changed
///
/// | invariant | must not be seen |
/// |---|---|
/// | S1 | two stamps that give one invocation different configs, or two logs that differ in one entry |
/// | S7 | two promises for one campaign that differ |
/// | queues | more control messages from one rank to another than the window allows, by the acceptances that the sender has received |
#include <parley/actors/leases/lease.hpp>
#include <parley/simulation/world/weather.hpp>

#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace parley::simulation {

class watchers final : public wire_tap {
 public:
  watchers(std::function<void(std::string_view, std::string)> tell, std::uint32_t window)
      : tell_(std::move(tell)), window_(window) {}
  void on_send(const parcel& p, const fate&) override;
  bool on_deliver(parcel& p) override;
  /// A new job begins: messages of earlier jobs no longer count.
  void begin_job();

 private:
  void on_data(const parcel& p);
  void on_accepted(const parcel& p, std::uint32_t accepted);
  void on_log(const parcel& p, std::uint64_t op, std::uint64_t generation, std::uint32_t key, std::uint64_t after,
              const std::vector<actors::lease_entry>& entries);
  void check(rank_id from, std::string_view invariant, bool holds, const std::string& text);

  // Control messages from one process to another: how many it sent, and how many of them it knows to be accepted.
  struct way {
    std::uint64_t session = 0;
    std::uint32_t sent = 0;
    std::uint32_t accepted = 0;
  };

  std::function<void(std::string_view, std::string)> tell_;
  std::uint32_t window_;
  std::map<std::pair<rank_id, rank_id>, way> ways_;
  // (invocation, digest) pairs in the order of invocations, by op, generation, source, tag and whether they are rehearsals.
  using stamped_stream = std::tuple<std::uint64_t, std::uint64_t, rank_id, std::uint32_t, bool>;
  boost::unordered_flat_map<stamped_stream, std::vector<std::pair<std::uint32_t, std::uint64_t>>,
                            boost::hash<stamped_stream>>
      stamped_;
  // Log entries, by op, generation, key and place in the log.
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t>, actors::lease_entry> logs_;
  // The promised invocation, by op, generation, key, campaign and rank.
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, std::uint64_t, rank_id>, std::uint64_t> promised_;
};

}  // namespace parley::simulation
