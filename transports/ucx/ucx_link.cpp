#include <parley/transports/ucx/ucx_link.hpp>

#include <parley/runtime/fork_watch.hpp>
#include <parley/transports/ucx/carried_memory.hpp>
#include <parley/transports/ucx/lent_payloads.hpp>
#include <parley/transports/ucx/ucx_address.hpp>
#include <parley/transports/ucx/ucx_connections.hpp>
#include <parley/transports/ucx/ucx_framing.hpp>
#include <parley/transports/ucx/ucx_inbox.hpp>
#include <parley/transports/ucx/ucx_memory.hpp>
#include <parley/transports/ucx/ucx_operations.hpp>

#include <ucp/api/ucp.h>

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

namespace parley::transports {
namespace {

using clock = std::chrono::steady_clock;

using runtime::arrival;
using runtime::completion;
using runtime::errc;
using runtime::link;
using runtime::rank_id;

// How long `abandon` waits for UCX to end an operation with a living peer. Few programs compute for longer between two calls, and a rank
// must not wait for ever for a stopped process.
constexpr std::chrono::seconds longest_abandon{10};

/// Up to this size, copying a payload costs less than waiting until UCX has accepted it.
constexpr std::size_t copied_up_to_bytes = 2048;

/// Up to this size, a payload to a peer that may not have polled yet is copied.
constexpr std::size_t most_first_bytes = 64U << 20U;

}  // namespace

// In a forked child this state is leaked, not destroyed: the resources that it shares with other processes belong to the parent.
class ucx_link::state final : public runtime::fork_watch {
 public:
  state(ucx_link& owner, const options& chosen);
  ~state() override;

  void connect(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts);
  void give_up(rank_id peer);
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion* done);
  errc fetch(arrival&& message, std::span<std::byte> into, completion* done,
             ucs_memory_type_t where = UCS_MEMORY_TYPE_HOST);
  runtime::result<> moves_devices() const { return worker_->takes_devices(); }
  errc send_device(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                   completion* done);
  errc put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data, completion* done);
  errc get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done);
  errc fence(rank_id to, completion* done);
  errc announce(rank_id to, channel on, std::span<const std::byte> header, completion* done);
  runtime::exposed_memory expose(std::span<std::byte> memory);
  runtime::late_writes withdraw(std::uint64_t number);
  void cancel(completion& pending);
  void abandon(completion& pending);
  bool may_go_on(rank_id peer) const noexcept;
  void release(const void* held, bool remote) noexcept;
  bool poll();
  arm_state arm();
  void listen(channel on, handler* to);
  /// Accepts a message that carried_memory or lent_payloads unpacked from one of theirs.
  void take_in(channel on, arrival&& message);

  options chosen_;
  bool news_ = false;  // something other than the inbox may have work for `poll`
  std::optional<ucx_worker> worker_;
  ucx_connections connections_;
  ucx_operations operations_;
  std::optional<ucx_memory> memory_;
  std::optional<carried_memory> carried_;
  std::optional<lent_payloads> lent_;
  counters counted_;
  failure_handler* on_failure_ = nullptr;
  std::function<bool(rank_id)> lives_;  // empty: unknown

 private:
  struct listener {
    state* owner;
    channel on;
    ucx_framing as;
  };

  static ucs_status_t on_small_message(void* listener, const void* header, std::size_t header_length, void* data,
                                       std::size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t on_message(void* listener, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, const ucp_am_recv_param_t* param);

  void set_callbacks();
  bool may_lend(rank_id to, std::size_t bytes);
  errc send_with_record(const ucx_connection& to, channel on, std::span<const std::byte> header,
                        std::span<const std::byte> payload, completion* done,
                        ucs_memory_type_t where = UCS_MEMORY_TYPE_HOST);
  /// Starts a put, get or flush by `call(endpoint, key, param)`.
  template <class Call>
  errc start_one_sided(const ucx_connection& with, std::span<const std::byte> key, completion* done, Call call);
  /// The connection to the peer, opened if necessary.
  runtime::result<ucx_connection*> partner(rank_id with);
  /// True if UCX does puts and gets with that peer; otherwise messages carry them.
  bool is_direct(const ucx_connection& with) const noexcept {
    return chosen_.transfers == transfer_way::by_ucx || with.is_direct();
  }
  void deliver_arrivals();
  void deliver_the_rest();
  void hand_over(channel on, arrival&& message);
  void bury_the_dead();
  bool waits_for_burial(const ucx_operation& ended);
  ucx_operation* find_pending(const completion& done);
  void count_sent(channel on, std::size_t bytes) noexcept {
    ++counted_.sent[static_cast<std::size_t>(on)];
    counted_.payload_bytes_sent += bytes;
  }

  ucx_link& owner_;
  ucp_request_param_t at_once_{};
  bool delivering_ = false;    // `poll` may be called from a handler
  bool closing_down_ = false;  // handlers get no more messages
  std::array<handler*, channels> handlers_{};
  std::array<listener, channels * 2> listeners_;
  ucx_inbox arrived_;
  std::array<std::deque<arrival>, channels> unheard_;  // messages that arrived before the channel had a handler
  std::unordered_map<const void*, ucx_origin> origin_of_remote_;
  std::vector<bool> answered_;  // by rank: it has polled since this rank first sent it a payload
  std::uint64_t last_memory_ = 0;
};

ucx_link::state::state(ucx_link& owner, const options& chosen)
    : chosen_(chosen), worker_(std::in_place, chosen.reach, chosen.memory, chosen.keepalive_interval_ns),
      connections_(worker_->handle(), chosen.rank, chosen.world_size, news_), operations_(news_),
      memory_(std::in_place, worker_->context()), owner_(owner), answered_(chosen.world_size) {
  at_once_.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  at_once_.flags = UCP_AM_SEND_FLAG_EAGER;
  set_callbacks();
}

void ucx_link::state::set_callbacks() {
  for (const channel on : every_channel) {
    for (const ucx_framing as : {ucx_framing::plain, ucx_framing::with_origin}) {
      listener& own = listeners_[am_id(on, as)] = {this, on, as};
      ucp_am_handler_param_t param{};
      param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
      param.id = am_id(on, as);
      // With PERSISTENT_DATA a callback may always keep the data. Small messages are copied anyway, so their handler does not set
      // the flag, which saves UCX a descriptor.
      param.flags = UCP_AM_FLAG_WHOLE_MSG;
      if (as == ucx_framing::with_origin) param.flags |= UCP_AM_FLAG_PERSISTENT_DATA;
      param.cb = as == ucx_framing::plain ? &state::on_small_message : &state::on_message;
      param.arg = &own;
      const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->handle(), &param);
      if (status != UCS_OK) {
        runtime::raise(
            {errc::unavailable, std::string("UCX refused an active-message handler: ") + ucs_status_string(status)});
      }
    }
  }
}

ucx_link::state::~state() {
  const auto until = clock::now() + std::chrono::nanoseconds(chosen_.close_within_ns);
  delivering_ = closing_down_ = true;
  if (carried_) carried_->close();
  const auto progress_while = [&](auto&& unfinished) {
    while (unfinished() && clock::now() < until) {
      if (ucp_worker_progress(worker_->handle()) == 0) std::this_thread::yield();
    }
  };
  // From now on only messages about loans are handled. Payloads that other ranks lend are dropped, which ends their loans.
  const auto hear_of_loans = [&](channel on, arrival&& message) {
    if (on == channel::loans) lent_->on_arrival(std::move(message));
  };
  const auto unsent = [&] {
    arrived_.deliver(hear_of_loans);
    if (lent_->waits_for([this](rank_id peer) { return !connections_.is_gone(peer); })) return true;
    return operations_.find_unended([&](const ucx_operation& at) {
      return !connections_.is_gone(at.peer) && !(at.cancelled && at.done == nullptr);
    }) != nullptr;
  };
  progress_while(unsent);
  for (auto& kept : unheard_) kept.clear();
  arrived_.clear();
  lent_->close();

  connections_.close();
  progress_while([&] { return !connections_.is_closed(); });
  connections_.forget_closed();
  arrived_.clear();

  operations_.close();
  carried_.reset();
  lent_.reset();
  memory_->forget_all();
  memory_.reset();
  worker_.reset();  // before the records and queues that its callbacks use
}

void ucx_link::state::connect(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts) {
  connections_.introduce(peer, address, restarts);
  carried_->expect(peer, restarts);
  lent_->expect(peer, restarts);
  answered_[peer] = false;
  // Fetches from that process are in flight. Without an endpoint to it, UCX would not report its death.
  if (operations_.adopt(peer, restarts)) static_cast<void>(connections_.open(connections_[peer]));
}

void ucx_link::state::give_up(rank_id peer) {
  if (!connections_.has(peer) || connections_.is_gone(peer)) return;
  lent_->take_back_from(peer);
  connections_.report_broken(peer);
}

inline errc ucx_link::state::send(rank_id to, channel on, std::span<const std::byte> header,
                                  std::span<const std::byte> payload, completion* done) {
  if (!connections_.has(to) || header.size() > max_header_bytes) return errc::bad_argument;
  ucx_connection& peer = connections_[to];
  if (const errc opened = connections_.open(peer); opened != errc::none) [[unlikely]]
    return opened;
  if (header.size() + payload.size() <= arrival::inline_bytes) {
    void* const status = ucp_am_send_nbx(peer.endpoint(), am_id(on, ucx_framing::plain), header.data(), header.size(),
                                         payload.data(), payload.size(), &at_once_);
    if (status == nullptr) [[likely]] {
      count_sent(on, payload.size());
      return errc::none;
    }
    if (UCS_PTR_STATUS(status) != UCS_ERR_NO_RESOURCE) return translate(UCS_PTR_STATUS(status));
  } else if (done != nullptr && on != channel::loans && may_lend(to, payload.size())) {
    count_sent(on, payload.size());
    return lent_->lend(to, on, header, payload, *done);
  }
  return send_with_record(peer, on, header, payload, done);
}

// Also notes whether the peer has answered the question that its first payload brings.
inline bool ucx_link::state::may_lend(rank_id to, std::size_t bytes) {
  if (answered_[to] && !lent_->lends(bytes)) return false;
  const bool may = lent_->may_lend(to, bytes);
  answered_[to] = !lent_->has_yet_to_answer(to);
  return may;
}

inline errc ucx_link::state::send_with_record(const ucx_connection& to, channel on, std::span<const std::byte> header,
                                              std::span<const std::byte> payload, completion* done,
                                              ucs_memory_type_t where) {
  const bool of_device = where != UCS_MEMORY_TYPE_HOST;
  const bool is_small = header.size() + payload.size() <= arrival::inline_bytes && !of_device;
  const ucx_framing as = is_small ? ucx_framing::plain : ucx_framing::with_origin;
  ucx_operation& sending = operations_.make(to.peer(), done);
  sending.put = on == channel::transfers;
  std::size_t header_size = header.size();
  if (header_size != 0) std::memcpy(sending.header.data(), header.data(), header_size);
  if (as == ucx_framing::with_origin)
    header_size = append_origin(sending.header, header_size, {chosen_.rank, chosen_.restarts});
  const std::byte* bytes = payload.data();
  // A peer that has not polled yet may compute for long before it takes a payload, and UCX cannot take a send back. UCX sends such a
  // payload from a copy, so that the call can end before UCX does.
  const bool may_outlast_call = done != nullptr && on == channel::data && !of_device &&
                                payload.size() <= most_first_bytes && !answered_[to.peer()];
  if (!payload.empty() && (done == nullptr || may_outlast_call)) {
    sending.copy.assign(payload.begin(), payload.end());
    bytes = sending.copy.data();
  }

  ucp_request_param_t param = ucx_operations::tell_of_send(sending);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
  if (as == ucx_framing::plain) param.flags = UCP_AM_SEND_FLAG_EAGER;
  if (of_device) {
    param.flags = UCP_AM_SEND_FLAG_RNDV;
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = where;
  }
  const errc started = operations_.start(sending, ucp_am_send_nbx(to.endpoint(), am_id(on, as), sending.header.data(),
                                                                  header_size, bytes, payload.size(), &param));
  if (started != errc::none && started != errc::pending) return started;
  count_sent(on, payload.size());
  return done == nullptr ? errc::none : started;
}

errc ucx_link::state::send_device(rank_id to, channel on, std::span<const std::byte> header,
                                  std::span<const std::byte> payload, completion* done) {
  if (!worker_->takes_devices()) return errc::unavailable;
  if (header.size() > max_header_bytes || done == nullptr) return errc::bad_argument;
  const auto peer = partner(to);
  return peer ? send_with_record(*peer.value(), on, header, payload, done, UCS_MEMORY_TYPE_CUDA) : peer.code();
}

errc ucx_link::state::fetch(arrival&& message, std::span<std::byte> into, completion* done, ucs_memory_type_t where) {
  const auto length = static_cast<std::size_t>(message.length());
  if (!message.remote()) {
    const bool fits = length <= into.size();
    if (fits && where == UCS_MEMORY_TYPE_HOST && length != 0) {
      std::memcpy(into.data(), message.payload().data(), length);
      counted_.copied_bytes += length;
    }
    message = arrival();  // consumed in every case
    if (!fits) return errc::buffer_too_small;
    return length == 0 || where == UCS_MEMORY_TYPE_HOST ? errc::none : errc::bad_argument;
  }
  arrival taken = std::move(message);
  if (into.size() < length) return errc::buffer_too_small;

  const void* const held = taken.surrender();
  if (lent_->holds(held)) {
    const errc started = lent_->fetch(held, into, done);
    if (lent_->working()) news_ = true;
    return started;
  }
  ucx_origin from;
  if (const auto known = origin_of_remote_.find(held); known != origin_of_remote_.end()) {
    from = known->second;
    origin_of_remote_.erase(known);
  }
  // If `connect` has not named the sending process yet, there is no endpoint to it. The fetch must not end when the
  // previous process in that place is buried.
  ucx_origin to_come;
  if (connections_.is_early(from)) to_come = std::exchange(from, {});
  if (connections_.has(from.rank)) {
    // Without an endpoint to the sender, UCX would not report its death.
    const errc opened = connections_.is_late(from) ? errc::peer_failed : connections_.open(connections_[from.rank]);
    if (opened == errc::peer_failed) {
      ucp_am_data_release(worker_->handle(), const_cast<void*>(held));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      return opened;
    }
  }
  ucx_operation& fetching = operations_.make(from.rank, done);
  fetching.to_come = to_come;
  ucp_request_param_t param = ucx_operations::tell_of_fetch(fetching);
  if (where != UCS_MEMORY_TYPE_HOST) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = where;
  }
  return operations_.start(fetching, ucp_am_recv_data_nbx(worker_->handle(), const_cast<void*>(held),  // NOLINT
                                                          into.data(), length, &param));
}

runtime::result<ucx_connection*> ucx_link::state::partner(rank_id with) {
  if (!connections_.has(with)) return errc::bad_argument;
  ucx_connection& peer = connections_[with];
  if (const errc opened = connections_.open(peer); opened != errc::none) return opened;
  return &peer;
}

template <class Call>
errc ucx_link::state::start_one_sided(const ucx_connection& with, std::span<const std::byte> key, completion* done,
                                      Call call) {
  ucp_rkey_h unpacked = nullptr;
  if (!key.empty()) {
    unpacked = memory_->unpack(with.peer(), with.endpoint(), key);
    if (unpacked == nullptr) return errc::bad_argument;
  }
  ucx_operation& starting = operations_.make(with.peer(), done);
  const ucp_request_param_t param = ucx_operations::tell_of_send(starting);
  return operations_.start(starting, call(with.endpoint(), unpacked, param));
}

errc ucx_link::state::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                          completion* done) {
  const auto key = read_carried_key(at.key);
  if (!key || at.key.size() > max_remote_key_bytes || !covers(*key, at.address, data.size())) return errc::bad_argument;
  const auto peer = partner(to);
  if (!peer) return peer.code();
  if (!is_direct(*peer.value())) return carried_->put(to, *key, at.address, data, done);
  const auto of_ucx = at.key.subspan(sizeof *key);
  if (of_ucx.empty()) return errc::unavailable;  // UCX could not register the peer's memory
  counted_.payload_bytes_sent += data.size();
  return start_one_sided(*peer.value(), of_ucx, done,
                         [&](ucp_ep_h endpoint, ucp_rkey_h unpacked, const ucp_request_param_t& param) {
                           return ucp_put_nbx(endpoint, data.data(), data.size(), at.address, unpacked, &param);
                         });
}

errc ucx_link::state::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) {
  const auto key = read_carried_key(at.key);
  if (!key || at.key.size() > max_remote_key_bytes || !covers(*key, at.address, into.size())) return errc::bad_argument;
  const auto peer = partner(from);
  if (!peer) return peer.code();
  if (!is_direct(*peer.value())) return carried_->get(from, *key, at.address, into, done);
  const auto of_ucx = at.key.subspan(sizeof *key);
  if (of_ucx.empty()) return errc::unavailable;
  return start_one_sided(*peer.value(), of_ucx, done,
                         [&](ucp_ep_h endpoint, ucp_rkey_h unpacked, const ucp_request_param_t& param) {
                           return ucp_get_nbx(endpoint, into.data(), into.size(), at.address, unpacked, &param);
                         });
}

errc ucx_link::state::fence(rank_id to, completion* done) {
  const auto peer = partner(to);
  if (!peer) return peer.code();
  if (!is_direct(*peer.value())) return carried_->fence(to, done);
  return start_one_sided(*peer.value(), {}, done, [](ucp_ep_h endpoint, ucp_rkey_h, const ucp_request_param_t& param) {
    return ucp_ep_flush_nbx(endpoint, &param);
  });
}

// UCX's own flush cannot carry a message.
errc ucx_link::state::announce(rank_id to, channel on, std::span<const std::byte> header, completion* done) {
  const auto peer = partner(to);
  if (!peer) return peer.code();
  return is_direct(*peer.value()) ? errc::unavailable : carried_->announce(to, on, header, done);
}

runtime::exposed_memory ucx_link::state::expose(std::span<std::byte> memory) {
  runtime::exposed_memory made;
  made.number = ++last_memory_;
  made.bytes = memory;
  made.key = carried_->expose(made.number, memory);
  const auto of_ucx = memory_->expose(made.number, memory);
  if (made.key.size() + of_ucx.size() <= max_remote_key_bytes)
    made.key.insert(made.key.end(), of_ucx.begin(), of_ucx.end());
  return made;
}

// First makes sure that no new operation can reach the memory. Then breaks off connections with operations still in flight on it;
// these are only connections to peers that were declared dead. An operation that UCX has ended no longer touches the memory. If
// an operation does not end within `burial_time`, its writes may still land.
runtime::late_writes ucx_link::state::withdraw(std::uint64_t number) {
  memory_->withdraw(number);
  carried_->withdraw(number);
  lent_->abandon_all([&](const completion* done) { return carried_->uses(done, number); });
  if (lent_->working()) news_ = true;
  const auto next_in_flight = [&] {
    return operations_.find_unended(
        [&](const ucx_operation& at) { return carried_->uses(lent_->behind(at.done), number); });
  };
  const auto until = clock::now() + ucx_connections::burial_time;
  for (const ucx_operation* left = next_in_flight(); left != nullptr; left = next_in_flight()) {
    if (clock::now() > until) return runtime::late_writes::may_land;
    if (connections_.has(left->peer)) connections_.break_off(connections_[left->peer]);
    ucp_worker_progress(worker_->handle());
  }
  return runtime::late_writes::fail;
}

ucx_operation* ucx_link::state::find_pending(const completion& done) {
  return operations_.find_unended([&](const ucx_operation& at) { return at.done == &done; });
}

void ucx_link::state::cancel(completion& pending) {
  ucx_operation* const at = find_pending(pending);
  if (at == nullptr) {
    if (!lent_->cancel(pending)) carried_->cancel(pending);
    if (lent_->working()) news_ = true;
  } else if (!at->copy.empty()) {
    operations_.let_go(*at);
  } else if (!at->put) {
    at->cancelled = true;
    ucp_request_cancel(worker_->handle(), at->request);
  }
}

// UCX cannot take a send or a fetch back. Closing the endpoint discards the data that UCX has queued for the peer and not sent yet. If the
// peer has begun a transfer, the transfer uses the memory until UCX ends it. A peer that computes may continue the transfer much later.
void ucx_link::state::abandon(completion& pending) {
  ucx_operation* const at = find_pending(pending);
  if (at == nullptr) {
    if (!lent_->abandon(pending)) carried_->abandon(pending);
    if (lent_->working()) news_ = true;
    return;
  }
  if (!at->copy.empty()) return operations_.let_go(*at);
  if (connections_.has(at->peer)) connections_.cut(connections_[at->peer]);
  const auto began = clock::now();
  const auto may_still_move = [&](clock::duration waited) {
    return waited < ucx_connections::burial_time || (waited < longest_abandon && may_go_on(at->peer));
  };
  while (at->is_unended() && may_still_move(clock::now() - began)) {
    const auto next_look = clock::now() + std::chrono::milliseconds(1);
    while (at->is_unended() && clock::now() < next_look) ucp_worker_progress(worker_->handle());
  }
}

bool ucx_link::state::may_go_on(rank_id peer) const noexcept {
  try {
    return lives_ && lives_(peer);
  } catch (...) {
    return false;
  }
}

void ucx_link::state::release(const void* held, bool remote) noexcept {
  if (remote && lent_->holds(held)) return lent_->drop(held);
  if (remote) origin_of_remote_.erase(held);
  ucp_am_data_release(worker_->handle(), const_cast<void*>(held));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

// UCX's callbacks: they copy or keep the message, append it to the inbox, and do nothing else.

ucs_status_t ucx_link::state::on_small_message(void* at, const void* header, std::size_t header_length, void* data,
                                               std::size_t length, const ucp_am_recv_param_t* param) {
  // Nearly every header has the full length, and a copy of known length takes a few instructions.
  if (header_length != max_header_bytes || header_length + length > arrival::inline_bytes ||
      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) [[unlikely]] {
    return on_message(at, header, header_length, data, length, param);
  }
  const listener& own = *static_cast<const listener*>(at);
  state& self = *own.owner;
  ++self.counted_.received[static_cast<std::size_t>(own.on)];
  self.arrived_.put(own.on, std::span<const std::byte>(static_cast<const std::byte*>(header), max_header_bytes),
                    std::span<const std::byte>(static_cast<const std::byte*>(data), length));
  return UCS_OK;
}

ucs_status_t ucx_link::state::on_message(void* at, const void* header, std::size_t header_length, void* data,
                                         std::size_t length, const ucp_am_recv_param_t* param) {
  const listener& own = *static_cast<const listener*>(at);
  state& self = *own.owner;
  std::span<const std::byte> own_header(static_cast<const std::byte*>(header), header_length);
  ucx_origin from;
  if (own.as == ucx_framing::with_origin) {
    const auto named = take_origin(own_header);
    if (!named || self.connections_.is_late(*named)) return UCS_OK;
    from = *named;
  }
  // No parley link sends such a header. The message is dropped; UCX then ends the sender's operation.
  if (own_header.size() > max_header_bytes) return UCS_OK;
  ++self.counted_.received[static_cast<std::size_t>(own.on)];
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    self.origin_of_remote_[data] = from;
    self.arrived_.put(own.on, &self.owner_, own_header, length, data, true);
    return UCS_INPROGRESS;
  }
  if (own_header.size() + length <= arrival::inline_bytes) {
    self.arrived_.put(own.on, own_header, std::span<const std::byte>(static_cast<const std::byte*>(data), length));
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) == 0) {
    --self.counted_.received[static_cast<std::size_t>(own.on)];
    return UCS_OK;
  }
  self.arrived_.put(own.on, &self.owner_, own_header, length, data, false);
  return UCS_INPROGRESS;
}

// Delivery.

inline bool ucx_link::state::poll() {
  const bool moved = ucp_worker_progress(worker_->handle()) != 0;
  if (delivering_) return moved;
  if (news_) [[unlikely]] {
    deliver_the_rest();
    return true;
  }
  if (arrived_.empty()) return moved;
  deliver_arrivals();
  return true;
}

inline void ucx_link::state::hand_over(channel on, arrival&& message) {
  handler* const to = handlers_[static_cast<std::size_t>(on)];
  if (to != nullptr) [[likely]] {
    to->on_arrival(std::move(message));
  } else {
    unheard_[static_cast<std::size_t>(on)].push_back(std::move(message));
  }
}

inline void ucx_link::state::deliver_arrivals() {
  delivering_ = true;
  arrived_.deliver([this](channel on, arrival&& message) { hand_over(on, std::move(message)); });
  delivering_ = false;
}

void ucx_link::state::deliver_the_rest() {
  news_ = false;
  delivering_ = true;
  for (const channel on : every_channel) {
    auto& kept = unheard_[static_cast<std::size_t>(on)];
    while (!kept.empty() && handlers_[static_cast<std::size_t>(on)] != nullptr) {
      arrival oldest = std::move(kept.front());
      kept.pop_front();
      hand_over(on, std::move(oldest));
    }
  }
  deliver_arrivals();
  delivering_ = true;
  if (operations_.any_stranded()) operations_.end_stranded();
  operations_.for_each_ended([this](ucx_operation& ended) {
    if (!waits_for_burial(ended)) operations_.end(ended, connections_.is_gone(ended.peer));
  });
  if (lent_->working()) lent_->work();
  if (connections_.any_to_bury()) bury_the_dead();
  delivering_ = false;
  if (lent_->working()) news_ = true;
}

// An operation that failed because its peer failed ends when the peer is buried. By then the link knows why the peer failed.
bool ucx_link::state::waits_for_burial(const ucx_operation& ended) {
  if (ended.outcome == UCS_OK || ended.cancelled || !connections_.has(ended.peer)) return false;
  return connections_.is_dying_by(connections_[ended.peer], ended.outcome);
}

void ucx_link::state::bury_the_dead() {
  const bool any_broke = connections_.break_off_reported();
  for (const rank_id id : connections_.take_dying()) {
    ucx_connection& dead = connections_[id];
    if (connections_.goes_on_dying(dead, operations_.has_unended(id))) continue;
    operations_.end_all(id);
    memory_->forget(id);        // not before: operations in flight may have used the peer's keys
    lent_->on_peer_failed(id);  // before carried_: lends and reads some payloads for carried_
    carried_->on_peer_failed(id);
    connections_.bury(dead);
    if (on_failure_ != nullptr) on_failure_->on_peer_failed(id);
  }
  if (any_broke || connections_.any_dying()) news_ = true;
}

runtime::poller::arm_state ucx_link::state::arm() {
  if (news_ || !arrived_.empty()) return arm_state::busy;
  return ucp_worker_arm(worker_->handle()) == UCS_OK ? arm_state::armed : arm_state::busy;
}

void ucx_link::state::take_in(channel on, arrival&& message) {
  if (closing_down_) return;
  ++counted_.received[static_cast<std::size_t>(on)];
  hand_over(on, std::move(message));
}

void ucx_link::state::listen(channel on, handler* to) {
  handlers_[static_cast<std::size_t>(on)] = to;
  if (to != nullptr && !unheard_[static_cast<std::size_t>(on)].empty()) news_ = true;
}

// The link itself.

ucx_link::ucx_link(const options& chosen) {
  if (chosen.world_size == 0 || chosen.rank >= chosen.world_size) {
    runtime::raise({errc::bad_argument, "rank " + std::to_string(chosen.rank) + " is outside the world of " +
                                            std::to_string(chosen.world_size)});
  }
  state_ = std::make_unique<state>(*this, chosen);
  const auto take = [of = state_.get()](channel on, arrival&& message) { of->take_in(on, std::move(message)); };
  state_->carried_.emplace(*this, channel::transfers, take, chosen.restarts);
  lent_payloads::options lending{.may = state_->worker_->copies_by_kernel(), .restarts = chosen.restarts};
  if (chosen.world_size > std::thread::hardware_concurrency()) lending.from = lending.from_on_shared_cores;
  state_->lent_.emplace(*this, lending, take);
}
ucx_link::~ucx_link() {
  if (state_->forked()) static_cast<void>(state_.release());
}

std::vector<std::byte> ucx_link::address() const { return with_check(state_->worker_->address()); }
bool ucx_link::is_address(std::span<const std::byte> bytes) { return has_valid_check(bytes); }
void ucx_link::connect(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts) {
  state_->connect(peer, address, restarts);
}
bool ucx_link::has_failed(rank_id peer) const noexcept { return state_->connections_.has_failed(peer); }
bool ucx_link::has_cut(rank_id peer) const noexcept { return state_->connections_.was_cut(peer); }
void ucx_link::give_up(rank_id peer) { state_->give_up(peer); }
std::string ucx_link::description() const { return state_->worker_->description(); }
rank_id ucx_link::rank() const noexcept { return state_->chosen_.rank; }
rank_id ucx_link::world_size() const noexcept { return state_->chosen_.world_size; }
void ucx_link::listen(channel on, handler* to) { state_->listen(on, to); }
void ucx_link::on_failure(failure_handler* to) { state_->on_failure_ = to; }
void ucx_link::ask_whether_living(std::function<bool(rank_id)> lives) { state_->lives_ = std::move(lives); }
void ucx_link::ask_for_last_words(std::function<bool(rank_id)> is_due) {
  state_->connections_.ask_for_last_words(std::move(is_due));
}
errc ucx_link::send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                    completion* done) {
  return state_->send(to, on, header, payload, done);
}
errc ucx_link::fetch(arrival&& message, std::span<std::byte> into, completion* done) {
  return state_->fetch(std::move(message), into, done);
}
void ucx_link::cancel(completion& pending) {
  if (!state_->forked()) state_->cancel(pending);
}
void ucx_link::abandon(completion& pending) noexcept {
  if (!state_->forked()) state_->abandon(pending);
}
runtime::result<> ucx_link::moves_devices() const { return state_->moves_devices(); }

errc ucx_link::send_device(rank_id to, channel on, std::span<const std::byte> header,
                           std::span<const std::byte> payload, completion* done) {
  return state_->send_device(to, on, header, payload, done);
}

errc ucx_link::fetch_device(arrival&& message, std::span<std::byte> into, completion* done) {
  return state_->fetch(std::move(message), into, done, UCS_MEMORY_TYPE_CUDA);
}

runtime::result<runtime::exposed_memory> ucx_link::expose(std::span<std::byte> memory) {
  return state_->expose(memory);
}
runtime::late_writes ucx_link::withdraw(const runtime::exposed_memory& memory) {
  if (state_->forked()) return runtime::late_writes::fail;
  return state_->withdraw(memory.number);
}
errc ucx_link::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data, completion* done) {
  return state_->put(to, at, data, done);
}
errc ucx_link::get(rank_id from, const runtime::remote_place& at, std::span<std::byte> into, completion* done) {
  return state_->get(from, at, into, done);
}
errc ucx_link::fence(rank_id to, completion* done) { return state_->fence(to, done); }
errc ucx_link::announce(rank_id to, channel on, std::span<const std::byte> header, completion* done) {
  return state_->announce(to, on, header, done);
}
std::size_t ucx_link::short_bytes() const noexcept { return copied_up_to_bytes; }
const link::counters& ucx_link::statistics() const noexcept { return state_->counted_; }
bool ucx_link::poll() { return state_->poll(); }
runtime::poller::arm_state ucx_link::arm() { return state_->arm(); }
int ucx_link::event_fd() const { return state_->worker_->event_fd(); }
void ucx_link::release(const void* held, bool remote) noexcept {
  if (!state_->forked()) state_->release(held, remote);
}

}  // namespace parley::transports
