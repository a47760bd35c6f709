#pragma once
/// Which ranks of the job are still there, as one rank knows it: takes evidence, keeps the standing of each peer (standing.hpp), and does
/// what follows. It knows no link, no heartbeat and no rendezvous: these hand in evidence, and `outside` does what the effects say.
///
///     membership peers(world_size, self, outside);
///     peers.hear(2, evidence::said_dead, {"it was killed"});
///     peers.of(2);                                             // standing::lost
///
/// A rank that the others hold dead hears nothing more: the first evidence after that ends all of its ops with `fenced`, once. Evidence
/// about the rank itself, of a newer process in its place, means the same. Nor does a rank hear anything once it `leaves`.
#include <parley/actors/membership/standing.hpp>
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::actors {

/// What evidence says in words; where the peer ended with an error, also what that began with.
struct peer_report {
  std::string why{};
  runtime::root_cause began_with{};
};

class membership {
 public:
  using rank_id = runtime::rank_id;

  /// What the effects act on. Calls may hand in further evidence.
  struct outside {
    virtual void close_link(rank_id peer) noexcept = 0;
    /// Whether the link is done with the process that it knows in that place.
    virtual bool link_is_down(rank_id peer) const noexcept = 0;
    /// Looks for its last messages, and then says `goodbye_is_over`.
    virtual void await_goodbye(rank_id peer) = 0;
    /// Ends the ops of this rank with it. `how` is one of the effects that tell.
    virtual void tell_ops(rank_id peer, effect how, const peer_report& what) noexcept = 0;
    virtual void publish_death(rank_id peer) noexcept = 0;
    /// Those of this host that its ranks hold dead, and why, as the page of the heartbeat says.
    virtual std::vector<std::pair<rank_id, std::string>> verdicts() const = 0;
    virtual void pass_on(rank_id dead, const std::string& why) = 0;
    /// Connects to the newer process and lets ops go on; false: that process has no address that the link can use.
    virtual bool take_in(rank_id peer) = 0;
    /// Why the others hold this rank dead; empty: they do not.
    virtual std::string why_fenced() const = 0;
    /// All its connections and ops end.
    virtual void end_fenced(const std::string& why) noexcept = 0;

   protected:
    ~outside() = default;
  };

  /// The table; a test may break it.
  using rules = step (*)(standing now, evidence of) noexcept;

  membership(rank_id world_size, rank_id self, outside& out, rules table = &next)
      : out_(out), self_(self), next_(table), peers_(world_size) {}

  void hear(rank_id peer, evidence of, const peer_report& what = {});
  /// Verdicts of the page, which others have published.
  void hear_verdicts();
  /// Ends this rank's ops if the others hold it dead.
  bool see_whether_fenced();
  /// This rank has said that it ends, so the others close their connections to it. It must not hold them dead for that.
  void leave() noexcept { is_over_ = true; }
  standing of(rank_id peer) const noexcept { return peers_[peer]; }

 private:
  void act(rank_id peer, effect does, const peer_report& what);
  void end_fenced(const std::string& why);

  outside& out_;
  rank_id self_;
  rules next_;
  bool is_over_ = false;
  std::vector<standing> peers_;
};

}  // namespace parley::actors
