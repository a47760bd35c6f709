#pragma once
/// The connections of a link to its peers: how each begins, breaks and is buried. Internal to transports/.
///
///     unknown ──introduce──▶ known ──open──▶ connected
///        │                     │                 │
///        └────────break_off────┴────break_off────┴──▶ dying ──bury──▶ failed ──introduce──▶ known
///
/// - `introduce` names the peer's address; of a peer that has failed, the address of a newer process in its place.
/// - `open` makes the endpoint, at the first use of the peer.
/// - A connection is reported broken by UCX, by the program, or by a failed `open`. The next `poll` breaks it off,
///   which closes the endpoint. Where memory is about to go that UCX still uses, the link breaks it off at once.
/// - A dying connection waits until UCX has ended what was under way, for `burial_time` at most, and then for what the
///   peer itself is about to say, for a second at most. When nothing keeps it dying any more, the link ends what is
///   left with the peer, and buries it.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/ucx/ucx_framing.hpp>
#include <ucp/api/ucp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace parley::transports {

class ucx_connections;

/// The connection to the process in one rank's place. `ucx_connections` alone changes it.
class ucx_connection {
 public:
  enum class stage : std::uint8_t { unknown, known, connected, dying, failed };

  runtime::rank_id peer() const noexcept { return peer_; }
  /// Null unless it is connected, or if UCX has said that it failed.
  ucp_ep_h endpoint() const noexcept { return endpoint_; }
  /// Whether a card reaches the peer's memory. Known once the connection is open.
  bool is_direct() const noexcept { return direct_; }

 private:
  friend class ucx_connections;
  using clock = std::chrono::steady_clock;

  ucp_ep_h endpoint_ = nullptr;  // the send path looks at nothing else
  ucx_connections* all_ = nullptr;
  runtime::rank_id peer_ = ucx_origin::nobody;
  std::uint32_t restarts_ = 0;
  stage stage_ = stage::unknown;
  bool direct_ = false;
  bool cut_ = false;
  ucp_ep_h broken_ = nullptr;  // the endpoint, once UCX has said that it failed
  std::vector<std::byte> address_;
  clock::time_point unended_until_{};  // how long operations that UCX has not ended keep it dying
  clock::time_point word_until_{};     // how long the peer's word keeps it dying
  clock::time_point next_look_{};      // when to ask again whether the peer's word is due
};

class ucx_connections {
 public:
  using errc = runtime::errc;
  using rank_id = runtime::rank_id;
  using stage = ucx_connection::stage;

  /// How long UCX gets to end by itself what a dead peer left behind.
  static constexpr std::chrono::milliseconds burial_time{100};

  /// Of a rank in a world of that size. `news` becomes true when `poll` has something to do here.
  ucx_connections(ucp_worker_h worker, rank_id self, rank_id world_size, bool& news);
  ucx_connections(const ucx_connections&) = delete;
  ucx_connections& operator=(const ucx_connections&) = delete;

  /// Whether there is such a rank. The functions below that take a connection need one.
  bool has(rank_id peer) const noexcept { return peer < world_size_; }
  ucx_connection& operator[](rank_id peer) noexcept { return connections_[peer]; }
  const ucx_connection& operator[](rank_id peer) const noexcept { return connections_[peer]; }
  /// Dying or failed.
  bool is_gone(rank_id peer) const noexcept { return has(peer) && connections_[peer].stage_ >= stage::dying; }
  bool has_failed(rank_id peer) const noexcept { return has(peer) && connections_[peer].stage_ == stage::failed; }
  /// Whether this rank has broken it itself.
  bool was_cut(rank_id peer) const noexcept { return has(peer) && connections_[peer].cut_; }
  /// Of a process whose place another one has taken.
  bool is_late(const ucx_origin& from) const noexcept {
    return has(from.rank) && from.restarts < connections_[from.rank].restarts_;
  }
  /// Of a process that `introduce` has not named yet.
  bool is_early(const ucx_origin& from) const noexcept {
    return has(from.rank) && from.restarts > connections_[from.rank].restarts_;
  }

  // How it begins.
  /// As `ucx_link::connect`.
  void introduce(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts);
  /// Makes sure that there is an endpoint. `bad_argument` if the peer is unknown, `peer_failed` if the connection has
  /// broken.
  errc open(ucx_connection& to) {
    if (to.endpoint_ != nullptr) [[likely]]
      return errc::none;
    return make_endpoint(to);
  }

  // How it breaks.
  void report_broken(rank_id peer);
  void break_off(ucx_connection& broken);
  /// Breaks off one that may be as good as ever.
  void cut(ucx_connection& still_good);
  /// Whether it is dying, after UCX has ended one of its operations so.
  bool is_dying_by(ucx_connection& with, ucs_status_t outcome);

  // How it is buried.
  bool any_to_bury() const noexcept { return !broken_.empty() || !dying_.empty(); }
  /// Breaks off those that were reported broken; whether there were any.
  bool break_off_reported();
  bool any_dying() const noexcept { return !dying_.empty(); }
  std::vector<rank_id> take_dying() noexcept { return std::exchange(dying_, {}); }
  /// Of one that was taken: whether it has to wait longer, and is among the dying again.
  bool goes_on_dying(ucx_connection& taken, bool has_unended);
  void bury(ucx_connection& dead) noexcept { dead.stage_ = stage::failed; }
  /// As `ucx_link::ask_for_last_words`.
  void ask_for_last_words(std::function<bool(rank_id)> is_due) { is_word_due_ = std::move(is_due); }

  // The link ends.
  /// Begins to close all endpoints.
  void close();
  bool is_closed() const;
  /// Gives UCX its requests back.
  void forget_closed();

 private:
  using clock = ucx_connection::clock;

  static void on_endpoint_error(void* connection, ucp_ep_h endpoint, ucs_status_t reason);
  errc make_endpoint(ucx_connection& to);
  void close_endpoint(ucp_ep_h endpoint, unsigned flags);
  bool is_word_due(ucx_connection& dying) noexcept;

  ucp_worker_h worker_;
  rank_id self_;
  rank_id world_size_;
  bool& news_;
  std::vector<ucx_connection> connections_;  // never grows after construction: UCX knows their addresses
  std::vector<rank_id> broken_;
  std::vector<rank_id> dying_;
  std::vector<void*> closing_;
  std::function<bool(rank_id)> is_word_due_;
};

}  // namespace parley::transports
