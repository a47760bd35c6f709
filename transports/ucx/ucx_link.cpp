#include <parley/transports/ucx/ucx_link.hpp>

#include <parley/runtime/fork_watch.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>
#include <parley/transports/ucx/carried_memory.hpp>
#include <parley/transports/ucx/lent_payloads.hpp>
#include <parley/transports/ucx/ucx_memory.hpp>

#include <ucp/api/ucp.h>

#include <algorithm>
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

constexpr rank_id nobody = ~rank_id{0};
/// An address is a few hundred bytes; a hostile one shall not make UCX read far behind it.
constexpr std::size_t max_address_bytes = 64 * 1024;
/// Behind UCX's own bytes an address has the first ones of their SHA-256: of bytes that are no address UCX ends the process.
constexpr std::size_t address_check_bytes = 8;
/// How long UCX gets to end by itself what a dead peer left behind.
constexpr std::chrono::milliseconds burial_time{100};
/// How long that waits for what the peer itself is about to say, and how often it asks whether that is still due.
constexpr std::chrono::milliseconds longest_silence{1000};
constexpr std::chrono::milliseconds silence_looked_at{2};
constexpr std::size_t kept_copy_bytes = 64 * 1024;
/// Up to here a copy of a payload costs less than somebody who waits until UCX has it.
constexpr std::size_t copied_up_to_bytes = 2048;

/// A message that does not fit into an `arrival` carries who sent it behind its header, because UCX does not tell a receiver
/// whose rendezvous it holds, and that must be known when a peer dies, or has died and come back. It has an AM id of its
/// own, so that small messages pay nothing for it.
enum class framing : unsigned { plain, with_origin };
struct origin {
  rank_id rank = nobody;
  std::uint32_t restarts = 0;
};
constexpr unsigned message_id(link::channel on, framing as) {
  return static_cast<unsigned>(on) * 2U + static_cast<unsigned>(as);
}
constexpr std::size_t max_framed_header = link::max_header_bytes + sizeof(origin);

/// UCX ends an operation so because its endpoint has failed; it may say that of the endpoint later.
bool tells_of_endpoint(ucs_status_t status) noexcept {
  return status == UCS_ERR_CANCELED || status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT ||
         status == UCS_ERR_NOT_CONNECTED;
}

errc translate(ucs_status_t status) noexcept {
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

std::vector<std::byte> check_of(std::span<const std::byte> address_of_ucx) {
  const wire::digest digest = wire::sha256(address_of_ucx);
  return {digest.begin(), digest.begin() + address_check_bytes};
}

}  // namespace

// In a child that fork() made it stays as it is: what it shares with other processes is the parent's.
class ucx_link::state final : public runtime::fork_watch {
 public:
  state(ucx_link& owner, const options& chosen);
  ~state();

  void connect(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts);
  bool has_failed(rank_id peer) const noexcept {
    return peer < peers_.size() && peers_[peer].condition == health::failed;
  }
  bool has_cut(rank_id peer) const noexcept { return peer < peers_.size() && peers_[peer].cut; }
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
  void release(const void* held, bool remote) noexcept;
  bool poll();
  arm_state arm();
  void listen(channel on, handler* to);
  /// A message whose payload its sender lends has come.
  void take_in(channel on, arrival&& message);

  options chosen_;
  std::optional<ucx_worker> worker_;
  std::optional<ucx_memory> memory_;
  std::optional<carried_memory> carried_;
  std::optional<lent_payloads> lent_;
  counters counted_;
  failure_handler* on_failure_ = nullptr;
  std::function<bool(rank_id)> word_is_due_;

 private:
  enum class health : std::uint8_t { unknown, known, connected, dying, failed };
  struct peer_record {
    ucp_ep_h endpoint = nullptr;  // set only while `connected`: the send path looks at nothing else
    state* owner = nullptr;
    rank_id id = nobody;
    std::uint32_t restarts = 0;
    health condition = health::unknown;
    bool direct = false;  // a card reaches its memory
    bool cut = false;     // by this rank
    ucp_ep_h broken = nullptr;
    std::vector<std::byte> address;
    clock::time_point buried_at{};
    clock::time_point word_until{};  // which it may still say itself
    clock::time_point next_look{};   // whether it will
  };
  /// A send or a fetch that UCX has not ended yet.
  struct operation {
    operation* previous = nullptr;
    operation* next = nullptr;
    state* owner = nullptr;
    completion* done = nullptr;
    void* request = nullptr;
    rank_id peer = nobody;
    origin to_come;          // of a fetch: whom it is from, where `connect` does not know of that process yet
    bool put = false;        // which its target counts: it is never cancelled
    bool cancelled = false;  // by this rank
    ucs_status_t outcome = UCS_OK;
    std::array<std::byte, max_framed_header> header;
    std::vector<std::byte> copy;
  };
  struct listener {
    state* owner;
    channel on;
    framing as;
  };
  struct waiting {
    channel on;
    arrival message;
  };
  /// What has come since the last `poll`, each in a place that stays until its handler returns. Empty most of the time
  /// and then started anew, so that a lone message always finds a place that is warm. When it is full the rest queues
  /// up behind.
  class inbox {
   public:
    template <class... Parts>
    void put(channel on, const Parts&... parts) {
      if (end_ == limit_) [[unlikely]] {
        queue_up(on, arrival(parts...));
        return;
      }
      place& next = places_[end_++];
      next.on = on;
      std::construct_at(&next.message, parts...);
    }
    bool empty() const noexcept { return first_ == end_; }
    /// Hands over what is here now, not what comes meanwhile: a handler may send to its own rank for ever.
    template <class Handler>
    void deliver(Handler&& to) {
      const std::size_t until = end_;
      while (first_ != until) {
        place& oldest = places_[first_];
        to(oldest.on, std::move(oldest.message));
        std::destroy_at(&oldest.message);
        ++first_;
      }
      if (first_ == end_) {
        first_ = end_ = 0;
        if (!overflow_.empty()) [[unlikely]]
          refill();
      }
    }
    void clear() {
      while (!empty() || !overflow_.empty()) deliver([](channel, arrival&&) {});
    }

   private:
    static constexpr std::size_t capacity = 256;
    struct place {
      place() noexcept {}  // NOLINT: `put` and `deliver` say when there is a message
      ~place() {}          // NOLINT
      channel on;
      union {
        arrival message;
      };
    };
    void queue_up(channel on, arrival&& message) {
      overflow_.push_back({on, std::move(message)});
      limit_ = end_;  // nothing may get in before it
    }
    void refill() {
      for (; end_ < capacity && !overflow_.empty(); overflow_.pop_front()) {
        place& next = places_[end_++];
        next.on = overflow_.front().on;
        std::construct_at(&next.message, std::move(overflow_.front().message));
      }
      limit_ = overflow_.empty() ? capacity : end_;
    }
    std::size_t first_ = 0;
    std::size_t end_ = 0;
    std::size_t limit_ = capacity;  // lower while something has queued up behind
    std::unique_ptr<place[]> places_ = std::make_unique<place[]>(capacity);
    std::deque<waiting> overflow_;
  };

  static ucs_status_t on_small_message(void* listener, const void* header, std::size_t header_length, void* data,
                                       std::size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t on_message(void* listener, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t outcome, void* of);
  static void on_fetched(void* request, ucs_status_t outcome, std::size_t length, void* of);
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t reason);

  errc send_with_record(peer_record& to, channel on, std::span<const std::byte> header,
                        std::span<const std::byte> payload, completion* done,
                        ucs_memory_type_t where = UCS_MEMORY_TYPE_HOST);
  errc open(peer_record& peer);
  void adopt_fetches(peer_record& peer);
  void end_early(operation& left) noexcept;
  /// Starts what `call(endpoint, key, param)` starts: a put, a get or a flush.
  template <class Call>
  errc start_one_sided(peer_record& with, std::span<const std::byte> key, completion* done, Call call);
  /// Whom a one-sided operation is with, connected.
  runtime::result<peer_record*> partner(rank_id with);
  void break_off(peer_record& peer);
  void deliver_arrivals();
  void deliver_the_rest();
  void hand_over(channel on, arrival&& message);
  void bury();
  void close_endpoint(ucp_ep_h endpoint, unsigned flags);
  bool is_unended(rank_id peer) const noexcept;
  bool is_word_due(peer_record& peer) noexcept;
  bool waits_for_burial(const operation& ended);
  operation* next_to_end(rank_id peer) noexcept;
  operation* find_pending(const completion& done) noexcept;
  void end(operation& ended);
  operation* acquire();
  void recycle(operation* used) noexcept;
  void start(operation* started, void* request) noexcept;
  void unlink(operation* ended) noexcept;
  /// Of a process whose place another one has taken.
  bool is_late(const origin& from) const noexcept {
    return from.rank < peers_.size() && from.restarts < peers_[from.rank].restarts;
  }
  bool peer_is_gone(rank_id peer) const noexcept {
    return peer < peers_.size() && peers_[peer].condition >= health::dying;
  }
  void count_sent(channel on, std::size_t bytes) noexcept {
    ++counted_.sent[static_cast<std::size_t>(on)];
    counted_.payload_bytes_sent += bytes;
  }

  ucx_link& owner_;
  ucp_request_param_t at_once_{};
  bool news_ = false;               // a queue below, other than the inbox, may hold something
  bool delivering_ = false;         // `poll` may be called from a handler
  bool closing_down_ = false;       // nothing reaches a handler any more
  std::vector<peer_record> peers_;  // never grows after construction: UCX knows the addresses of its records
  std::array<handler*, channels> handlers_{};
  std::array<listener, channels * 2> listeners_;
  inbox arrived_;
  std::array<std::deque<arrival>, channels> unheard_;
  std::vector<operation*> ended_;
  std::vector<operation*> in_ending_;
  std::vector<operation*> stranded_;  // fetches of processes that were gone before anybody knew of them
  std::vector<rank_id> broken_;
  std::vector<rank_id> dying_;
  std::unordered_map<const void*, origin> origin_of_remote_;
  std::vector<void*> closing_;
  std::uint64_t last_memory_ = 0;
  operation pending_;  // the head of a ring
  std::vector<operation*> spare_;
  std::deque<operation> operations_;
};

ucx_link::state::state(ucx_link& owner, const options& chosen)
    : chosen_(chosen), worker_(std::in_place, chosen.reach, chosen.memory, chosen.keepalive_interval_ns),
      memory_(std::in_place, worker_->context()), owner_(owner), peers_(chosen.world_size) {
  for (rank_id id = 0; id < peers_.size(); ++id) {
    peers_[id].owner = this;
    peers_[id].id = id;
  }
  pending_.previous = pending_.next = &pending_;
  at_once_.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  at_once_.flags = UCP_AM_SEND_FLAG_EAGER;
  for (const channel on : every_channel) {
    for (const framing as : {framing::plain, framing::with_origin}) {
      listener& own = listeners_[message_id(on, as)] = {this, on, as};
      ucp_am_handler_param_t param{};
      param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
      param.id = message_id(on, as);
      // Persistent data may always be kept; small messages are copied anyway and shall not cost a descriptor.
      param.flags = UCP_AM_FLAG_WHOLE_MSG;
      if (as == framing::with_origin) param.flags |= UCP_AM_FLAG_PERSISTENT_DATA;
      param.cb = as == framing::plain ? &state::on_small_message : &state::on_message;
      param.arg = &own;
      const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->handle(), &param);
      if (status != UCS_OK) {
        runtime::raise(
            {errc::unavailable, std::string("UCX takes no active-message handler: ") + ucs_status_string(status)});
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
  // Of what comes now only what is said of loans is heard; what others lend is returned to them.
  const auto hear_of_loans = [&](channel on, arrival&& message) {
    if (on == channel::loans) lent_->on_arrival(std::move(message));
  };
  const auto unsent = [&] {
    arrived_.deliver(hear_of_loans);
    if (lent_->waits_for([this](rank_id peer) { return !peer_is_gone(peer); })) return true;
    for (const operation* at = pending_.next; at != &pending_; at = at->next)
      if (at->outcome == UCS_INPROGRESS && !peer_is_gone(at->peer)) return true;
    return false;
  };
  progress_while(unsent);
  for (auto& kept : unheard_) kept.clear();
  arrived_.clear();
  lent_->close();

  const auto all_closed = [&] {
    return std::all_of(closing_.begin(), closing_.end(),
                       [](void* request) { return ucp_request_check_status(request) != UCS_INPROGRESS; });
  };
  for (peer_record& peer : peers_) {
    if (ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr)) close_endpoint(endpoint, 0);
    if (ucp_ep_h endpoint = std::exchange(peer.broken, nullptr)) close_endpoint(endpoint, UCP_EP_CLOSE_FLAG_FORCE);
  }
  progress_while([&] { return !all_closed(); });
  for (void* request : closing_) ucp_request_free(request);
  arrived_.clear();

  while (pending_.next != &pending_) {
    operation* left = pending_.next;
    unlink(left);
    if (left->request != nullptr) ucp_request_free(left->request);
    left->request = nullptr;
    // UCX may still call back while the worker is destroyed; the record is alive until then, and `owner` tells.
    left->owner = nullptr;
    if (completion* done = std::exchange(left->done, nullptr)) {
      done->on_end(*done, left->outcome == UCS_OK ? errc::none : errc::closed);
    }
  }
  carried_.reset();
  lent_.reset();
  memory_->forget_all();
  memory_.reset();
  worker_.reset();  // before the records and queues that its callbacks know
}

void ucx_link::state::connect(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts) {
  if (peer >= peers_.size()) {
    runtime::raise({errc::bad_argument,
                    "rank " + std::to_string(peer) + " is outside the world of " + std::to_string(peers_.size())});
  }
  const bool comes_back = has_failed(peer) && restarts > peers_[peer].restarts;
  if (peers_[peer].condition != health::unknown && !comes_back) {
    runtime::raise({errc::bad_argument, "rank " + std::to_string(peer) + " has an address already"});
  }
  if (!is_address(address)) {
    runtime::raise(
        {errc::bad_argument, "the " + std::to_string(address.size()) + " bytes that rank " + std::to_string(peer) +
                                 " gave as its address of UCX are none; use one build of parley on all ranks"});
  }
  // UCX reads an address without knowing its length: zeros behind it end a cut one.
  peers_[peer].address.assign(address.begin(), address.end() - address_check_bytes);
  peers_[peer].address.resize(address.size() + 1024);
  peers_[peer].restarts = restarts;
  peers_[peer].direct = false;
  peers_[peer].cut = false;
  peers_[peer].condition = health::known;
  carried_->expect(peer, restarts);
  lent_->expect(peer, restarts);
  adopt_fetches(peers_[peer]);
}

// What is fetched already of that process ends with it from here on; of one that was there before it, it never will.
void ucx_link::state::adopt_fetches(peer_record& peer) {
  bool any = false;
  for (operation* at = pending_.next; at != &pending_; at = at->next) {
    if (at->to_come.rank != peer.id || at->to_come.restarts > peer.restarts) continue;
    const bool is_its = at->to_come.restarts == peer.restarts;
    at->to_come = {};
    if (is_its) at->peer = peer.id;
    if (!is_its && at->outcome == UCS_INPROGRESS) stranded_.push_back(at);
    any = any || is_its;
  }
  if (!stranded_.empty()) news_ = true;
  // Without an endpoint of ours UCX would not tell when it dies.
  if (any) static_cast<void>(open(peer));
}

errc ucx_link::state::open(peer_record& peer) {
  if (peer.condition >= health::connected) return errc::peer_failed;  // broken, whether it is buried yet or not
  if (peer.condition == health::unknown) return errc::bad_argument;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  // UCX's loopback transport reports no failures, and a rank that is dead does not wait for itself.
  params.err_mode = peer.id == chosen_.rank ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &state::on_endpoint_error;
  params.err_handler.arg = &peer;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_->handle(), &params, &endpoint);
  if (status != UCS_OK) {
    // A process that has died leaves no shared memory to attach to.
    broken_.push_back(peer.id);
    news_ = true;
    return errc::peer_failed;
  }
  peer.condition = health::connected;
  if (peer.broken != nullptr) return errc::peer_failed;  // its error handler was called from within
  peer.endpoint = endpoint;
  peer.direct = chosen_.transfers == transfer_way::by_ucx || ucx_memory::reaches_directly(endpoint);
  return errc::none;
}

void ucx_link::state::give_up(rank_id peer) {
  if (peer >= peers_.size() || peer_is_gone(peer)) return;
  lent_->take_back_from(peer);
  broken_.push_back(peer);
  news_ = true;
}

inline errc ucx_link::state::send(rank_id to, channel on, std::span<const std::byte> header,
                                  std::span<const std::byte> payload, completion* done) {
  if (to >= peers_.size() || header.size() > max_header_bytes) return errc::bad_argument;
  peer_record& peer = peers_[to];
  if (peer.endpoint == nullptr) [[unlikely]] {
    if (const errc opened = open(peer); opened != errc::none) return opened;
  }
  if (header.size() + payload.size() <= arrival::inline_bytes) {
    void* const status = ucp_am_send_nbx(peer.endpoint, message_id(on, framing::plain), header.data(), header.size(),
                                         payload.data(), payload.size(), &at_once_);
    if (status == nullptr) [[likely]] {
      count_sent(on, payload.size());
      return errc::none;
    }
    if (UCS_PTR_STATUS(status) != UCS_ERR_NO_RESOURCE) return translate(UCS_PTR_STATUS(status));
  } else if (done != nullptr && on != channel::loans && lent_->may_lend(to, payload.size())) {
    count_sent(on, payload.size());
    return lent_->lend(to, on, header, payload, *done);
  }
  return send_with_record(peer, on, header, payload, done);
}

errc ucx_link::state::send_with_record(peer_record& to, channel on, std::span<const std::byte> header,
                                       std::span<const std::byte> payload, completion* done, ucs_memory_type_t where) {
  const bool of_device = where != UCS_MEMORY_TYPE_HOST;
  const bool is_small = header.size() + payload.size() <= arrival::inline_bytes && !of_device;
  const framing as = is_small ? framing::plain : framing::with_origin;
  operation* sending = acquire();
  sending->peer = to.id;
  sending->done = done;
  sending->put = on == channel::transfers;
  std::size_t header_size = header.size();
  if (header_size != 0) std::memcpy(sending->header.data(), header.data(), header_size);
  if (as == framing::with_origin) {
    const origin me{chosen_.rank, chosen_.restarts};
    std::memcpy(sending->header.data() + header_size, &me, sizeof me);
    header_size += sizeof me;
  }
  const std::byte* bytes = payload.data();
  if (done == nullptr && !payload.empty()) {
    sending->copy.assign(payload.begin(), payload.end());
    bytes = sending->copy.data();
  }

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  if (as == framing::plain) param.flags = UCP_AM_SEND_FLAG_EAGER;
  if (of_device) {
    param.flags = UCP_AM_SEND_FLAG_RNDV;
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = where;
  }
  param.cb.send = &state::on_sent;
  param.user_data = sending;
  void* const request = ucp_am_send_nbx(to.endpoint, message_id(on, as), sending->header.data(), header_size, bytes,
                                        payload.size(), &param);
  if (UCS_PTR_IS_ERR(request)) {
    recycle(sending);
    return translate(UCS_PTR_STATUS(request));
  }
  count_sent(on, payload.size());
  if (request == nullptr) {
    recycle(sending);
    return errc::none;
  }
  start(sending, request);
  return done == nullptr ? errc::none : errc::pending;
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
    message = arrival();  // whatever happens, it is used up
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
  origin from;
  if (const auto known = origin_of_remote_.find(held); known != origin_of_remote_.end()) {
    from = known->second;
    origin_of_remote_.erase(known);
  }
  // One that is newer than what we know in its place has no endpoint yet, and does not end with the process before it.
  origin to_come;
  if (from.rank < peers_.size() && from.restarts > peers_[from.rank].restarts) to_come = std::exchange(from, {});
  if (from.rank < peers_.size()) {
    // Without an endpoint of ours UCX would not tell when the sender dies.
    peer_record& peer = peers_[from.rank];
    const errc opened = is_late(from) ? errc::peer_failed : peer.endpoint != nullptr ? errc::none : open(peer);
    if (opened == errc::peer_failed) {
      ucp_am_data_release(worker_->handle(), const_cast<void*>(held));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      return opened;
    }
  }
  operation* fetching = acquire();
  fetching->peer = from.rank;
  fetching->to_come = to_come;
  fetching->done = done;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &state::on_fetched;
  param.user_data = fetching;
  if (where != UCS_MEMORY_TYPE_HOST) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = where;
  }
  void* const request = ucp_am_recv_data_nbx(worker_->handle(), const_cast<void*>(held),  // NOLINT
                                             into.data(), length, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    recycle(fetching);
    return request == nullptr ? errc::none : translate(UCS_PTR_STATUS(request));
  }
  start(fetching, request);
  return errc::pending;
}

runtime::result<ucx_link::state::peer_record*> ucx_link::state::partner(rank_id with) {
  if (with >= peers_.size()) return errc::bad_argument;
  peer_record& peer = peers_[with];
  if (peer.endpoint == nullptr) {
    if (const errc opened = open(peer); opened != errc::none) return opened;
  }
  return &peer;
}

template <class Call>
errc ucx_link::state::start_one_sided(peer_record& with, std::span<const std::byte> key, completion* done, Call call) {
  ucp_rkey_h unpacked = nullptr;
  if (!key.empty()) {
    unpacked = memory_->unpack(with.id, with.endpoint, key);
    if (unpacked == nullptr) return errc::bad_argument;
  }
  operation* const starting = acquire();
  starting->peer = with.id;
  starting->done = done;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &state::on_sent;
  param.user_data = starting;
  void* const request = call(with.endpoint, unpacked, param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    recycle(starting);
    return request == nullptr ? errc::none : translate(UCS_PTR_STATUS(request));
  }
  start(starting, request);
  return errc::pending;
}

errc ucx_link::state::put(rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                          completion* done) {
  const auto key = read_carried_key(at.key);
  if (!key || at.key.size() > max_remote_key_bytes || !covers(*key, at.address, data.size())) return errc::bad_argument;
  const auto peer = partner(to);
  if (!peer) return peer.code();
  if (!peer.value()->direct) return carried_->put(to, *key, at.address, data, done);
  const auto of_ucx = at.key.subspan(sizeof *key);
  if (of_ucx.empty()) return errc::unavailable;  // its card could not take the memory
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
  if (!peer.value()->direct) return carried_->get(from, *key, at.address, into, done);
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
  if (!peer.value()->direct) return carried_->fence(to, done);
  return start_one_sided(*peer.value(), {}, done, [](ucp_ep_h endpoint, ucp_rkey_h, const ucp_request_param_t& param) {
    return ucp_ep_flush_nbx(endpoint, &param);
  });
}

// UCX's own fence brings nothing along.
errc ucx_link::state::announce(rank_id to, channel on, std::span<const std::byte> header, completion* done) {
  const auto peer = partner(to);
  if (!peer) return peer.code();
  return peer.value()->direct ? errc::unavailable : carried_->announce(to, on, header, done);
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

// Nothing new gets at the memory any more. What is under way there is cut off, which only happens to peers that were declared
// dead: an operation that UCX has ended touches nothing. If one does not end, its writes may still land.
runtime::late_writes ucx_link::state::withdraw(std::uint64_t number) {
  memory_->withdraw(number);
  carried_->withdraw(number);
  lent_->abandon_all([&](const completion* done) { return carried_->uses(done, number); });
  if (lent_->working()) news_ = true;
  const auto under_way = [&]() -> const operation* {
    for (const operation* at = pending_.next; at != &pending_; at = at->next)
      if (at->outcome == UCS_INPROGRESS && carried_->uses(lent_->behind(at->done), number)) return at;
    return nullptr;
  };
  const auto until = clock::now() + burial_time;
  for (const operation* left = under_way(); left != nullptr; left = under_way()) {
    if (clock::now() > until) return runtime::late_writes::may_land;
    if (left->peer < peers_.size()) break_off(peers_[left->peer]);
    ucp_worker_progress(worker_->handle());
  }
  return runtime::late_writes::fail;
}

ucx_link::state::operation* ucx_link::state::find_pending(const completion& done) noexcept {
  for (operation* at = pending_.next; at != &pending_; at = at->next)
    if (at->done == &done && at->outcome == UCS_INPROGRESS) return at;
  return nullptr;
}

void ucx_link::state::cancel(completion& pending) {
  operation* const at = find_pending(pending);
  if (at == nullptr) {
    if (!lent_->cancel(pending)) carried_->cancel(pending);
    if (lent_->working()) news_ = true;
  } else if (!at->put) {
    at->cancelled = true;
    ucp_request_cancel(worker_->handle(), at->request);
  }
}

// UCX cannot take a send back; what it has queued for a peer goes with the endpoint, before any more of it is sent.
void ucx_link::state::abandon(completion& pending) {
  operation* const at = find_pending(pending);
  if (at == nullptr) {
    if (!lent_->abandon(pending)) carried_->abandon(pending);
    if (lent_->working()) news_ = true;
    return;
  }
  if (at->peer < peers_.size()) {
    peer_record& peer = peers_[at->peer];
    const bool is_declared_dead = std::count(broken_.begin(), broken_.end(), peer.id) != 0;
    peer.cut = peer.cut || (peer.endpoint != nullptr && !is_declared_dead);
    break_off(peer);
  }
  const auto until = clock::now() + burial_time;
  while (at->outcome == UCS_INPROGRESS && clock::now() < until) ucp_worker_progress(worker_->handle());
}

void ucx_link::state::release(const void* held, bool remote) noexcept {
  if (remote && lent_->holds(held)) return lent_->drop(held);
  if (remote) origin_of_remote_.erase(held);
  ucp_am_data_release(worker_->handle(), const_cast<void*>(held));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

// UCX's callbacks: they copy or keep, append, and leave.

ucs_status_t ucx_link::state::on_small_message(void* at, const void* header, std::size_t header_length, void* data,
                                               std::size_t length, const ucp_am_recv_param_t* param) {
  // Nearly every header has the full length, and a copy of known length is a few moves.
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
  const auto* header_bytes = static_cast<const std::byte*>(header);
  origin from;
  if (own.as == framing::with_origin) {
    if (header_length < sizeof from) return UCS_OK;
    header_length -= sizeof from;
    std::memcpy(&from, header_bytes + header_length, sizeof from);
    if (self.is_late(from)) return UCS_OK;
  }
  // What no link of ours can have sent is dropped: UCX then ends the sender's operation.
  if (header_length > max_header_bytes) return UCS_OK;
  const std::span<const std::byte> read_header(header_bytes, header_length);
  ++self.counted_.received[static_cast<std::size_t>(own.on)];
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    self.origin_of_remote_[data] = from;
    self.arrived_.put(own.on, &self.owner_, read_header, length, data, true);
    return UCS_INPROGRESS;
  }
  if (header_length + length <= arrival::inline_bytes) {
    self.arrived_.put(own.on, read_header, std::span<const std::byte>(static_cast<const std::byte*>(data), length));
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) == 0) {
    --self.counted_.received[static_cast<std::size_t>(own.on)];
    return UCS_OK;
  }
  self.arrived_.put(own.on, &self.owner_, read_header, length, data, false);
  return UCS_INPROGRESS;
}

void ucx_link::state::on_sent(void*, ucs_status_t outcome, void* of) {
  auto* ended = static_cast<operation*>(of);
  ended->outcome = outcome;
  if (ended->owner == nullptr) return;
  ended->owner->ended_.push_back(ended);
  ended->owner->news_ = true;
}

void ucx_link::state::on_fetched(void* request, ucs_status_t outcome, std::size_t, void* of) {
  on_sent(request, outcome, of);
}

void ucx_link::state::on_endpoint_error(void* at, ucp_ep_h endpoint, ucs_status_t) {
  auto& peer = *static_cast<peer_record*>(at);
  if (peer.endpoint != nullptr && peer.endpoint != endpoint) return;  // of the process before
  peer.broken = endpoint;
  peer.endpoint = nullptr;
  peer.owner->broken_.push_back(peer.id);
  peer.owner->news_ = true;
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
  for (operation* const left : std::exchange(stranded_, {})) end_early(*left);
  if (!ended_.empty()) {
    in_ending_.swap(ended_);
    for (operation* ended : in_ending_) {
      if (!waits_for_burial(*ended)) end(*ended);
    }
    in_ending_.clear();
  }
  if (lent_->working()) lent_->work();
  if (!broken_.empty() || !dying_.empty()) bury();
  delivering_ = false;
  if (lent_->working()) news_ = true;
}

// What fails with its peer ends when the peer is buried: by then it is known what has become of that.
bool ucx_link::state::waits_for_burial(const operation& ended) {
  if (ended.outcome == UCS_OK || ended.cancelled || ended.peer >= peers_.size()) return false;
  peer_record& peer = peers_[ended.peer];
  if (peer.condition == health::connected && tells_of_endpoint(ended.outcome)) break_off(peer);
  return peer.condition == health::dying;
}

void ucx_link::state::end(operation& ended) {
  ucp_request_free(ended.request);
  unlink(&ended);
  completion* const done = ended.done;
  errc outcome = translate(ended.outcome);
  // UCX calls what it purges from an endpoint that has failed cancelled, too, before it says that the endpoint has.
  if (outcome == errc::cancelled && (!ended.cancelled || peer_is_gone(ended.peer))) outcome = errc::peer_failed;
  recycle(&ended);
  if (done != nullptr) done->on_end(*done, outcome);
}

void ucx_link::state::bury() {
  std::vector<rank_id> broken;
  broken.swap(broken_);
  for (const rank_id id : broken) {
    break_off(peers_[id]);
  }
  // UCX ends most of what a dead peer left, but not every receive. What remains is ended here; its record stays until
  // UCX lets go of it.
  std::vector<rank_id> dying;
  dying.swap(dying_);
  for (const rank_id id : dying) {
    peer_record& peer = peers_[id];
    if ((clock::now() < peer.buried_at && is_unended(id)) || is_word_due(peer)) {
      dying_.push_back(id);
      continue;
    }
    // The completion may start and end others: each time from the beginning.
    for (operation* at = next_to_end(id); at != nullptr; at = next_to_end(id)) {
      if (at->outcome == UCS_INPROGRESS) {
        end_early(*at);
      } else {  // since this poll has ended what it found
        std::erase(ended_, at);
        end(*at);
      }
    }
    memory_->forget(id);        // not before: what was under way may have used its keys
    lent_->on_peer_failed(id);  // first: what it reads or lends for the others is theirs
    carried_->on_peer_failed(id);
    peer.condition = health::failed;
    if (on_failure_ != nullptr) on_failure_->on_peer_failed(id);
  }
  if (!dying_.empty() || !broken_.empty()) news_ = true;
}

ucx_link::state::operation* ucx_link::state::next_to_end(rank_id peer) noexcept {
  for (operation* at = pending_.next; at != &pending_; at = at->next)
    if (at->peer == peer && (at->outcome != UCS_INPROGRESS || at->done != nullptr)) return at;
  return nullptr;
}

void ucx_link::state::end_early(operation& left) noexcept {
  if (completion* const done = std::exchange(left.done, nullptr)) done->on_end(*done, errc::peer_failed);
}

void ucx_link::state::break_off(peer_record& peer) {
  if (peer.condition >= health::dying) return;
  peer.condition = health::dying;
  peer.buried_at = clock::now() + burial_time;
  peer.word_until = clock::now() + longest_silence;
  peer.next_look = {};
  dying_.push_back(peer.id);
  news_ = true;
  ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr);
  if (endpoint == nullptr) endpoint = std::exchange(peer.broken, nullptr);
  peer.broken = nullptr;
  if (endpoint != nullptr) close_endpoint(endpoint, UCP_EP_CLOSE_FLAG_FORCE);
}

bool ucx_link::state::is_unended(rank_id peer) const noexcept {
  for (const operation* at = pending_.next; at != &pending_; at = at->next)
    if (at->peer == peer && at->outcome == UCS_INPROGRESS) return true;
  return false;
}

bool ucx_link::state::is_word_due(peer_record& peer) noexcept {
  const auto now = clock::now();
  if (!word_is_due_ || now >= peer.word_until) return false;
  if (now < peer.next_look) return true;
  peer.next_look = now + silence_looked_at;
  if (!word_is_due_(peer.id)) peer.word_until = now;
  return now < peer.word_until;
}

void ucx_link::state::close_endpoint(ucp_ep_h endpoint, unsigned flags) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  void* const request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
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

// Records of operations, which are made once and used again.

ucx_link::state::operation* ucx_link::state::acquire() {
  if (spare_.empty()) {
    spare_.reserve(operations_.size() + 1);
    operations_.emplace_back();
    operations_.back().owner = this;
    return &operations_.back();
  }
  operation* const taken = spare_.back();
  spare_.pop_back();
  return taken;
}

void ucx_link::state::recycle(operation* used) noexcept {
  used->done = nullptr;
  used->request = nullptr;
  used->peer = nobody;
  used->to_come = {};
  used->put = used->cancelled = false;
  if (used->copy.capacity() > kept_copy_bytes) std::vector<std::byte>().swap(used->copy);
  spare_.push_back(used);  // has room: `acquire` reserved it
}

void ucx_link::state::start(operation* started, void* request) noexcept {
  started->request = request;
  started->outcome = UCS_INPROGRESS;
  started->previous = pending_.previous;
  started->next = &pending_;
  pending_.previous->next = started;
  pending_.previous = started;
}

void ucx_link::state::unlink(operation* ended) noexcept {
  ended->previous->next = ended->next;
  ended->next->previous = ended->previous;
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

std::vector<std::byte> ucx_link::address() const {
  std::vector<std::byte> bytes = state_->worker_->address();
  const std::vector<std::byte> check = check_of(bytes);
  bytes.insert(bytes.end(), check.begin(), check.end());
  return bytes;
}
bool ucx_link::is_address(std::span<const std::byte> bytes) {
  if (bytes.size() <= address_check_bytes || bytes.size() > max_address_bytes) return false;
  const auto check = bytes.last(address_check_bytes);
  return std::ranges::equal(check, check_of(bytes.first(bytes.size() - address_check_bytes)));
}
void ucx_link::connect(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts) {
  state_->connect(peer, address, restarts);
}
bool ucx_link::has_failed(rank_id peer) const noexcept { return state_->has_failed(peer); }
bool ucx_link::has_cut(rank_id peer) const noexcept { return state_->has_cut(peer); }
void ucx_link::give_up(rank_id peer) { state_->give_up(peer); }
std::string ucx_link::description() const { return state_->worker_->description(); }
rank_id ucx_link::rank() const noexcept { return state_->chosen_.rank; }
rank_id ucx_link::world_size() const noexcept { return state_->chosen_.world_size; }
void ucx_link::listen(channel on, handler* to) { state_->listen(on, to); }
void ucx_link::on_failure(failure_handler* to) { state_->on_failure_ = to; }
void ucx_link::ask_for_last_words(std::function<bool(rank_id)> is_due) { state_->word_is_due_ = std::move(is_due); }
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
