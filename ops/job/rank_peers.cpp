#include <parley/ops/job/rank_peers.hpp>

#include <parley/actors/membership/losses.hpp>
#include <parley/rank.hpp>

namespace parley::ops {

using actors::departure;
using actors::effect;
using actors::evidence;

void rank_peers::begin(rank_id world_size, rank& self) {
  self_ = &self;
  world_size_ = world_size;
  peers_.emplace(world_size, self.id(), *this);
}

void rank_peers::end() noexcept {
  peers_.reset();
  self_ = nullptr;
}

void rank_peers::hear_left(rank_id left, const runtime::root_cause& why) {
  const bool in_peace = why.what.empty();
  peers_->hear(left, in_peace ? evidence::said_goodbye : evidence::said_error, {why.what, why});
}

void rank_peers::tell_ops(rank_id peer, effect how, const actors::peer_report& what) noexcept {
  switch (how) {
    case effect::tell_returned: return self_->on_lost(peer, {}, departure::returned);
    case effect::tell_ended: return self_->on_ended(peer, what.began_with);
    case effect::tell_cut_off: return self_->on_lost(peer, torn_down, departure::cut_off);
    case effect::tell_vanished: return self_->on_lost(peer, what.why, departure::vanished);
    default: return self_->on_lost(peer, what.why);
  }
}

bool rank_peers::take_in(rank_id peer) {
  const auto incarnation = meet(peer);
  if (!incarnation) return false;
  self_->on_restarted(peer, *incarnation);
  return true;
}

void rank_peers::end_fenced(const std::string& why) noexcept {
  for (rank_id peer = 0; peer < world_size_; ++peer) {
    if (peer != self_->id()) close_link(peer);
  }
  self_->on_fenced(why);
}

}  // namespace parley::ops
