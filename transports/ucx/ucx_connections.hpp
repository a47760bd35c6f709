#pragma once
/// The connections of a link to its peers: how each one begins, breaks and is buried. Internal to transports/.
///
///     unknown ──introduce──▶ known ──open──▶ connected
///        │                     │                 │
///        └────────break_off────┴────break_off────┴──▶ dying ──bury──▶ failed ──introduce──▶ known
///
/// - `introduce` sets the peer's address or, if the peer has failed, the address of the newer process in its place.
/// - `open` makes the endpoint, at the first use of the peer.
/// - UCX, the program, or a failed `open` reports a connection as broken. The next `poll` breaks it off, which closes the
///   endpoint. If memory that UCX still uses is about to be freed, the link breaks the connection off at once.
/// - A dying connection waits until UCX has ended the operations in flight, for at most `burial_time`, and until the
///   peer's last words have arrived, for at most a second; both times start at the break-off. Then the link ends all
///   remaining operations with the peer, and buries the connection.
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

/// The connection to the process that holds one rank's place. Only `ucx_connections` changes it.
class ucx_connection {
 public:
  enum class stage : std::uint8_t { unknown, known, connected, dying, failed };

  runtime::rank_id peer() const noexcept { return peer_; }
  /// Null unless the connection is open and UCX has not reported its failure.
  ucp_ep_h endpoint() const noexcept { return endpoint_; }
  /// True if a network card reaches the peer's memory. Valid once the connection is open.
  bool is_direct() const noexcept { return direct_; }

 private:
  friend class ucx_connections;
  using clock = std::chrono::steady_clock;

  ucp_ep_h endpoint_ = nullptr;  // all that the send path reads
  ucx_connections* all_ = nullptr;
  runtime::rank_id peer_ = ucx_origin::nobody;
  std::uint32_t restarts_ = 0;
  stage stage_ = stage::unknown;
  bool direct_ = false;
  bool cut_ = false;
  ucp_ep_h broken_ = nullptr;  // the endpoint, once UCX has reported its failure
  std::vector<std::byte> address_;
  clock::time_point unended_until_{};  // until then operations that UCX has not ended delay the burial
  clock::time_point word_until_{};     // until then the peer's last words delay the burial
  clock::time_point next_look_{};      // when to ask again whether last words are due
};

class ucx_connections {
 public:
  using errc = runtime::errc;
  using rank_id = runtime::rank_id;
  using stage = ucx_connection::stage;

  /// How long UCX gets to end operations with a dead peer by itself.
  static constexpr std::chrono::milliseconds burial_time{100};

  /// Sets `news` to true when `poll` has work here.
  ucx_connections(ucp_worker_h worker, rank_id self, rank_id world_size, bool& news);
  ucx_connections(const ucx_connections&) = delete;
  ucx_connections& operator=(const ucx_connections&) = delete;

  /// True if there is such a rank. The functions below need a valid rank.
  bool has(rank_id peer) const noexcept { return peer < world_size_; }
  ucx_connection& operator[](rank_id peer) noexcept { return connections_[peer]; }
  const ucx_connection& operator[](rank_id peer) const noexcept { return connections_[peer]; }
  /// True if the connection is dying or failed.
  bool is_gone(rank_id peer) const noexcept { return has(peer) && connections_[peer].stage_ >= stage::dying; }
  bool has_failed(rank_id peer) const noexcept { return has(peer) && connections_[peer].stage_ == stage::failed; }
  /// True if this rank itself broke the connection.
  bool was_cut(rank_id peer) const noexcept { return has(peer) && connections_[peer].cut_; }
  /// True if a message comes from a process that a newer one has replaced.
  bool is_late(const ucx_origin& from) const noexcept {
    return has(from.rank) && from.restarts < connections_[from.rank].restarts_;
  }
  /// True if a message comes from a process that `introduce` has not named yet.
  bool is_early(const ucx_origin& from) const noexcept {
    return has(from.rank) && from.restarts > connections_[from.rank].restarts_;
  }

  // Beginning.
  /// As `ucx_link::connect`.
  void introduce(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts);
  /// Makes the endpoint if there is none. `bad_argument` if the peer is unknown, `peer_failed` if the connection has
  /// broken.
  errc open(ucx_connection& to) {
    if (to.endpoint_ != nullptr) [[likely]]
      return errc::none;
    return make_endpoint(to);
  }

  // Breaking.
  void report_broken(rank_id peer);
  void break_off(ucx_connection& broken);
  /// Breaks off a connection whose peer may be healthy.
  void cut(ucx_connection& still_good);
  /// True if the connection is dying. `outcome` is that of one of its operations: if it shows that the endpoint has
  /// failed, this breaks the connection off.
  bool is_dying_by(ucx_connection& with, ucs_status_t outcome);

  // Burial.
  bool any_to_bury() const noexcept { return !broken_.empty() || !dying_.empty(); }
  /// Breaks off the connections that were reported broken; returns whether there were any.
  bool break_off_reported();
  bool any_dying() const noexcept { return !dying_.empty(); }
  std::vector<rank_id> take_dying() noexcept { return std::exchange(dying_, {}); }
  /// For a connection from `take_dying`: true if its burial must wait. Then puts it back among the dying connections.
  bool goes_on_dying(ucx_connection& taken, bool has_unended);
  void bury(ucx_connection& dead) noexcept { dead.stage_ = stage::failed; }
  /// As `ucx_link::ask_for_last_words`.
  void ask_for_last_words(std::function<bool(rank_id)> is_due) { is_word_due_ = std::move(is_due); }

  // The end of the link.
  /// Begins to close all endpoints.
  void close();
  bool is_closed() const;
  /// Frees UCX's requests for closing.
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
  std::vector<ucx_connection> connections_;  // never grows after construction: UCX holds pointers to its elements
  std::vector<rank_id> broken_;
  std::vector<rank_id> dying_;
  std::vector<void*> closing_;
  std::function<bool(rank_id)> is_word_due_;
};

}  // namespace parley::transports
