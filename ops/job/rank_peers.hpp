#pragma once
/// Applies the effects of membership to a rank: the ops with a peer end or continue with a newer process, or all ops end. A derived class
/// has the links, the page of the heartbeat and the rendezvous: a job of processes (run.cpp), or a simulated one.
///
///     struct node final : rank_peers { … };                  // implements how a link is closed, and so on
///     n.begin(world_size, rank);
///     n.peers().hear(2, evidence::said_dead, {"it was killed"});
///     n.hear_left(1, why);                                   // rank 1 has left, and said why
///
/// Internal to ops and to the simulation.
#include <parley/actors/membership/membership.hpp>
#include <parley/identifiers.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace parley::ops {

class rank;

class rank_peers : public actors::membership::outside {
 public:
  using rank_id = runtime::rank_id;

  /// Call it once per process of the rank. The rank must outlive this object, unless `end` is called before.
  void begin(rank_id world_size, rank& self);
  void end() noexcept;
  bool begun() const noexcept { return self_ != nullptr; }
  actors::membership& peers() noexcept { return *peers_; }
  const actors::membership& peers() const noexcept { return *peers_; }
  /// Call it when `left` has left. `why` is the cause that it named; its text is empty if the rank returned.
  void hear_left(rank_id left, const runtime::root_cause& why);

  static constexpr const char* torn_down =
      "a call of this rank was destroyed while its message to or from that rank was in flight";

 protected:
  ~rank_peers() = default;
  /// Connects the link and the heartbeat to the newer process in that place, and returns its incarnation; nothing: it has no address.
  virtual std::optional<std::uint64_t> meet(rank_id peer) = 0;

 private:
  void tell_ops(rank_id peer, actors::effect how, const actors::peer_report& what) noexcept final;
  bool take_in(rank_id peer) final;
  void end_fenced(const std::string& why) noexcept final;

  rank* self_ = nullptr;
  rank_id world_size_ = 0;
  std::optional<actors::membership> peers_;
};

}  // namespace parley::ops
