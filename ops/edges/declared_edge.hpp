#pragma once
/// An edge as it was declared. Its state (actors, offers, searches) is made when it is first used on this rank: by a call, by
/// data or by an offer that comes for it. One that nobody uses exchanges nothing and stays small, so that a program can
/// declare ops by the thousand. (The rank makes its first few at once, so that they know their peers before their first call.)
///
///     declared_edge e(rank, options, declared_edge::end::out);
///     e.out().send(…);                   // the first use makes it
///
/// What comes for it before is not lost: data goes on to the receiver that it makes; an offer is held back until the
/// coordinator is there.
///
/// When its peer comes back as a new process, `renew` makes it anew, in the next generation: nothing of the old one is numbered,
/// credited or decided any more. What came early for the new one goes on to it. Calls that are under way hold on to the old end,
/// which has failed and stays as long as its rank. One of an op whose edges begin anew together (`edge_options::restart_group`) waits for
/// the op's `rejoin`.
#include <parley/actors/services.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace parley::ops {

/// What a declared edge asks of the rank that it is on.
struct edge_host {
  virtual rank_id id() const noexcept = 0;
  virtual runtime::executor& where() const noexcept = 0;
  virtual actors::data_hub& data() noexcept = 0;
  virtual runtime::router& mail() noexcept = 0;
  virtual actors::services& services() noexcept = 0;
  /// Gone once the rank is.
  virtual std::weak_ptr<bool> alive() const noexcept = 0;
  /// Ends of the rank, which keeps them.
  virtual edge_out& add_out(edge_options o) = 0;
  virtual edge_in& add_in(edge_options o) = 0;
  /// Their generation has ended; calls may still be leaving them.
  virtual void put_aside(edge_end& ended) = 0;

 protected:
  ~edge_host() = default;
};

class declared_edge final : private actors::data_sink {
 public:
  enum class end : std::uint8_t { out, in };

  declared_edge(edge_host& on, edge_options o, end which);
  declared_edge(const declared_edge&) = delete;
  declared_edge& operator=(const declared_edge&) = delete;
  ~declared_edge();

  rank_id peer() const noexcept { return peer_; }
  std::uint64_t id() const noexcept { return id_; }
  std::string title() const;
  edge_out& out() {
    if (out_ == nullptr) make();
    return *out_;
  }
  edge_in& in() {
    if (in_ == nullptr) make();
    return *in_;
  }
  bool sends() const noexcept { return which_ == end::out; }
  edge_end& own_end() { return sends() ? static_cast<edge_end&>(out()) : in(); }
  /// What it has failed with; null: nothing, or it has not been used.
  const runtime::error* failed() const noexcept { return made() && mine()->failed() ? &*mine()->failed() : nullptr; }
  /// See `transfer::copied_bytes`; of the current generation.
  std::uint64_t copied_bytes() const noexcept {
    return (out_ == nullptr ? 0 : out_->copied_bytes()) +
           (in_ == nullptr ? 0 : in_->receiver().statistics().copied_bytes);
  }
  /// Without a first use.
  void make();
  /// After its rank knows the new incarnation of the peer, or of another rank of its op. One that was never used has nothing to
  /// renew. One that cannot be made now has no end until its next use.
  void renew();
  /// Before its rank knows of a restart. One of an op whose edges begin anew together has an end then, which fails: what is used first
  /// between that and `rejoin` would be a call ahead of the others.
  void before_restart_of(rank_id r);
  /// Of the peer's restart.
  void on_restarted() noexcept {
    if (coupled() == nullptr) renew_or_warn();
  }
  /// Renews it where its generation has ended; false where it has not.
  bool rejoin();

 private:
  bool made() const noexcept { return out_ != nullptr || in_ != nullptr; }
  edge_end* mine() const noexcept { return out_ != nullptr ? static_cast<edge_end*>(out_) : in_; }
  const std::vector<rank_id>* coupled() const noexcept {
    return made() ? mine()->options().restart_group.get() : options_->restart_group.get();
  }
  void make_soon();
  void make_end();
  void make_or_warn() noexcept;
  void renew_or_warn() noexcept;
  void warn_not_made() noexcept;
  void listen();
  void stop_listening();
  void on_data(const actors::stamp& s, runtime::arrival&& message) noexcept override;

  edge_host& host_;
  rank_id peer_;
  end which_;
  bool being_made_ = false;
  edge_end* former_ = nullptr;  // the rank's, whose memory the next one has yet to take over
  edge_out* out_ = nullptr;     // the rank's
  edge_in* in_ = nullptr;
  std::uint64_t id_;
  std::unique_ptr<edge_options> options_;  // until it is made
};

}  // namespace parley::ops
