#pragma once
/// What effects of membership do to a rank: the ops with a peer end, go on with a newer process, or all end. Links, the page of the
/// heartbeat and the rendezvous are for whoever derives from it: a job of processes (run.cpp), or a simulated one.
///
///     struct node final : rank_peers { … };                  // says how a link is closed, and so on
///     n.begin(world_size, rank);
///     n.peers().hear(2, evidence::said_dead, {"it was killed"});
///     n.hear_left(1, why);                                   // what it said as it left
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

  /// Once per process of the rank, which outlives this or is `end`ed before.
  void begin(rank_id world_size, rank& self);
  void end() noexcept;
  bool begun() const noexcept { return self_ != nullptr; }
  actors::membership& peers() noexcept { return *peers_; }
  const actors::membership& peers() const noexcept { return *peers_; }
  /// `left` has said what it ends because of; nothing where it has returned.
  void hear_left(rank_id left, const runtime::root_cause& why);

  static constexpr const char* torn_down = "a message to or from it was under way when its call was torn down here";

 protected:
  ~rank_peers() = default;
  /// Has the link and the heartbeat go on with the newer process in that place, and returns its incarnation; nothing: it has no address.
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
