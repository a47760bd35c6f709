#include <parley/transports/join/rendezvous.hpp>

#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/join/rendezvous_stream.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>

#ifndef PARLEY_VERSION
#define PARLEY_VERSION "0.1.0"
#endif

namespace parley::transports {

namespace asio = boost::asio;
using boost::system::error_code;
using endpoint = asio::ip::tcp::endpoint;
using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;

namespace {

constexpr std::size_t max_listed_ranks = 200;
constexpr std::uint32_t max_patience_ms = 600'000;  // what rank 0 may ask the others to wait for

std::string address_text(const std::string& host, std::uint16_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

std::string seconds_text(runtime::time_ns span) {
  const auto ms = span / 1'000'000;
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
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

error never_came(const std::vector<rank_id>& missing, std::size_t total, rank_id world, const std::string& place,
                 runtime::time_ns waited, const std::string& refusals) {
  return {errc::timeout, ranks_text(missing, total) + " of " + std::to_string(world) +
                             " never came to the rendezvous at " + place + " within " + seconds_text(waited) +
                             "; see whether they were started, ended early, or were given another PARLEY_RENDEZVOUS, "
                             "job or key" +
                             refusals};
}

}  // namespace

std::uint64_t fresh_incarnation() {
  std::uint64_t value = 0;
  while (value == 0) {
    wire::randomise(std::as_writable_bytes(std::span(&value, 1)));
    value = runtime::incarnation_of(value, 0);
  }
  return value;
}

std::uint64_t host_identity() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  text += std::string("@") + name;
  const auto digest = wire::sha256(std::as_bytes(std::span<const char>(text)));
  return wire::scanner(digest).number<std::uint64_t>();
}

member this_process(std::vector<std::byte> address) {
  member me;
  me.incarnation = fresh_incarnation();
  me.host = host_identity();
  me.pid = static_cast<std::uint32_t>(::getpid());
  struct stat space{};
  if (::stat("/proc/self/ns/pid", &space) == 0) me.pids_of = space.st_ino;
  me.address = std::move(address);
  me.version = PARLEY_VERSION;
  // Machines with more processors than this are described by their first 8,192.
  std::array<std::uint64_t, member::max_affinity_words> words{};
  if (::sched_getaffinity(0, sizeof words, reinterpret_cast<cpu_set_t*>(words.data())) == 0) {
    const auto last = std::find_if(words.rbegin(), words.rend(), [](std::uint64_t word) { return word != 0; });
    me.affinity.assign(words.begin(), last.base());
  }
  return me;
}

rendezvous_options options_for(const placement& place) {
  rendezvous_options options;
  options.rank = place.rank;
  options.world_size = place.world_size;
  options.job = place.job;
  options.host = place.rendezvous_host;
  options.port = place.rendezvous_port;
  options.listening_fd = place.listening_fd;
  options.max_restarts = place.max_restarts;
  options.restarts = place.restarts;
  return options;
}

/// What both sides share: options, key, the join's end and the losses. A world of one needs nothing more.
class rendezvous::core : public stream_owner, public std::enable_shared_from_this<core> {
 public:
  core(asio::io_context& io, rendezvous_options options, job_key key)
      : io_(io), options_(std::move(options)), key_(std::move(key)), deadline_(io) {}
  virtual ~core() {
    if (options_.listening_fd >= 0) ::close(options_.listening_fd);
  }

  void join(member me, join_handler done) {
    if (done_ || ended_) runtime::raise({errc::bad_argument, "rendezvous::join was called twice; make a new one"});
    me_ = std::move(me);
    me_.rank = options_.rank;
    if (me_.incarnation == 0) me_.incarnation = fresh_incarnation();
    me_.incarnation = runtime::incarnation_of(me_.incarnation, options_.restarts);
    done_ = std::move(done);
    asio::post(io_, [self = shared_from_this()] {
      if (self->ended_) return;
      if (auto fault = self->fault_of_options()) return self->fail(std::move(*fault));
      self->start();
    });
  }
  void on_loss(loss_handler handler) { lost_ = std::move(handler); }
  void on_left(farewell_handler handler) { left_ = std::move(handler); }
  void on_restart(restart_handler handler) { restarted_ = std::move(handler); }
  virtual void hold_dead(const member&, const std::string&) {}

  virtual void leave(const runtime::root_cause&, const std::function<void()>& told) {
    close();
    if (told) told();
  }
  virtual void close() {
    ended_ = true;
    done_ = nullptr;
    lost_ = nullptr;
    left_ = nullptr;
    restarted_ = nullptr;
    deadline_.cancel();
  }
  virtual std::vector<int> descriptors() { return {}; }
  std::uint64_t dropped() const { return dropped_; }

  std::optional<std::size_t> limit(const stream&, wire::type) const override { return std::nullopt; }
  void on_frame(stream&, const incoming&) override {}
  void on_end(stream&, const std::string&) override {}

 protected:
  virtual void start() {
    std::vector<member> members{me_};
    const auto digest = wire::sha256(wire::encode_roster(options_.job, members));
    succeed(std::move(members), digest);
  }

  /// Names who is where, for texts.
  std::string place() const { return address_text(options_.host, options_.port); }
  bool joining() const { return static_cast<bool>(done_); }
  bool ended() const { return ended_; }

  void start_deadline(runtime::time_ns span) {
    deadline_.expires_after(std::chrono::nanoseconds(span));
    deadline_.async_wait([weak = weak_from_this()](error_code stopped) {
      const auto self = weak.lock();
      if (!stopped && self && self->joining()) self->on_deadline();
    });
  }
  virtual void on_deadline() {}

  enum class arrival : std::uint8_t { at_first, rejoined };
  void succeed(std::vector<member> members, const wire::digest& digest, arrival how = arrival::at_first) {
    joined all;
    all.rejoined = how == arrival::rejoined;
    all.members = std::move(members);
    all.roster_digest = digest;
    all.authenticated = !key_.empty();
    all.session_key = wire::session_key(key_.secret(), options_.job, digest);
    deadline_.cancel();
    const auto done = std::exchange(done_, nullptr);
    done(std::move(all));
  }

  void fail(error why) {
    const auto done = std::exchange(done_, nullptr);
    close();
    if (done) done(std::move(why));
  }

  void lose(rank_id rank, const std::string& why) {
    const auto handler = lost_;  // it may destroy the rendezvous
    if (handler) handler(rank, why);
  }
  void part_with(rank_id rank, const runtime::root_cause& why) {
    const auto handler = left_;
    if (handler) handler(rank, why);
  }
  void meet_again(const member& anew) {
    const auto handler = restarted_;
    if (handler) handler(anew);
  }
  static wire::bytes notice(rank_id rank, const std::string& why) {
    return wire::writer().number(rank).text(why.substr(0, wire::max_notice_bytes / 2)).take();
  }
  static void write_cause(wire::writer& out, const runtime::root_cause& why) {
    out.number(why.rank).text(why.what.substr(0, wire::max_notice_bytes / 2));
  }
  static wire::bytes farewell(const runtime::root_cause& why) {
    wire::writer words;
    write_cause(words, why);
    return words.take();
  }
  /// What `rank` says that it ends because of; nothing where these are not the bytes of that.
  std::optional<runtime::root_cause> read_cause(wire::scanner& in) const {
    runtime::root_cause why;
    why.rank = in.number<rank_id>();
    if (!in.good() || why.rank >= options_.world_size) return std::nullopt;
    why.what = in.text(in.left());
    return why;
  }

  /// One address to bind or to connect to, within the reach that is allowed.
  result<endpoint> resolve() {
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

  result<endpoint> check_reach(const endpoint& at) const {
    if (!key_.empty() || at.address().is_loopback() || options_.reach == exposure::insecure) return at;
    return error(errc::unauthenticated,
                 "a rendezvous at " + address_text(at.address().to_string(), at.port()) +
                     " can be reached from other hosts and this job has no key; set PARLEY_KEY_FILE on every rank to a "
                     "0600 file with 32 random bytes, meet at 127.0.0.1 where nobody else may use the host, or let the "
                     "program say on every rank that it may be insecure (job_options::reach)");
  }

  asio::io_context& io_;
  rendezvous_options options_;
  job_key key_;
  member me_;
  std::uint64_t dropped_ = 0;

 private:
  std::optional<error> fault_of_options() const {
    const auto& o = options_;
    if (o.world_size == 0 || o.world_size > max_world_size || o.rank >= o.world_size) {
      return error(errc::bad_argument, "rank " + std::to_string(o.rank) + " of " + std::to_string(o.world_size) +
                                           " ranks is not possible; ranks count from 0 to world size - 1, at most " +
                                           std::to_string(max_world_size) + " ranks");
    }
    if (o.max_restarts > runtime::most_restarts || o.restarts > o.max_restarts || (o.restarts > 0 && o.rank == 0)) {
      return error(errc::bad_argument, "rank " + std::to_string(o.rank) + " cannot be at its restart " +
                                           std::to_string(o.restarts) + " of at most " +
                                           std::to_string(o.max_restarts) + "; rank 0 cannot be started anew at all");
    }
    // Whoever can reach it could take a place in a job that runs, not only while the ranks join.
    if (o.max_restarts > 0 && key_.empty()) {
      return error(errc::unauthenticated, "a job whose ranks may be started anew needs a key; set PARLEY_KEY_FILE on "
                                          "every rank to a 0600 file with 32 random bytes");
    }
    if (me_.address.size() > member::max_address_bytes || me_.affinity.size() > member::max_affinity_words ||
        me_.version.size() > member::max_version_bytes || me_.kind.size() > member::max_kind_bytes) {
      return error(errc::bad_argument, "rank " + std::to_string(o.rank) +
                                           "'s entry is too large: its UCX address has " +
                                           std::to_string(me_.address.size()) + " of at most " +
                                           std::to_string(member::max_address_bytes) + " bytes");
    }
    return std::nullopt;
  }

  asio::steady_timer deadline_;
  join_handler done_;
  loss_handler lost_;
  farewell_handler left_;
  restart_handler restarted_;
  bool ended_ = false;
};

namespace {

/// One connection as rank 0 sees it.
struct client final : stream {
  enum class phase { greeting, proving, presenting, present };
  client(stream::socket connected, const std::weak_ptr<stream_owner>& owner, asio::io_context& io)
      : stream(std::move(connected), owner, wire::direction::to_member), patience(io) {}
  bool recognised() const { return at == phase::presenting || at == phase::present; }

  phase at = phase::greeting;
  wire::hello said;
  bool said_bye = false;
  asio::steady_timer patience;
};

}  // namespace

/// Rank 0: accepts, recognises, collects, sends the roster, then tells who is lost, and who comes back.
class rendezvous::host final : public core {
 public:
  host(asio::io_context& io, rendezvous_options options, job_key key)
      : core(io, std::move(options), std::move(key)), acceptor_(io), retry_(io), seats_(options_.world_size),
        entries_(options_.world_size) {}

  void leave(const runtime::root_cause& why, const std::function<void()>& told) override {
    for (auto& [address, c] : clients_) {
      if (!c->recognised()) continue;
      c->send(wire::type::bye, farewell(why));
      c->finish();
    }
    core::leave(why, told);
  }

  void close() override {
    core::close();
    stop_accepting();
    for (auto& [address, c] : clients_) {
      c->patience.cancel();
      c->finish();
    }
    clients_.clear();
  }

  std::vector<int> descriptors() override {
    std::vector<int> all;
    if (acceptor_.is_open()) all.push_back(acceptor_.native_handle());
    for (auto& [address, c] : clients_) {
      if (c->open()) all.push_back(c->descriptor());
    }
    return all;
  }

  std::optional<std::size_t> limit(const stream& from, wire::type kind) const override {
    switch (static_cast<const client&>(from).at) {
      case client::phase::greeting:
        if (kind == wire::type::hello) return wire::max_unauthenticated_bytes / 2;
        break;
      case client::phase::proving:
        if (kind == wire::type::proof) return 0;
        break;
      case client::phase::presenting:
        if (kind == wire::type::member) return wire::max_member_bytes;
        break;
      case client::phase::present:
        if (kind == wire::type::bye || kind == wire::type::lost) return wire::max_notice_bytes;
        break;
    }
    return std::nullopt;
  }

  void on_frame(stream& from, const incoming& frame) override {
    auto& c = static_cast<client&>(from);
    if (frame.kind == wire::type::hello) return greet(c, frame.payload);
    if (!c.authentic(frame)) return drop(c, "it does not hold the key of this job");
    switch (frame.kind) {
      case wire::type::proof: return recognise(c);
      case wire::type::member: return seat(c, frame.payload);
      case wire::type::bye: return let_go(c, frame.payload);
      case wire::type::lost: return hear_of_death(c, frame.payload);
      default: return;
    }
  }

  // A host takes all its ranks with it. They are told together, as rank 0 may end because of the first one.
  void on_end(stream& from, const std::string& why) override {
    auto& c = static_cast<client&>(from);
    std::vector<rank_id> with_it;
    if (c.fell_silent() && seats_[c.said.rank] == &c) with_it = silent_neighbours(c.said.rank);
    for (const rank_id rank : with_it) end(rank, died(rank, why));
    forget(c, why);
    for (const rank_id rank : with_it) lose(rank, died(rank, why));
  }

  void hold_dead(const member& dead, const std::string& why) override {
    if (!joining() && !ended() && dead.rank != 0 && is_there(dead.rank, dead.incarnation)) end(dead.rank, why);
  }

 private:
  struct gone {
    wire::type what;
    wire::bytes told;
  };

  void start() override {
    entries_[0] = me_;
    present_ = 1;
    const auto opened = options_.listening_fd >= 0 ? adopt() : bind();
    if (!opened) return fail(opened.reason());
    ends_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.join_timeout_ns);
    start_deadline(options_.join_timeout_ns);
    accept();
  }

  result<> bind() {
    auto at = resolve();
    if (!at) return at.reason();
    error_code fault;
    // A host's own name often means loopback in its own list of hosts, and something else to the hosts that must find it.
    asio::ip::make_address(options_.host, fault);
    const bool by_name = bool(fault) && options_.host != "localhost";
    if (by_name && at->address().is_loopback() && !key_.empty()) at = endpoint(asio::ip::tcp::v4(), options_.port);
    fault.clear();
    acceptor_.open(at->protocol(), fault);
    if (!fault) {
      ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
      acceptor_.set_option(asio::socket_base::reuse_address(true), fault);
    }
    if (!fault) acceptor_.bind(*at, fault);
    if (!fault) acceptor_.listen(asio::socket_base::max_listen_connections, fault);
    if (fault) {
      return error(errc::io, "rank 0 cannot listen at " + place() + " for the rendezvous: " + fault.message() +
                                 "; set PARLEY_RENDEZVOUS to a free port of an address of this host, on every rank");
    }
    return {};
  }

  /// Takes over the socket that the launcher made.
  result<> adopt() {
    const int fd = std::exchange(options_.listening_fd, -1);
    int listens = 0;
    socklen_t size = sizeof listens;
    sockaddr_storage address{};
    socklen_t address_size = sizeof address;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size) != 0 ||
        (address.ss_family != AF_INET && address.ss_family != AF_INET6)) {
      return error(errc::bad_argument, "descriptor " + std::to_string(fd) +
                                           " is no listening TCP socket; unset "
                                           "PARLEY_RENDEZVOUS_FD or start the ranks with `parley run`");
    }
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    error_code fault;
    acceptor_.assign(address.ss_family == AF_INET ? asio::ip::tcp::v4() : asio::ip::tcp::v6(), fd, fault);
    if (fault) return error(errc::io, "the inherited rendezvous socket cannot be used: " + fault.message());
    const auto at = acceptor_.local_endpoint(fault);
    if (!fault) {
      options_.host = at.address().to_string();
      options_.port = at.port();
    }
    const auto allowed = check_reach(at);
    if (!allowed) return allowed.reason();
    return {};
  }

  void accept() {
    acceptor_.async_accept([weak = weak_from_this()](error_code fault, stream::socket connected) {
      const auto self = std::static_pointer_cast<host>(weak.lock());
      if (!self || !self->acceptor_.is_open()) return;
      if (fault) return self->accept_later();
      self->welcome(std::move(connected));
      self->accept();
    });
  }

  /// Out of descriptors or a client that was gone at once: neither may end the rendezvous, nor spin.
  void accept_later() {
    retry_.expires_after(std::chrono::milliseconds(20));
    retry_.async_wait([weak = weak_from_this()](error_code) {
      const auto self = std::static_pointer_cast<host>(weak.lock());
      if (self && self->acceptor_.is_open()) self->accept();
    });
  }

  void stop_accepting() {
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
  }

  void welcome(stream::socket connected) {
    prepare(connected);
    const auto pending =
        std::count_if(clients_.begin(), clients_.end(), [](const auto& entry) { return !entry.second->recognised(); });
    const auto c = std::make_shared<client>(std::move(connected), weak_from_this(), io_);
    if (pending >= 2 * static_cast<std::ptrdiff_t>(options_.world_size)) {
      note(*c, "too many clients were waiting at once");
      return c->close();
    }
    clients_.emplace(c.get(), c);
    c->distrust(wire::max_unauthenticated_bytes);
    c->patience.expires_after(std::chrono::nanoseconds(options_.handshake_timeout_ns));
    c->patience.async_wait([weak = weak_from_this(), late = std::weak_ptr<stream>(c)](error_code stopped) {
      const auto self = std::static_pointer_cast<host>(weak.lock());
      const auto slow = std::static_pointer_cast<client>(late.lock());
      if (!stopped && self && slow && slow->open()) self->drop(*slow, "it was too slow");
    });
    c->start();
  }

  void greet(client& c, std::span<const std::byte> payload) {
    const auto said = wire::hello::decode(payload);
    if (!said) return drop(c, "it sent bytes that are no greeting");
    if (said->version != wire::protocol_version) {
      return reject(c, wire::refusal::version, wire::protocol_version,
                    "it speaks version " + std::to_string(said->version));
    }
    if (said->job != options_.job) return reject(c, wire::refusal::job, 0, "it belongs to another job");
    if (said->world_size != options_.world_size) {
      return reject(c, wire::refusal::world_size, options_.world_size,
                    "it expects " + std::to_string(said->world_size) + " ranks");
    }
    if (said->rank >= options_.world_size) {
      return reject(c, wire::refusal::rank, options_.world_size, "it claims rank " + std::to_string(said->rank));
    }
    // In a job that runs, nobody learns that without the key.
    if (joining()) {
      if (const auto why = refuse(*said)) return reject(c, *why);
    }
    c.said = *said;
    wire::challenge question;
    question.incarnation = me_.incarnation;
    const auto until =
        joining() ? ends_ - std::chrono::steady_clock::now() : std::chrono::nanoseconds(options_.handshake_timeout_ns);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until);
    question.left_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 0, max_patience_ms));
    wire::randomise(question.nonce);
    const auto sent = question.encode();
    c.set_key(wire::connection_key(key_.secret(), payload, sent));
    c.at = client::phase::proving;
    c.send(wire::type::challenge, sent);
  }

  struct refused {
    wire::refusal why;
    std::uint32_t detail;
    std::string text;
  };
  /// What speaks against the process that says so in the place of its rank, if anything.
  std::optional<refused> refuse(const wire::hello& said) const {
    const std::string who = "rank " + std::to_string(said.rank);
    const std::uint32_t restarts = runtime::restarts_of(said.incarnation);
    refused duplicate{wire::refusal::duplicate, said.rank, who + " is here already"};
    if (said.rank == 0) return duplicate;
    if (restarts > options_.max_restarts)
      return refused{wire::refusal::too_often, options_.max_restarts,
                     who + " was started anew " + std::to_string(restarts) + " times"};
    std::uint64_t known = 0;
    if (!joining()) {
      known = roster_[said.rank].incarnation;
    } else if (seats_[said.rank] != nullptr) {
      known = seats_[said.rank]->said.incarnation;
    } else {
      return std::nullopt;
    }
    if (restarts > runtime::restarts_of(known)) return std::nullopt;
    if (restarts == 0 && joining()) return duplicate;
    return refused{wire::refusal::not_newer, runtime::restarts_of(known),
                   who + " is not newer than the process that is or was in its place"};
  }

  void recognise(client& c) {
    // Two clients may have been greeted as one rank; the first that proves itself has it.
    if (const auto why = refuse(c.said)) return reject(c, *why);
    c.at = client::phase::presenting;
    c.trust();
    if (!joining()) return;  // its seat is its own once it is known from where it comes
    if (client* const older = seats_[c.said.rank]) {
      reject(*older, {wire::refusal::not_newer, runtime::restarts_of(c.said.incarnation),
                      "rank " + std::to_string(c.said.rank) + " was started anew"});
    }
    seats_[c.said.rank] = &c;
  }

  void seat(client& c, std::span<const std::byte> payload) {
    wire::scanner in(payload);
    auto entry = wire::decode_member(in);
    if (!entry || !in.complete() || entry->rank != c.said.rank || entry->incarnation != c.said.incarnation ||
        (options_.is_address != nullptr && !options_.is_address(entry->address))) {
      return drop(c, "rank " + std::to_string(c.said.rank) + " sent an entry that is malformed or not its own");
    }
    c.patience.cancel();
    if (!joining()) return take_back(c, *entry);
    c.at = client::phase::present;
    entries_[c.said.rank] = std::move(entry);
    if (++present_ == options_.world_size) complete();
  }

  /// A new process in the place of one that was in the job. Those who hold the older one for alive learn of its end first.
  void take_back(client& c, const member& anew) {
    if (const auto why = refuse(c.said)) return reject(c, *why);  // another one may have been faster
    const member& before = roster_[anew.rank];
    if (anew.host != before.host || anew.kind != before.kind) {
      return reject(c, {wire::refusal::elsewhere, anew.rank,
                        "rank " + std::to_string(anew.rank) + " has moved to another host or kind of machine"});
    }
    const std::string over = died(anew.rank, "another process was started in its place");
    if (end(anew.rank, over)) lose(anew.rank, over);
    if (ended()) return;
    seats_[anew.rank] = &c;
    roster_[anew.rank] = anew;
    gone_.erase(anew.rank);
    c.send(wire::type::rejoined,
           wire::writer().raw(first_digest_).raw(wire::encode_roster(options_.job, roster_)).take());
    for (const auto& [rank, news] : gone_) c.send(news.what, news.told);
    tell_all(wire::type::restarted, wire::encode_member(anew));
    c.at = client::phase::present;
    meet_again(anew);
  }

  /// The process in the place of that rank counts no more. All are told, and itself, should it still listen. False when it was
  /// gone before.
  bool end(rank_id rank, const std::string& why) {
    if (client* const older = std::exchange(seats_[rank], nullptr)) {
      const auto keep = clients_.at(older);
      clients_.erase(older);
      older->send(wire::type::lost, notice(rank, why));
      older->finish();
    }
    return announce(wire::type::lost, rank, notice(rank, why));
  }

  /// Of the processes of a host another one there knows best, and nobody else can see that one was stopped.
  void hear_of_death(const client& c, std::span<const std::byte> payload) {
    wire::scanner in(payload);
    const auto rank = in.number<rank_id>();
    const auto incarnation = in.number<std::uint64_t>();
    const rank_id witness = c.said.rank;
    if (!in.good() || rank == 0 || joining() || ended() || seats_[witness] != &c) return;
    if (rank == witness || !is_there(rank, incarnation) || roster_[rank].host != roster_[witness].host) return;
    const std::string why = in.text(in.left());
    if (end(rank, why)) lose(rank, why);
  }

  /// Whether no newer process is in that place.
  bool is_there(rank_id rank, std::uint64_t incarnation) const {
    return rank < roster_.size() && roster_[rank].incarnation == incarnation;
  }

  /// Tells all who is gone, and later those who come back. False when they know.
  bool announce(wire::type what, rank_id rank, wire::bytes words) {
    const auto [news, is_new] = gone_.try_emplace(rank, gone{what, std::move(words)});
    if (is_new) tell_all(what, news->second.told);
    return is_new;
  }

  void complete() {
    if (options_.max_restarts == 0) stop_accepting();
    std::vector<member> members;
    members.reserve(entries_.size());
    for (auto& entry : entries_) members.push_back(std::move(entry.value()));
    const auto roster = std::make_shared<const wire::bytes>(wire::encode_roster(options_.job, members));
    const auto digest = wire::sha256(*roster);
    roster_ = members;
    first_digest_ = digest;
    for (auto it = clients_.begin(); it != clients_.end();) {
      auto& c = *it->second;
      if (c.at == client::phase::present) {
        c.send(wire::type::roster, roster, digest);
        ++it;
      } else {
        c.patience.cancel();
        c.close();
        it = clients_.erase(it);
      }
    }
    succeed(std::move(members), digest);
  }

  void on_deadline() override {
    std::vector<rank_id> missing;
    std::size_t total = 0;
    for (rank_id rank = 0; rank < options_.world_size; ++rank) {
      if (entries_[rank]) continue;
      ++total;
      if (missing.size() < max_listed_ranks) missing.push_back(rank);
    }
    wire::writer notice;
    notice.number(static_cast<std::uint32_t>(total)).number(static_cast<std::uint32_t>(missing.size()));
    for (const rank_id rank : missing) notice.number(rank);
    const auto payload = notice.take();
    for (auto& [address, c] : clients_) {
      if (c->recognised()) c->send(wire::type::failed, payload);
    }
    std::string refusals;
    if (dropped_ > 0) {
      refusals = "; " + std::to_string(dropped_) + (dropped_ == 1 ? " client was" : " clients were") +
                 " refused, the last one " + last_drop_;
    }
    fail(never_came(missing, total, options_.world_size, place(), options_.join_timeout_ns, refusals));
  }

  void note(const client& c, const std::string& why) {
    ++dropped_;
    last_drop_ = "from " + c.peer() + " because " + why;
  }

  void reject(client& c, const refused& r) { reject(c, r.why, r.detail, r.text); }

  void reject(client& c, wire::refusal reason, std::uint32_t detail, const std::string& why) {
    c.send(wire::type::reject, wire::writer().number(static_cast<std::uint8_t>(reason)).number(detail).take());
    drop(c, why);
  }

  void drop(client& c, const std::string& why) {
    c.finish();
    forget(c, why);
  }

  static std::string died(rank_id rank, const std::string& why) {
    return "rank " + std::to_string(rank) + " died: " + why;
  }

  /// Those of the same host as that rank who are not heard any more either; nobody while the ranks join.
  std::vector<rank_id> silent_neighbours(rank_id rank) const {
    std::vector<rank_id> found;
    for (const member& other : roster_) {
      client* const at = seats_[other.rank];
      if (other.rank != rank && other.host == roster_[rank].host && at && !at->said_bye && at->seems_silent()) {
        found.push_back(other.rank);
      }
    }
    return found;
  }

  /// The connection is over; what that means depends on how far it had come.
  void forget(client& c, const std::string& why) {
    const auto found = clients_.find(&c);
    if (found == clients_.end()) return;
    const auto keep = found->second;
    clients_.erase(found);
    c.patience.cancel();
    const rank_id rank = c.said.rank;
    const bool seated = c.recognised() && seats_[rank] == &c;
    if (seated) seats_[rank] = nullptr;
    if (joining()) {
      if (seated && std::exchange(entries_[rank], std::nullopt)) --present_;
      return note(c, why);
    }
    if (!seated) return note(c, why);
    if (c.said_bye || ended()) return;
    if (announce(wire::type::lost, rank, notice(rank, died(rank, why)))) lose(rank, died(rank, why));
  }

  void let_go(client& c, std::span<const std::byte> payload) {
    if (std::exchange(c.said_bye, true) || joining()) return;
    wire::scanner in(payload);
    const rank_id rank = c.said.rank;
    const runtime::root_cause why = read_cause(in).value_or(runtime::root_cause{rank, {}});
    wire::writer words;
    words.number(rank);
    write_cause(words, why);
    const bool is_new = announce(wire::type::left, rank, words.take());
    if (!why.what.empty()) drop(c, {});  // it waits for that: the others have been told
    if (is_new) part_with(rank, why);
  }

  void tell_all(wire::type what, const wire::bytes& payload) {
    for (auto& [address, other] : clients_) {
      if (other->at == client::phase::present && !other->said_bye) other->send(what, payload);
    }
  }

  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::map<const stream*, std::shared_ptr<client>> clients_;
  std::vector<client*> seats_;                  ///< by rank: who has proved to be it
  std::vector<std::optional<member>> entries_;  ///< by rank, until the roster is complete
  rank_id present_ = 0;
  std::vector<member> roster_;  ///< once all have joined: who is in each place, or was last
  wire::digest first_digest_{};
  std::map<rank_id, gone> gone_;  ///< what was told of those that are not there any more
  std::chrono::steady_clock::time_point ends_;
  std::string last_drop_;
};

/// Any other rank: finds rank 0, proves itself, waits for the roster, then hears who is lost.
class rendezvous::guest final : public core {
 public:
  guest(asio::io_context& io, rendezvous_options options, job_key key)
      : core(io, std::move(options), std::move(key)), connecting_(io), pause_(io) {}

  void leave(const runtime::root_cause& why, const std::function<void()>& told) override {
    const auto listens = [this] { return at_ == phase::joined && link_ && link_->open(); };
    if (listens()) link_->send(wire::type::bye, farewell(why));
    if (!told || !listens()) return core::leave(why, told);
    core::close();
    at_ = phase::leaving;
    told_ = told;
  }

  void hold_dead(const member& dead, const std::string& why) override {
    if (!link_ || !link_->open() || at_ != phase::joined) return;
    wire::writer words;
    words.number(dead.rank).number(dead.incarnation).text(why.substr(0, wire::max_notice_bytes / 2));
    link_->send(wire::type::lost, words.take());
  }

  void close() override {
    core::close();
    pause_.cancel();
    error_code ignored;
    connecting_.close(ignored);
    told_ = nullptr;
    if (link_) link_->finish();
    link_.reset();
  }

  std::vector<int> descriptors() override {
    if (link_ && link_->open()) return {link_->descriptor()};
    if (connecting_.is_open()) return {connecting_.native_handle()};
    return {};
  }

  std::optional<std::size_t> limit(const stream&, wire::type kind) const override {
    switch (at_) {
      case phase::greeting:
        if (kind == wire::type::challenge || kind == wire::type::reject) return wire::max_unauthenticated_bytes / 2;
        break;
      case phase::waiting:
        if (kind == wire::type::roster) return longest_roster();
        if (kind == wire::type::rejoined && options_.restarts > 0) return sizeof(wire::digest) + longest_roster();
        if (kind == wire::type::failed) return wire::max_notice_bytes;
        // Rank 0 notices a second holder of a rank only when both have proved themselves.
        if (kind == wire::type::reject) return wire::max_unauthenticated_bytes / 2;
        break;
      case phase::joined:
      case phase::leaving:
        if (kind == wire::type::lost || kind == wire::type::left || kind == wire::type::bye)
          return wire::max_notice_bytes;
        if (kind == wire::type::restarted) return wire::max_member_bytes;
        break;
    }
    return std::nullopt;
  }

  void on_frame(stream& from, const incoming& frame) override {
    if (&from != link_.get()) return;
    if (frame.kind == wire::type::reject) return rejected(frame.payload);
    if (frame.kind == wire::type::challenge) return answer(frame);
    if (at_ == phase::leaving) return;  // until the connection ends
    if (!from.authentic(frame)) {
      return broken({errc::unauthenticated, "rank 0 at " + place() + " sent a frame with a wrong tag"});
    }
    switch (frame.kind) {
      case wire::type::roster: return take_roster(frame.payload, wire::sha256(frame.payload), arrival::at_first);
      case wire::type::rejoined: return take_rejoined(frame.payload);
      case wire::type::restarted: return take_restarted(frame.payload);
      case wire::type::failed: return take_failure(frame.payload);
      case wire::type::lost:
      case wire::type::left: return take_notice(frame.kind, frame.payload);
      case wire::type::bye: {
        wire::scanner in(frame.payload);
        const runtime::root_cause why = read_cause(in).value_or(runtime::root_cause{});
        link_->close();
        link_.reset();  // nobody watches any more
        return part_with(0, why);
      }
      default: return;
    }
  }

  void on_end(stream& from, const std::string& why) override {
    if (&from != link_.get()) return;
    link_.reset();
    if (at_ == phase::leaving) return std::exchange(told_, nullptr)();
    if (at_ == phase::joined) {
      lose(0, "rank 0 died: " + why);
      // A host takes all its ranks with it, and nobody else would tell of them.
      if (!from.fell_silent()) return;
      for (const rank_id rank : beside_rank_0_) lose(rank, "rank " + std::to_string(rank) + " died: " + why);
      return;
    }
    if (at_ == phase::waiting) {
      return fail({errc::peer_failed, "rank 0 at " + place() + " ended while the ranks were joining (" + why +
                                          "); its own output says why"});
    }
    trouble_ = "whoever listens there said nothing that a rank 0 says: " + why;
    try_again();
  }

 private:
  enum class phase { greeting, waiting, joined, leaving };

  void start() override {
    auto at = resolve();
    if (!at) return fail(at.reason());
    host_at_ = *at;
    start_deadline(options_.join_timeout_ns);
    connect();
  }

  void connect() {
    at_ = phase::greeting;
    connecting_ = stream::socket(io_);
    error_code fault;
    connecting_.open(host_at_.protocol(), fault);
    if (fault) {
      trouble_ = fault.message();
      return try_again();
    }
    prepare(connecting_);
    connecting_.async_connect(host_at_, [weak = weak_from_this()](error_code refused) {
      const auto self = std::static_pointer_cast<guest>(weak.lock());
      if (self && self->joining()) self->connected(refused);
    });
  }

  void connected(error_code refused) {
    error_code gone;
    // A port of the range for outgoing connections can meet itself while nobody listens there.
    const bool itself = !refused && connecting_.local_endpoint(gone) == connecting_.remote_endpoint(gone);
    if (refused || gone || itself) {
      trouble_ = refused ? refused.message() : "nobody listens there";
      return try_again();
    }
    link_ = std::make_shared<stream>(std::move(connecting_), weak_from_this(), wire::direction::to_host);
    link_->distrust(wire::max_unauthenticated_bytes);
    wire::hello greeting;
    greeting.job = options_.job;
    greeting.rank = options_.rank;
    greeting.world_size = options_.world_size;
    greeting.incarnation = me_.incarnation;
    wire::randomise(greeting.nonce);
    said_ = greeting.encode();
    link_->start();
    link_->send(wire::type::hello, said_);
    pause_.expires_after(std::chrono::nanoseconds(options_.handshake_timeout_ns));
    pause_.async_wait([weak = weak_from_this()](error_code stopped) {
      const auto self = std::static_pointer_cast<guest>(weak.lock());
      if (stopped || !self || !self->joining() || self->at_ != phase::greeting) return;
      self->trouble_ = "whoever listens there did not answer";
      self->try_again();
    });
  }

  /// Rank 0 may start later than this one.
  void try_again() {
    error_code ignored;
    connecting_.close(ignored);
    if (link_) link_->close();
    link_.reset();
    delay_ms_ = std::min<std::int64_t>(delay_ms_ * 2, 200);
    const auto jitter = static_cast<std::int64_t>(fresh_incarnation() % static_cast<std::uint64_t>(delay_ms_));
    pause_.expires_after(std::chrono::milliseconds(delay_ms_ / 2 + jitter));
    pause_.async_wait([weak = weak_from_this()](error_code stopped) {
      const auto self = std::static_pointer_cast<guest>(weak.lock());
      if (!stopped && self && self->joining()) self->connect();
    });
  }

  void answer(const incoming& frame) {
    const auto question = wire::challenge::decode(frame.payload);
    if (!question || question->version != wire::protocol_version) {
      return broken({errc::protocol_version, "rank 0 at " + place() +
                                                 " speaks another version of the rendezvous than " +
                                                 std::to_string(wire::protocol_version) + "; use one build of parley"});
    }
    link_->set_key(wire::connection_key(key_.secret(), said_, frame.payload));
    if (!link_->authentic(frame)) {
      return broken({errc::unauthenticated, "whoever listens at " + place() +
                                                " does not hold the key of this job; give "
                                                "rank 0 and rank " +
                                                std::to_string(options_.rank) + " the same key"});
    }
    pause_.cancel();
    link_->trust();
    at_ = phase::waiting;
    link_->send(wire::type::proof, std::span<const std::byte>());
    link_->send(wire::type::member, wire::encode_member(me_));
    // From here on rank 0 decides, which may have started later; its verdict is worth waiting for.
    const auto verdict_ms = std::min(question->left_ms, max_patience_ms) + 1000;
    start_deadline(static_cast<runtime::time_ns>(verdict_ms) * 1'000'000);
  }

  std::size_t longest_roster() const { return 16 + options_.world_size * wire::max_member_bytes; }

  void take_rejoined(std::span<const std::byte> payload) {
    wire::scanner in(payload);
    wire::digest first{};
    const auto told = in.raw(first.size());
    std::copy(told.begin(), told.end(), first.begin());
    take_roster(in.raw(in.left()), first, arrival::rejoined);
  }

  void take_restarted(std::span<const std::byte> payload) {
    wire::scanner in(payload);
    const auto anew = wire::decode_member(in);
    if (!anew || !in.complete() || anew->rank == 0 || anew->rank >= options_.world_size ||
        anew->rank == options_.rank) {
      return broken({errc::malformed, "rank 0 at " + place() + " told of a restart that cannot be"});
    }
    // Told in order, so that one which is not newer says nothing new.
    std::uint64_t& known = incarnations_[anew->rank];
    if (runtime::restarts_of(anew->incarnation) <= runtime::restarts_of(known)) return;
    known = anew->incarnation;
    meet_again(*anew);
  }

  void take_roster(std::span<const std::byte> payload, const wire::digest& first, arrival how) {
    auto members = wire::decode_roster(payload, options_.job, options_.world_size);
    if (!members || (*members)[options_.rank].incarnation != me_.incarnation) {
      return broken({errc::malformed, "rank 0 at " + place() +
                                          " sent a roster that cannot be right; use one build of "
                                          "parley on all ranks"});
    }
    at_ = phase::joined;
    for (const member& m : *members) {
      incarnations_.push_back(m.incarnation);
      if (m.rank != 0 && m.host == members->front().host && m.host != me_.host) beside_rank_0_.push_back(m.rank);
    }
    succeed(std::move(*members), first, how);
  }

  void take_failure(std::span<const std::byte> payload) {
    wire::scanner in(payload);
    const auto total = in.number<std::uint32_t>();
    const auto listed = in.number<std::uint32_t>();
    std::vector<rank_id> missing;
    for (std::uint32_t i = 0; i < std::min<std::size_t>(listed, max_listed_ranks) && in.good(); ++i) {
      missing.push_back(in.number<rank_id>());
    }
    broken(never_came(missing, total, options_.world_size, place(), options_.join_timeout_ns, ""));
  }

  void take_notice(wire::type what, std::span<const std::byte> payload) {
    wire::scanner in(payload);
    const auto rank = in.number<rank_id>();
    if (!in.good() || rank >= options_.world_size) return;
    if (what == wire::type::lost) return lose(rank, in.text(in.left()));
    part_with(rank, read_cause(in).value_or(runtime::root_cause{rank, {}}));
  }

  void rejected(std::span<const std::byte> payload) {
    wire::scanner in(payload);
    const auto reason = static_cast<wire::refusal>(in.number<std::uint8_t>());
    const auto detail = std::to_string(in.number<std::uint32_t>());
    const std::string rank = "rank " + std::to_string(options_.rank);
    const std::string who = "rank 0 at " + place() + " refused " + rank + ": ";
    switch (reason) {
      case wire::refusal::version:
        return broken(
            {errc::protocol_version, who + "it speaks version " + detail + " of the rendezvous and this one " +
                                         std::to_string(wire::protocol_version) + "; use one build of parley"});
      case wire::refusal::world_size:
        return broken({errc::malformed, who + "it expects " + detail + " ranks and this one " +
                                            std::to_string(options_.world_size) +
                                            "; give all ranks the same world size"});
      case wire::refusal::rank: return broken({errc::malformed, who + "the world has only " + detail + " ranks"});
      case wire::refusal::duplicate:
        return broken({errc::malformed, who + "another process is " + rank + " already; give each its own rank"});
      case wire::refusal::not_newer:
        return broken({errc::fenced, who + "the process that is or was in its place has PARLEY_RESTART_COUNT=" +
                                         detail + " and this one " + std::to_string(options_.restarts) +
                                         "; one that shall take that place needs more"});
      case wire::refusal::too_often:
        return broken({errc::bad_argument, who + "PARLEY_MAX_RESTARTS=" + detail + " there, and this is its restart " +
                                               std::to_string(options_.restarts)});
      case wire::refusal::elsewhere:
        return broken({errc::bad_argument, who + "it must run on the host of the process before it, and on the same "
                                                 "kind of machine"});
      case wire::refusal::job:
        // Perhaps an older job that is about to free the port.
        trouble_ = "whoever listens there belongs to another job";
        return try_again();
    }
    broken({errc::malformed, who + "for a reason that this version does not know"});
  }

  void on_deadline() override {
    if (at_ == phase::waiting) {
      return fail({errc::timeout, "rank 0 at " + place() + " did not say how the join ended; it may be stopped"});
    }
    fail({errc::timeout, "rank " + std::to_string(options_.rank) + " could not meet rank 0 at " + place() + " within " +
                             seconds_text(options_.join_timeout_ns) + ": " + trouble_ +
                             "; see whether rank 0 was started and PARLEY_RENDEZVOUS is the same on every rank"});
  }

  /// Ends the join, or after it the watch.
  void broken(error why) {
    if (joining()) return fail(std::move(why));
    if (link_) link_->close();
    link_.reset();
    lose(0, why.what());
  }

  stream::socket connecting_;
  asio::steady_timer pause_;
  endpoint host_at_;
  std::shared_ptr<stream> link_;
  phase at_ = phase::greeting;
  std::vector<std::uint64_t> incarnations_;  // as rank 0 has told them
  std::vector<rank_id> beside_rank_0_;       // on another host than this one
  wire::bytes said_;
  std::int64_t delay_ms_ = 1;
  std::function<void()> told_;
  std::string trouble_ = "no connection came about";
};

rendezvous::rendezvous(asio::io_context& io, rendezvous_options options, job_key key) {
  if (options.world_size <= 1) {
    core_ = std::make_shared<core>(io, std::move(options), std::move(key));
  } else if (options.rank == 0) {
    core_ = std::make_shared<host>(io, std::move(options), std::move(key));
  } else {
    core_ = std::make_shared<guest>(io, std::move(options), std::move(key));
  }
}

rendezvous::~rendezvous() { core_->close(); }
void rendezvous::join(member me, join_handler done) { core_->join(std::move(me), std::move(done)); }
void rendezvous::on_member_lost(loss_handler handler) { core_->on_loss(std::move(handler)); }
void rendezvous::on_member_left(farewell_handler handler) { core_->on_left(std::move(handler)); }
void rendezvous::on_member_restarted(restart_handler handler) { core_->on_restart(std::move(handler)); }
void rendezvous::hold_dead(const member& dead, const std::string& why) { core_->hold_dead(dead, why); }
void rendezvous::leave() { core_->leave({}, {}); }
void rendezvous::leave(const runtime::root_cause& why, const std::function<void()>& told) { core_->leave(why, told); }
std::vector<int> rendezvous::descriptors() const { return core_->descriptors(); }
std::uint64_t rendezvous::dropped_clients() const { return core_->dropped(); }

}  // namespace parley::transports
