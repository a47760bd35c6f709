#include <parley/transports/join/rendezvous_host.hpp>

#include <parley/runtime/wire/incarnations.hpp>

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>

namespace parley::transports {

namespace asio = boost::asio;
using boost::system::error_code;
using endpoint = asio::ip::tcp::endpoint;
using runtime::errc;
using runtime::error;
using runtime::rank_id;
using runtime::result;

void rendezvous_host::hold_dead(const member& dead, const std::string& why) {
  if (!joining() && !ended() && dead.rank != 0 && is_latest(dead.rank, dead.incarnation)) end(dead.rank, why);
}

void rendezvous_host::leave(const runtime::root_cause& why, const std::function<void()>& told) {
  for (auto& [address, c] : clients_) {
    if (!c->recognised()) continue;
    c->send(wire::type::bye, farewell(why));
    c->finish();
  }
  close();
  if (told) told();
}

void rendezvous_host::disconnect() {
  stop_accepting();
  for (auto& [address, c] : clients_) {
    c->patience.cancel();
    c->finish();
  }
  clients_.clear();
}

std::vector<int> rendezvous_host::descriptors() {
  std::vector<int> all;
  if (acceptor_.is_open()) all.push_back(acceptor_.native_handle());
  for (auto& [address, c] : clients_) {
    if (c->open()) all.push_back(c->descriptor());
  }
  return all;
}

std::optional<std::size_t> rendezvous_host::limit(const stream& from, wire::type kind) const {
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

void rendezvous_host::on_frame(stream& from, const incoming& frame) {
  auto& c = static_cast<client&>(from);
  if (frame.kind == wire::type::hello) return greet(c, frame.payload);
  if (!c.authentic(frame)) return drop(c, "it does not have the key of this job");
  switch (frame.kind) {
    case wire::type::proof: return recognise(c);
    case wire::type::member: return seat(c, frame.payload);
    case wire::type::bye: return let_go(c, frame.payload);
    case wire::type::lost: return hear_of_death(c, frame.payload);
    default: return;
  }
}

// If a machine stops, all its ranks are gone. Rank 0 first reports all of them to the other ranks, and then to its own program,
// because the program may end rank 0 at the first report.
void rendezvous_host::on_end(stream& from, const std::string& why) {
  auto& c = static_cast<client&>(from);
  std::vector<rank_id> with_it;
  if (c.fell_silent() && seats_[c.said.rank] == &c) with_it = silent_neighbours(c.said.rank);
  for (const rank_id rank : with_it) end(rank, died(rank, why));
  forget(c, why);
  for (const rank_id rank : with_it) lose(rank, died(rank, why));
}

void rendezvous_host::start() {
  entries_[0] = me_;
  present_ = 1;
  if (present_ == options_.world_size) return complete();
  const auto opened = options_.listening_fd >= 0 ? adopt() : bind();
  if (!opened) return fail(opened.reason());
  ends_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.join_timeout_ns);
  start_deadline(options_.join_timeout_ns);
  accept();
}

result<> rendezvous_host::bind() {
  auto at = resolve();
  if (!at) return at.reason();
  error_code fault;
  // A machine's own hosts file often maps the machine's name to loopback. Other machines get another address for that name
  // and must be able to connect there, so listen on all addresses.
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

result<> rendezvous_host::adopt() {
  const int fd = std::exchange(options_.listening_fd, -1);
  int listens = 0;
  socklen_t size = sizeof listens;
  sockaddr_storage address{};
  socklen_t address_size = sizeof address;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &address_size) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6)) {
    return error(errc::bad_argument,
                 "descriptor " + std::to_string(fd) +
                     " is not a listening TCP socket; unset PARLEY_RENDEZVOUS_FD or start the ranks "
                     "with `parley run`");
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

void rendezvous_host::accept() {
  acceptor_.async_accept([weak = weak()](error_code fault, stream::socket connected) {
    const auto self = weak.lock();
    if (!self || !self->acceptor_.is_open()) return;
    if (fault) return self->accept_later();
    self->welcome(std::move(connected));
    self->accept();
  });
}

// This process may be out of descriptors, or a client may have disconnected at once. Neither may end the rendezvous. The
// pause keeps rank 0 from spinning.
void rendezvous_host::accept_later() {
  retry_.expires_after(std::chrono::milliseconds(20));
  retry_.async_wait([weak = weak()](error_code) {
    const auto self = weak.lock();
    if (self && self->acceptor_.is_open()) self->accept();
  });
}

void rendezvous_host::stop_accepting() {
  error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
}

void rendezvous_host::welcome(stream::socket connected) {
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
  c->patience.async_wait([weak = weak(), late = std::weak_ptr<stream>(c)](error_code stopped) {
    const auto self = weak.lock();
    const auto slow = std::static_pointer_cast<client>(late.lock());
    if (!stopped && self && slow && slow->open()) self->drop(*slow, "it was too slow");
  });
  c->start();
}

void rendezvous_host::greet(client& c, std::span<const std::byte> payload) {
  const auto said = wire::hello::decode(payload);
  if (!said) return drop(c, "it sent bytes that are not a greeting");
  if (said->version != wire::protocol_version) {
    return reject(
        c, {wire::refusal::version, wire::protocol_version, "it speaks version " + std::to_string(said->version)});
  }
  if (said->job != options_.job) return reject(c, {wire::refusal::job, 0, "it belongs to another job"});
  if (said->world_size != options_.world_size) {
    return reject(c, {wire::refusal::world_size, options_.world_size,
                      "it expects " + std::to_string(said->world_size) + " ranks"});
  }
  if (said->rank >= options_.world_size) {
    return reject(c, {wire::refusal::rank, options_.world_size, "it claims " + rank_text(said->rank)});
  }
  // In a running job, a client learns whether its place is taken only after it has proved that it holds the key.
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

std::optional<rendezvous_host::refused> rendezvous_host::refuse(const wire::hello& said) const {
  const std::string who = rank_text(said.rank);
  const std::uint32_t restarts = runtime::restarts_of(said.incarnation);
  refused duplicate{wire::refusal::duplicate, said.rank, who + " is here already"};
  if (said.rank == 0) return duplicate;
  if (restarts > options_.max_restarts)
    return refused{wire::refusal::too_often, options_.max_restarts,
                   who + " was restarted " + std::to_string(restarts) + " times"};
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

void rendezvous_host::recognise(client& c) {
  // Rank 0 may have challenged two clients for one rank. The first one that proves itself gets the place.
  if (const auto why = refuse(c.said)) return reject(c, *why);
  c.at = client::phase::presenting;
  c.trust();
  if (!joining()) return;  // `take_back` gives it the place, once its entry says on which host it runs
  if (client* const older = seats_[c.said.rank]) {
    reject(*older, {wire::refusal::not_newer, runtime::restarts_of(c.said.incarnation),
                    rank_text(c.said.rank) + " was restarted"});
  }
  seats_[c.said.rank] = &c;
}

void rendezvous_host::seat(client& c, std::span<const std::byte> payload) {
  wire::scanner in(payload);
  auto entry = wire::decode_member(in);
  if (!entry || !in.complete() || entry->rank != c.said.rank || entry->incarnation != c.said.incarnation ||
      (options_.is_address != nullptr && !options_.is_address(entry->address))) {
    return drop(c, rank_text(c.said.rank) + " sent an entry that is malformed or not its own");
  }
  c.patience.cancel();
  if (!joining()) return take_back(c, *entry);
  c.at = client::phase::present;
  entries_[c.said.rank] = std::move(entry);
  if (++present_ == options_.world_size) complete();
}

void rendezvous_host::complete() {
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

// First reports the end of the older process, because other ranks may think that it is alive, and then the new process.
void rendezvous_host::take_back(client& c, const member& anew) {
  if (const auto why = refuse(c.said)) return reject(c, *why);  // check again: another client may have been faster
  const member& before = roster_[anew.rank];
  if (anew.host != before.host || anew.kind != before.kind) {
    return reject(c, {wire::refusal::elsewhere, anew.rank,
                      rank_text(anew.rank) + " has moved to another host or kind of machine"});
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

// Accepts the report only from a process on the dead process's host: only such a process can see that another process was stopped.
void rendezvous_host::hear_of_death(const client& c, std::span<const std::byte> payload) {
  wire::scanner in(payload);
  const auto rank = in.number<rank_id>();
  const auto incarnation = in.number<std::uint64_t>();
  const rank_id witness = c.said.rank;
  if (!in.good() || rank == 0 || joining() || ended() || seats_[witness] != &c) return;
  if (rank == witness || !is_latest(rank, incarnation) || roster_[rank].host != roster_[witness].host) return;
  const std::string why = in.text(in.left());
  if (end(rank, why)) lose(rank, why);
}

void rendezvous_host::let_go(client& c, std::span<const std::byte> payload) {
  if (std::exchange(c.said_bye, true) || joining()) return;
  wire::scanner in(payload);
  const rank_id rank = c.said.rank;
  const runtime::root_cause why = read_farewell(in).value_or(runtime::root_cause{rank, {}});
  const bool is_new = announce(wire::type::left, rank, wire::writer().number(rank).raw(farewell(why)).take());
  // A rank that leaves with an error waits until rank 0 closes its connection. By then the others have the error.
  if (!why.what.empty()) drop(c, {});
  if (is_new) part_with(rank, why);
}

rendezvous_host::missing_ranks rendezvous_host::missing() const {
  missing_ranks all;
  for (rank_id rank = 0; rank < options_.world_size; ++rank) {
    if (entries_[rank]) continue;
    ++all.total;
    if (all.listed.size() < max_listed_ranks) all.listed.push_back(rank);
  }
  return all;
}

std::string rendezvous_host::awaited() const {
  const missing_ranks all = missing();
  return all.total == 0 ? std::string() : ranks_of_world(all.listed, all.total) + " to come to " + place();
}

void rendezvous_host::on_deadline() {
  const missing_ranks all = missing();
  wire::writer words;
  words.number(static_cast<std::uint32_t>(all.total)).number(static_cast<std::uint32_t>(all.listed.size()));
  for (const rank_id rank : all.listed) words.number(rank);
  const auto payload = words.take();
  for (auto& [address, c] : clients_) {
    if (c->recognised()) c->send(wire::type::failed, payload);
  }
  std::string refusals;
  if (dropped_ > 0) {
    refusals = "; " + std::to_string(dropped_) + (dropped_ == 1 ? " client was" : " clients were") +
               " refused, the last one " + last_drop_;
  }
  fail(never_came(all.listed, all.total, refusals));
}

void rendezvous_host::reject(client& c, const refused& r) {
  c.send(wire::type::reject, wire::writer().number(static_cast<std::uint8_t>(r.why)).number(r.detail).take());
  drop(c, r.text);
}

void rendezvous_host::drop(client& c, const std::string& why) {
  c.finish();
  forget(c, why);
}

void rendezvous_host::note(const client& c, const std::string& why) {
  ++dropped_;
  last_drop_ = "from " + c.peer() + " because " + why;
}

void rendezvous_host::forget(client& c, const std::string& why) {
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
  const std::string over = died(rank, why);
  if (announce(wire::type::lost, rank, notice(rank, over))) lose(rank, over);
}

bool rendezvous_host::end(rank_id rank, const std::string& why) {
  if (client* const older = std::exchange(seats_[rank], nullptr)) {
    const auto keep = clients_.at(older);
    clients_.erase(older);
    older->send(wire::type::lost, notice(rank, why));
    older->finish();
  }
  return announce(wire::type::lost, rank, notice(rank, why));
}

bool rendezvous_host::announce(wire::type what, rank_id rank, wire::bytes words) {
  const auto [news, is_new] = gone_.try_emplace(rank, gone{what, std::move(words)});
  if (is_new) tell_all(what, news->second.told);
  return is_new;
}

void rendezvous_host::tell_all(wire::type what, const wire::bytes& payload) {
  for (auto& [address, other] : clients_) {
    if (other->at == client::phase::present && !other->said_bye) other->send(what, payload);
  }
}

bool rendezvous_host::is_latest(rank_id rank, std::uint64_t incarnation) const {
  return rank < roster_.size() && roster_[rank].incarnation == incarnation;
}

std::vector<rank_id> rendezvous_host::silent_neighbours(rank_id rank) const {
  std::vector<rank_id> found;
  for (const member& other : roster_) {
    client* const at = seats_[other.rank];
    if (other.rank != rank && other.host == roster_[rank].host && at && !at->said_bye && at->seems_silent()) {
      found.push_back(other.rank);
    }
  }
  return found;
}

}  // namespace parley::transports
