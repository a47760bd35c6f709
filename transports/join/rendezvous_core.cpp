#include <parley/transports/join/rendezvous_core.hpp>

#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/launch/environment.hpp>

#include <boost/asio/post.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace parley::transports {

namespace asio = boost::asio;
using boost::system::error_code;
using endpoint = asio::ip::tcp::endpoint;
using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;

namespace {

std::string address_text(const std::string& host, std::uint16_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

/// `rank 3`, `ranks 1, 4 and 7`, `ranks 1, 2, ... and 90 more`.
std::string ranks_text(const std::vector<rank_id>& ranks, std::size_t total) {
  constexpr std::size_t shown_most = 12;
  const std::size_t shown = std::min(ranks.size(), shown_most);
  std::string text = total == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == total ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (shown < total) text += " and " + std::to_string(total - shown) + " more";
  return text;
}

}  // namespace

rendezvous_core::~rendezvous_core() {
  if (options_.listening_fd >= 0) ::close(options_.listening_fd);
}

void rendezvous_core::join(member me, std::function<void(result<joined>)> done) {
  if (handlers_.done || ended_)
    runtime::raise({errc::bad_argument, "rendezvous::join was called twice; make a new one"});
  me_ = std::move(me);
  me_.rank = options_.rank;
  me_.incarnation = runtime::incarnation_of(me_.incarnation, options_.restarts);
  handlers_.done = std::move(done);
  asio::post(io_, [self = shared_from_this()] {
    if (self->ended_) return;
    if (auto fault = self->fault_of_options()) return self->fail(std::move(*fault));
    self->start();
  });
}

void rendezvous_core::start_deadline(runtime::time_ns span) {
  deadline_.expires_after(std::chrono::nanoseconds(span));
  deadline_.async_wait([weak = weak_from_this()](error_code stopped) {
    const auto self = weak.lock();
    if (!stopped && self && self->joining()) self->on_deadline();
  });
}

void rendezvous_core::succeed(std::vector<member> members, const wire::digest& digest, arrival how) {
  joined all;
  all.rejoined = how == arrival::rejoined;
  all.members = std::move(members);
  all.roster_digest = digest;
  all.authenticated = !key_.empty();
  all.session_key = wire::session_key(key_.secret(), options_.job, digest);
  deadline_.cancel();
  const auto done = std::exchange(handlers_.done, nullptr);
  done(std::move(all));
}

void rendezvous_core::fail(error why) {
  const auto done = std::exchange(handlers_.done, nullptr);
  close();
  if (done) done(std::move(why));
}

void rendezvous_core::drop_handlers() {
  ended_ = true;
  handlers_ = {};
  deadline_.cancel();
}

result<endpoint> rendezvous_core::resolve() {
  error_code fault;
  const auto numeric = asio::ip::make_address(options_.host, fault);
  if (!fault) return check_reach({numeric, options_.port});
  asio::ip::tcp::resolver names(io_);
  const auto found = names.resolve(options_.host, std::to_string(options_.port), fault);
  if (fault || found.empty()) {
    return error(errc::unavailable, "the rendezvous host " + options_.host + " has no address (" + fault.message() +
                                        "); set PARLEY_RENDEZVOUS to an address of rank 0's host");
  }
  return check_reach(found.begin()->endpoint());
}

result<endpoint> rendezvous_core::check_reach(const endpoint& at) const {
  if (!key_.empty() || at.address().is_loopback() || options_.reach == exposure::insecure) return at;
  return error(errc::unauthenticated,
               "a rendezvous at " + address_text(at.address().to_string(), at.port()) +
                   " can be reached from other hosts and this job has no key; set PARLEY_KEY_FILE on every rank to a "
                   "0600 file with 32 random bytes, meet at 127.0.0.1 if no other user has access to the host, or "
                   "allow an insecure job on every rank (job_options::reach)");
}

std::optional<runtime::root_cause> rendezvous_core::read_farewell(wire::scanner& in) const {
  runtime::root_cause why;
  why.rank = in.number<rank_id>();
  if (!in.good() || why.rank >= options_.world_size) return std::nullopt;
  why.what = in.text(in.left());
  return why;
}

std::string rendezvous_core::place() const { return address_text(options_.host, options_.port); }

std::string rendezvous_core::time_limit() const {
  const auto ms = options_.join_timeout_ns / 1'000'000;
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

std::string rendezvous_core::ranks_of_world(const std::vector<rank_id>& some, std::size_t total) const {
  return ranks_text(some, total) + " of " + std::to_string(options_.world_size);
}

error rendezvous_core::never_came(const std::vector<rank_id>& missing, std::size_t total,
                                  const std::string& refusals) const {
  return {errc::timeout, ranks_of_world(missing, total) + " never came to the rendezvous at " + place() + " within " +
                             time_limit() +
                             "; see whether they were started, ended early, or were given another PARLEY_RENDEZVOUS, "
                             "job or key" +
                             refusals};
}

std::optional<error> rendezvous_core::fault_of_options() const {
  const auto& o = options_;
  if (o.world_size == 0 || o.world_size > max_world_size || o.rank >= o.world_size) {
    return error(errc::bad_argument, rank_text(o.rank) + " of " + std::to_string(o.world_size) +
                                         " ranks is not possible; ranks count from 0 to world size - 1, at most " +
                                         std::to_string(max_world_size) + " ranks");
  }
  if (o.max_restarts > runtime::most_restarts || o.restarts > o.max_restarts || (o.restarts > 0 && o.rank == 0)) {
    return error(errc::bad_argument, "restart " + std::to_string(o.restarts) + " of " + rank_text(o.rank) +
                                         " is not possible: at most " + std::to_string(o.max_restarts) +
                                         " are allowed, and none of rank 0");
  }
  // Without a key, any process that can reach rank 0 could take a rank's place at any time while the job runs.
  if (o.max_restarts > 0 && key_.empty()) {
    return error(errc::unauthenticated, "a job whose ranks may restart needs a key; set PARLEY_KEY_FILE on "
                                        "every rank to a 0600 file with 32 random bytes");
  }
  if (me_.address.size() > member::max_address_bytes || me_.affinity.size() > member::max_affinity_words ||
      me_.version.size() > member::max_version_bytes || me_.kind.size() > member::max_kind_bytes) {
    return error(errc::bad_argument, rank_text(o.rank) + "'s entry is too large: its UCX address has " +
                                         std::to_string(me_.address.size()) + " of at most " +
                                         std::to_string(member::max_address_bytes) + " bytes");
  }
  return std::nullopt;
}

}  // namespace parley::transports
