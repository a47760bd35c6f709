#include <parley/actors/membership/membership.hpp>

#include <initializer_list>
#include <utility>

namespace parley::actors {

void membership::hear(rank_id peer, evidence of, const peer_report& what) {
  if (is_over_) return;
  if (peer == self_) return end_fenced(what.why);  // a newer process has taken this rank's place
  // A rank that was declared dead and continues sees broken connections, and ranks that ended because of it, before it receives the reason.
  const bool is_of_itself = of == evidence::said_goodbye || of == evidence::newer_process;
  if (!is_of_itself && see_whether_fenced()) return;
  const step s = next_(peers_[peer], of);
  peers_[peer] = s.to;
  act(peer, s.does, what);
  if (of == evidence::newer_process && out_.link_is_down(peer)) hear(peer, evidence::link_broke);
}

// Closes the link before the ops end: calls return their buffers when the peer is declared dead, and from then on the peer must not be able
// to read them.
void membership::act(rank_id peer, effect does, const peer_report& what) {
  peer_report said = what;
  effect tells = does;
  // All ranks of a host must give the same reason, and a rank that ended because of a death is not its cause. So the published verdicts are
  // read first.
  if (has(does, effect::publish)) {
    out_.publish_death(peer);
    for (auto& [dead, why] : out_.verdicts()) {
      if (dead != peer) {
        hear(dead, evidence::verdict, {why, {}});
      } else {
        said.why = why;
        if (has(does, effect::tell_vanished)) tells = effect::tell_dead;
      }
    }
  }
  if (has(does, effect::close_link)) out_.close_link(peer);
  if (has(does, effect::await_goodbye)) out_.await_goodbye(peer);
  for (const effect how :
       {effect::tell_returned, effect::tell_ended, effect::tell_cut_off, effect::tell_vanished, effect::tell_dead}) {
    if (has(tells, how)) out_.tell_ops(peer, how, said);
  }
  if (has(does, effect::pass_on)) out_.pass_on(peer, what.why);
  if (has(does, effect::take_in) && !out_.take_in(peer)) hear(peer, evidence::no_address);
}

void membership::hear_verdicts() {
  for (const auto& [dead, why] : out_.verdicts()) hear(dead, evidence::verdict, {why, {}});
}

bool membership::see_whether_fenced() {
  const std::string why = out_.why_fenced();
  if (why.empty()) return false;
  end_fenced(why);
  return true;
}

void membership::end_fenced(const std::string& why) {
  if (!std::exchange(is_over_, true)) out_.end_fenced(why);
}

}  // namespace parley::actors
