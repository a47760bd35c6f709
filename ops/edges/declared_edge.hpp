#pragma once
/// An edge as it was declared. Its state (actors, offers, searches) is made on first use on this rank: by a call, or when data or an offer
/// arrives for it. An unused edge sends nothing and stays small, so that a program can declare thousands of ops. (The rank makes its
/// first few edges at once, so that they meet their peers before their first call.)
///
///     declared_edge e(rank, options, declared_edge::end::out);
///     e.out().send(…);                   // the first use makes it
///
/// Messages that arrive before the first use are not lost. Data that arrives makes the receiver and is passed on to it. An offer is held
/// back until the coordinator exists.
///
/// When its peer comes back as a new process, `renew` makes the edge again, in the next generation: numbers, credits and decisions of the
/// old generation no longer count. Messages that arrived early for the new generation are passed on to it. Calls in flight keep the old
/// end, which has failed and lives as long as its rank. If the op's edges restart together (`edge_options::restart_group`), the edge
/// waits for the op's `rejoin` instead.
#include <parley/actors/services.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace parley::ops {

/// The services that a declared edge needs from its rank.
struct edge_host {
  virtual rank_id id() const noexcept = 0;
  virtual runtime::executor& where() const noexcept = 0;
  virtual actors::data_hub& data() noexcept = 0;
  virtual runtime::router& mail() noexcept = 0;
  virtual actors::services& services() noexcept = 0;
  /// Expires when the rank ends.
  virtual std::weak_ptr<bool> alive() const noexcept = 0;
  /// Make an end, which the rank keeps.
  virtual edge_out& add_out(edge_options o) = 0;
  virtual edge_in& add_in(edge_options o) = 0;
  /// Marks an end of a past generation. Some of its calls may still be ending.
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
  /// The error that ended it; null: it has not failed, or has not been used.
  const runtime::error* failed() const noexcept { return made() && mine()->failed() ? &*mine()->failed() : nullptr; }
  /// See `transfer::copied_bytes`; counts the current generation.
  std::uint64_t copied_bytes() const noexcept {
    return (out_ == nullptr ? 0 : out_->copied_bytes()) +
           (in_ == nullptr ? 0 : in_->receiver().statistics().copied_bytes);
  }
  /// Makes its end now, before its first use.
  void make();
  /// Call it once the rank knows the new incarnation of the peer, or of another rank of the op. An edge that was never used has nothing to
  /// renew. If the new end cannot be made now, the next use makes it.
  void renew();
  /// Call it before the rank knows of a restart. If the op's edges restart together, this makes the end of an unused edge, and that end
  /// then fails. Otherwise a first use between the restart and `rejoin` would be a call ahead of the other ranks.
  void before_restart_of(rank_id r);
  /// The peer has restarted.
  void on_restarted() noexcept {
    if (coupled() == nullptr) renew_or_warn();
  }
  /// Renews it if its generation has ended; otherwise returns false.
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
  edge_end* former_ = nullptr;  // the rank owns it; the next end takes over its memory
  edge_out* out_ = nullptr;     // the rank owns it
  edge_in* in_ = nullptr;
  std::uint64_t id_;
  std::unique_ptr<edge_options> options_;  // until its end is made
};

}  // namespace parley::ops
