#include <parley/transports/ucx/ucx_connections.hpp>

#include <parley/transports/ucx/ucx_address.hpp>
#include <parley/transports/ucx/ucx_memory.hpp>

#include <algorithm>
#include <string>

namespace parley::transports {
namespace {

/// How long a dying connection waits for its peer's last words, and how often it checks whether they are still due.
constexpr std::chrono::milliseconds longest_silence{1000};
constexpr std::chrono::milliseconds silence_looked_at{2};

/// True if UCX ended an operation with this status because its endpoint failed. UCX may report the endpoint's failure later.
bool tells_of_endpoint(ucs_status_t outcome) noexcept {
  return outcome == UCS_ERR_CANCELED || outcome == UCS_ERR_CONNECTION_RESET || outcome == UCS_ERR_ENDPOINT_TIMEOUT ||
         outcome == UCS_ERR_NOT_CONNECTED;
}

}  // namespace

ucx_connections::ucx_connections(ucp_worker_h worker, rank_id self, rank_id world_size, bool& news)
    : worker_(worker), self_(self), world_size_(world_size), news_(news), connections_(world_size) {
  for (rank_id peer = 0; peer < world_size; ++peer) {
    connections_[peer].all_ = this;
    connections_[peer].peer_ = peer;
  }
}

void ucx_connections::introduce(rank_id peer, std::span<const std::byte> address, std::uint32_t restarts) {
  if (!has(peer)) {
    runtime::raise({errc::bad_argument,
                    "rank " + std::to_string(peer) + " is outside the world of " + std::to_string(world_size_)});
  }
  ucx_connection& introduced = connections_[peer];
  const bool comes_back = introduced.stage_ == stage::failed && restarts > introduced.restarts_;
  if (introduced.stage_ != stage::unknown && !comes_back) {
    runtime::raise({errc::bad_argument, "rank " + std::to_string(peer) + " has an address already"});
  }
  if (!has_valid_check(address)) {
    runtime::raise({errc::bad_argument, "the " + std::to_string(address.size()) + " bytes from rank " +
                                            std::to_string(peer) +
                                            " are not a valid UCX address; use one build of parley on all ranks"});
  }
  introduced.address_ = for_ucx(address);
  introduced.restarts_ = restarts;
  introduced.direct_ = false;
  introduced.cut_ = false;
  introduced.stage_ = stage::known;
}

runtime::errc ucx_connections::make_endpoint(ucx_connection& to) {
  if (to.stage_ >= stage::connected) return errc::peer_failed;  // broken, even if it is not buried yet
  if (to.stage_ == stage::unknown) return errc::bad_argument;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(to.address_.data());
  // UCX's loopback transport reports no failures, and a rank needs no notice of its own death.
  params.err_mode = to.peer_ == self_ ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &on_endpoint_error;
  params.err_handler.arg = &to;
  ucp_ep_h endpoint = nullptr;
  if (ucp_ep_create(worker_, &params, &endpoint) != UCS_OK) {
    report_broken(to.peer_);  // typically the process has died, and left no shared memory to attach to
    return errc::peer_failed;
  }
  to.stage_ = stage::connected;
  if (to.broken_ != nullptr) return errc::peer_failed;  // UCX has called its error handler already
  to.endpoint_ = endpoint;
  to.direct_ = ucx_memory::reaches_directly(endpoint);
  return errc::none;
}

void ucx_connections::on_endpoint_error(void* connection, ucp_ep_h endpoint, ucs_status_t) {
  auto& failed = *static_cast<ucx_connection*>(connection);
  if (failed.endpoint_ != nullptr && failed.endpoint_ != endpoint) return;  // endpoint of an earlier process
  failed.broken_ = endpoint;
  failed.endpoint_ = nullptr;
  failed.all_->report_broken(failed.peer_);
}

void ucx_connections::report_broken(rank_id peer) {
  broken_.push_back(peer);
  news_ = true;
}

void ucx_connections::break_off(ucx_connection& broken) {
  if (broken.stage_ >= stage::dying) return;
  broken.stage_ = stage::dying;
  broken.unended_until_ = clock::now() + burial_time;
  broken.word_until_ = clock::now() + longest_silence;
  broken.next_look_ = {};
  dying_.push_back(broken.peer_);
  news_ = true;
  ucp_ep_h endpoint = std::exchange(broken.endpoint_, nullptr);
  if (endpoint == nullptr) endpoint = broken.broken_;
  broken.broken_ = nullptr;
  if (endpoint != nullptr) close_endpoint(endpoint, UCP_EP_CLOSE_FLAG_FORCE);
}

void ucx_connections::cut(ucx_connection& still_good) {
  const bool is_declared_dead = std::count(broken_.begin(), broken_.end(), still_good.peer_) != 0;
  still_good.cut_ = still_good.cut_ || (still_good.endpoint_ != nullptr && !is_declared_dead);
  break_off(still_good);
}

bool ucx_connections::is_dying_by(ucx_connection& with, ucs_status_t outcome) {
  if (with.stage_ == stage::connected && tells_of_endpoint(outcome)) break_off(with);
  return with.stage_ == stage::dying;
}

bool ucx_connections::break_off_reported() {
  const std::vector<rank_id> reported = std::exchange(broken_, {});
  for (const rank_id peer : reported) break_off(connections_[peer]);
  return !reported.empty();
}

bool ucx_connections::goes_on_dying(ucx_connection& taken, bool has_unended) {
  const bool waits = (has_unended && clock::now() < taken.unended_until_) || is_word_due(taken);
  if (waits) dying_.push_back(taken.peer_);
  return waits;
}

bool ucx_connections::is_word_due(ucx_connection& dying) noexcept {
  const auto now = clock::now();
  if (!is_word_due_ || now >= dying.word_until_) return false;
  if (now < dying.next_look_) return true;
  dying.next_look_ = now + silence_looked_at;
  if (!is_word_due_(dying.peer_)) dying.word_until_ = now;
  return now < dying.word_until_;
}

void ucx_connections::close_endpoint(ucp_ep_h endpoint, unsigned flags) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  void* const request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void ucx_connections::close() {
  for (ucx_connection& open : connections_) {
    if (ucp_ep_h endpoint = std::exchange(open.endpoint_, nullptr)) close_endpoint(endpoint, 0);
    if (ucp_ep_h endpoint = std::exchange(open.broken_, nullptr)) close_endpoint(endpoint, UCP_EP_CLOSE_FLAG_FORCE);
  }
}

bool ucx_connections::is_closed() const {
  return std::all_of(closing_.begin(), closing_.end(),
                     [](void* request) { return ucp_request_check_status(request) != UCS_INPROGRESS; });
}

void ucx_connections::forget_closed() {
  for (void* request : closing_) ucp_request_free(request);
  closing_.clear();
}

}  // namespace parley::transports
