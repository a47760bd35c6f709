#pragma once
/// The sends, fetches and one-sided transfers of a link that are in flight in UCX. Each uses a record from a pool.
/// Internal to transports/.
///
///     ucx_operation& sending = operations.make(peer, done);
///     const auto param = ucx_operations::tell_of_send(sending);            // UCX's callback finds the record again
///     return operations.start(sending, ucp_put_nbx(…, &param));            // returns what `link::send` returns
///     operations.for_each_ended([&](ucx_operation& ended) { operations.end(ended, peer_is_gone); });   // from `poll`
///
/// UCX's callback stores the outcome and appends the record to a queue, nothing else. The completion is called from
/// `poll`. If the peer's death ended an operation, the link may leave it to `end_all`, which it calls when it buries the
/// peer (ucx_connections.hpp).
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/transports/ucx/ucx_framing.hpp>
#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace parley::transports {

class ucx_operations;

struct ucx_operation : runtime::list_hook {
  bool is_unended() const noexcept { return outcome == UCS_INPROGRESS; }

  ucx_operations* pool = nullptr;  // null once the link is closed
  runtime::completion* done = nullptr;
  void* request = nullptr;  // UCX's
  runtime::rank_id peer = ucx_origin::nobody;
  ucx_origin to_come;      // for a fetch: the sending process, if `connect` has not named it yet
  bool put = false;        // a put is never cancelled, because its target counts it
  bool cancelled = false;  // by this rank
  ucs_status_t outcome = UCS_OK;
  std::array<std::byte, max_framed_header_bytes> header;
  std::vector<std::byte> copy;  // the payload, if UCX sends it from here
};

/// The link's error code for a status of UCX.
inline runtime::errc translate(ucs_status_t status) noexcept {
  using runtime::errc;
  switch (status) {
    case UCS_OK: return errc::none;
    case UCS_ERR_CANCELED: return errc::cancelled;
    case UCS_ERR_NO_MEMORY: return errc::unavailable;
    case UCS_ERR_INVALID_PARAM: return errc::bad_argument;
    case UCS_ERR_MESSAGE_TRUNCATED:
    case UCS_ERR_BUFFER_TOO_SMALL: return errc::buffer_too_small;
    default: return errc::peer_failed;
  }
}

class ucx_operations {
 public:
  using completion = runtime::completion;
  using errc = runtime::errc;
  using rank_id = runtime::rank_id;

  /// Sets `news` to true when `poll` has work here.
  explicit ucx_operations(bool& news) noexcept : news_(news) {}
  ucx_operations(const ucx_operations&) = delete;
  ucx_operations& operator=(const ucx_operations&) = delete;

  // Starting.
  ucx_operation& make(rank_id peer, completion* done);
  static ucp_request_param_t tell_of_send(ucx_operation& made) noexcept;  ///< also of puts, gets and flushes
  static ucp_request_param_t tell_of_fetch(ucx_operation& made) noexcept;
  /// `request` is what UCX's call returned. Returns `pending` if UCX continues the operation. Otherwise the record is
  /// free again, and this returns `none` if the operation is complete, or the reason why UCX refused it.
  errc start(ucx_operation& made, void* request) noexcept;

  // Finding.
  /// The first operation that UCX has not ended and for which `is` holds; null if there is none.
  template <class Is>
  ucx_operation* find_unended(Is&& is) {
    return pending_.find_if([&](const ucx_operation& at) { return at.is_unended() && is(at); });
  }
  bool has_unended(rank_id peer) {
    return find_unended([&](const ucx_operation& at) { return at.peer == peer; }) != nullptr;
  }
  /// Call it when the process with that restart count has taken the peer's place. Fetches from that process that started
  /// before `connect` named it will now end when the peer fails; returns true if there are any. Fetches from earlier
  /// processes that were never named do not end by themselves: `end_stranded` ends them.
  bool adopt(rank_id peer, std::uint32_t restarts);

  // Ending. Completions may start and end other operations.
  /// Calls `visit` for each operation that UCX has ended since the last call. One that `visit` does not end stays here
  /// until `end_all`.
  template <class Visit>
  void for_each_ended(Visit&& visit) {
    if (ended_.empty()) return;
    in_ending_.swap(ended_);
    for (ucx_operation* const ended : in_ending_) visit(*ended);
    in_ending_.clear();
  }
  /// For an operation that UCX has ended: calls its completion and frees the record.
  void end(ucx_operation& ended, bool peer_is_gone);
  bool any_stranded() const noexcept { return !stranded_.empty(); }
  void end_stranded() noexcept;
  /// For a send whose payload UCX has from the copy: the next `end_stranded` ends it with `cancelled`, and UCX may still send the copy.
  void let_go(ucx_operation& sending);
  /// Ends all operations with a peer that is gone.
  void end_all(rank_id peer);
  /// Called when the link ends: operations in flight end with `closed`. UCX may still call back until its worker is
  /// destroyed, so this object must outlive the worker.
  void close() noexcept;

 private:
  static constexpr std::size_t kept_copy_bytes = 64 * 1024;

  static ucp_request_param_t tell(ucx_operation& made) noexcept;
  static void on_sent(void* request, ucs_status_t outcome, void* of);
  static void on_fetched(void* request, ucs_status_t outcome, std::size_t length, void* of);
  /// Calls the completion of an operation that UCX has not ended. The record stays until UCX ends the operation.
  static void end_early(ucx_operation& left) noexcept;
  void add_record();
  void recycle(ucx_operation& used) noexcept;

  bool& news_;
  std::deque<ucx_operation> records_;
  std::vector<ucx_operation*> spare_;
  runtime::intrusive_list<ucx_operation> pending_;  // from `start` until `end`, which is later than UCX's own end
  std::vector<ucx_operation*> ended_;
  std::vector<ucx_operation*> in_ending_;
  // End before UCX ends them: fetches from processes that were replaced before `connect` named them, and sends that were let go.
  std::vector<ucx_operation*> stranded_;
};

inline ucx_operation& ucx_operations::make(rank_id peer, completion* done) {
  if (spare_.empty()) [[unlikely]]
    add_record();
  ucx_operation& made = *spare_.back();
  spare_.pop_back();
  made.peer = peer;
  made.done = done;
  return made;
}

inline void ucx_operations::recycle(ucx_operation& used) noexcept {
  used.done = nullptr;
  used.request = nullptr;
  used.peer = ucx_origin::nobody;
  used.to_come = {};
  used.put = used.cancelled = false;
  used.copy.clear();
  if (used.copy.capacity() > kept_copy_bytes) std::vector<std::byte>().swap(used.copy);
  if (!stranded_.empty()) [[unlikely]]
    std::erase(stranded_, &used);
  spare_.push_back(&used);  // does not allocate: `add_record` has reserved the room
}

inline ucp_request_param_t ucx_operations::tell(ucx_operation& made) noexcept {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = &made;
  return param;
}

inline ucp_request_param_t ucx_operations::tell_of_send(ucx_operation& made) noexcept {
  ucp_request_param_t param = tell(made);
  param.cb.send = &on_sent;
  return param;
}

inline ucp_request_param_t ucx_operations::tell_of_fetch(ucx_operation& made) noexcept {
  ucp_request_param_t param = tell(made);
  param.cb.recv_am = &on_fetched;
  return param;
}

inline runtime::errc ucx_operations::start(ucx_operation& made, void* request) noexcept {
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    recycle(made);
    return request == nullptr ? errc::none : translate(UCS_PTR_STATUS(request));
  }
  made.request = request;
  made.outcome = UCS_INPROGRESS;
  pending_.push_back(made);
  return errc::pending;
}

inline void ucx_operations::end(ucx_operation& ended, bool peer_is_gone) {
  ucp_request_free(ended.request);
  ended.unlink();
  completion* const done = ended.done;
  errc outcome = translate(ended.outcome);
  // UCX also reports `cancelled` for operations that it purges from a failed endpoint, before it reports that the
  // endpoint has failed.
  if (outcome == errc::cancelled && (!ended.cancelled || peer_is_gone)) outcome = errc::peer_failed;
  recycle(ended);
  if (done != nullptr) done->on_end(*done, outcome);
}

}  // namespace parley::transports
