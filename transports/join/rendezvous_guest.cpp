#include <parley/transports/join/rendezvous_guest.hpp>

#include <parley/runtime/wire/incarnations.hpp>

#include <algorithm>
#include <chrono>

namespace parley::transports {

using boost::system::error_code;
using runtime::errc;
using runtime::error;
using runtime::rank_id;

void rendezvous_guest::hold_dead(const member& dead, const std::string& why) {
  if (!is_in()) return;
  link_->send(wire::type::lost, wire::writer().number(dead.rank).number(dead.incarnation).text(shortened(why)).take());
}

void rendezvous_guest::leave(const runtime::root_cause& why, const std::function<void()>& told) {
  if (is_in()) link_->send(wire::type::bye, farewell(why));
  if (told && is_in()) {
    drop_handlers();
    at_ = phase::leaving;
    told_ = told;
    return;
  }
  close();
  if (told) told();
}

void rendezvous_guest::disconnect() {
  pause_.cancel();
  error_code ignored;
  connecting_.close(ignored);
  told_ = nullptr;
  if (link_) link_->finish();
  link_.reset();
}

std::vector<int> rendezvous_guest::descriptors() {
  if (link_ && link_->open()) return {link_->descriptor()};
  if (connecting_.is_open()) return {connecting_.native_handle()};
  return {};
}

std::optional<std::size_t> rendezvous_guest::limit(const stream&, wire::type kind) const {
  switch (at_) {
    case phase::greeting:
      if (kind == wire::type::challenge || kind == wire::type::reject) return wire::max_unauthenticated_bytes / 2;
      break;
    case phase::waiting:
      if (kind == wire::type::roster) return longest_roster();
      if (kind == wire::type::rejoined && options_.restarts > 0) return sizeof(wire::digest) + longest_roster();
      if (kind == wire::type::failed) return wire::max_notice_bytes;
      // Rank 0 notices that two processes claim one rank only when both have proved themselves, so it may still reject this one.
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

void rendezvous_guest::on_frame(stream& from, const incoming& frame) {
  if (&from != link_.get()) return;
  if (frame.kind == wire::type::reject) return rejected(frame.payload);
  if (frame.kind == wire::type::challenge) return answer(frame);
  if (at_ == phase::leaving) return;  // only the end of the connection counts
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
    case wire::type::bye: return take_bye(frame.payload);
    default: return;
  }
}

void rendezvous_guest::on_end(stream& from, const std::string& why) {
  if (&from != link_.get()) return;
  link_.reset();
  if (at_ == phase::leaving) return std::exchange(told_, nullptr)();
  if (at_ == phase::joined) {
    lose(0, died(0, why));
    // If rank 0's machine has stopped, all its ranks are gone, and no process there can report the others. So this rank reports them.
    if (!from.fell_silent()) return;
    for (const rank_id rank : beside_rank_0_) lose(rank, died(rank, why));
    return;
  }
  if (at_ == phase::waiting) {
    return fail({errc::peer_failed, "rank 0 at " + place() + " ended while the ranks were joining (" + why +
                                        "); its own output says why"});
  }
  trouble_ = "the process that listens there does not answer like a rank 0: " + why;
  try_again();
}

void rendezvous_guest::start() {
  auto at = resolve();
  if (!at) return fail(at.reason());
  host_at_ = *at;
  start_deadline(options_.join_timeout_ns);
  connect();
}

void rendezvous_guest::on_deadline() {
  if (at_ == phase::waiting) {
    return fail({errc::timeout, "rank 0 at " + place() + " did not say how the join ended; it may be stopped"});
  }
  fail({errc::timeout, rank_text(options_.rank) + " could not meet rank 0 at " + place() + " within " + time_limit() +
                           ": " + trouble_ +
                           "; see whether rank 0 was started and PARLEY_RENDEZVOUS is the same on every rank"});
}

void rendezvous_guest::connect() {
  at_ = phase::greeting;
  connecting_ = stream::socket(io_);
  error_code fault;
  connecting_.open(host_at_.protocol(), fault);
  if (fault) {
    trouble_ = fault.message();
    return try_again();
  }
  prepare(connecting_);
  connecting_.async_connect(host_at_, [weak = weak()](error_code refused) {
    const auto self = weak.lock();
    if (self && self->joining()) self->connected(refused);
  });
}

std::string rendezvous_guest::awaited() const {
  return at_ == phase::greeting ? "rank 0 to answer at " + place() : std::string();
}

void rendezvous_guest::connected(error_code refused) {
  error_code gone;
  // The kernel picks ports for outgoing connections from a range. If rank 0's port is in that range and no process listens
  // there, the kernel may have connected this socket to itself.
  const bool itself = !refused && connecting_.local_endpoint(gone) == connecting_.remote_endpoint(gone);
  if (refused || gone || itself) {
    trouble_ = refused ? refused.message() : "no process listens there";
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
  pause_.async_wait([weak = weak()](error_code stopped) {
    const auto self = weak.lock();
    if (stopped || !self || !self->joining() || self->at_ != phase::greeting) return;
    self->trouble_ = "the process that listens there did not answer";
    self->try_again();
  });
}

void rendezvous_guest::try_again() {
  error_code ignored;
  connecting_.close(ignored);
  if (link_) link_->close();
  link_.reset();
  delay_ms_ = std::min<std::int64_t>(delay_ms_ * 2, 200);
  std::uint32_t chance = 0;
  wire::randomise(std::as_writable_bytes(std::span(&chance, 1)));
  pause_.expires_after(std::chrono::milliseconds(delay_ms_ / 2 + chance % delay_ms_));
  pause_.async_wait([weak = weak()](error_code stopped) {
    const auto self = weak.lock();
    if (!stopped && self && self->joining()) self->connect();
  });
}

void rendezvous_guest::answer(const incoming& frame) {
  const auto question = wire::challenge::decode(frame.payload);
  if (!question || question->version != wire::protocol_version) {
    return broken({errc::protocol_version, "rank 0 at " + place() + " speaks another version of the rendezvous than " +
                                               std::to_string(wire::protocol_version) + "; use one build of parley"});
  }
  link_->set_key(wire::connection_key(key_.secret(), said_, frame.payload));
  if (!link_->authentic(frame)) {
    return broken({errc::unauthenticated, "the process that listens at " + place() +
                                              " does not have the key of this job; give rank 0 and " +
                                              rank_text(options_.rank) + " the same key"});
  }
  pause_.cancel();
  link_->trust();
  at_ = phase::waiting;
  link_->send(wire::type::proof, std::span<const std::byte>());
  link_->send(wire::type::member, wire::encode_member(me_));
  // From now on rank 0 decides how the join ends. Rank 0 may have started later than this rank, so its deadline may be later. So
  // this rank waits until rank 0 must have decided, and a second longer.
  const auto verdict_ms = std::min(question->left_ms, max_patience_ms) + 1000;
  start_deadline(static_cast<runtime::time_ns>(verdict_ms) * 1'000'000);
}

void rendezvous_guest::rejected(std::span<const std::byte> payload) {
  wire::scanner in(payload);
  const auto reason = static_cast<wire::refusal>(in.number<std::uint8_t>());
  const auto detail = std::to_string(in.number<std::uint32_t>());
  const std::string rank = rank_text(options_.rank);
  const std::string who = "rank 0 at " + place() + " refused " + rank + ": ";
  switch (reason) {
    case wire::refusal::version:
      return broken({errc::protocol_version, who + "it speaks version " + detail + " of the rendezvous and this one " +
                                                 std::to_string(wire::protocol_version) + "; use one build of parley"});
    case wire::refusal::world_size:
      return broken({errc::malformed, who + "it expects " + detail + " ranks and this one " +
                                          std::to_string(options_.world_size) +
                                          "; give all ranks the same world size"});
    case wire::refusal::rank: return broken({errc::malformed, who + "the world has only " + detail + " ranks"});
    case wire::refusal::duplicate:
      return broken({errc::malformed, who + "another process is " + rank + " already; give each its own rank"});
    case wire::refusal::not_newer:
      return broken({errc::fenced, who + "the process that is or was in its place has PARLEY_RESTART_COUNT=" + detail +
                                       " and this one " + std::to_string(options_.restarts) +
                                       "; a replacement must have a higher PARLEY_RESTART_COUNT"});
    case wire::refusal::too_often:
      return broken({errc::bad_argument, who + "rank 0 has PARLEY_MAX_RESTARTS=" + detail + ", and this is restart " +
                                             std::to_string(options_.restarts) + " of " + rank +
                                             "; raise it on all ranks"});
    case wire::refusal::elsewhere:
      return broken({errc::bad_argument,
                     who + "it must run on the same host and the same kind of machine as the process before it"});
    case wire::refusal::job:
      // That job may be an older one, which is about to free the port.
      trouble_ = "the process that listens there belongs to another job";
      return try_again();
  }
  broken({errc::malformed, who + "for a reason that this version does not know"});
}

void rendezvous_guest::take_roster(std::span<const std::byte> payload, const wire::digest& first, arrival how) {
  auto members = wire::decode_roster(payload, options_.job, options_.world_size);
  if (!members || (*members)[options_.rank].incarnation != me_.incarnation) {
    return broken(
        {errc::malformed, "rank 0 at " + place() + " sent an invalid roster; use one build of parley on all ranks"});
  }
  at_ = phase::joined;
  for (const member& m : *members) {
    incarnations_.push_back(m.incarnation);
    if (m.rank != 0 && m.host == members->front().host && m.host != me_.host) beside_rank_0_.push_back(m.rank);
  }
  succeed(std::move(*members), first, how);
}

void rendezvous_guest::take_rejoined(std::span<const std::byte> payload) {
  wire::scanner in(payload);
  wire::digest first{};
  const auto told = in.raw(first.size());
  std::copy(told.begin(), told.end(), first.begin());
  take_roster(in.raw(in.left()), first, arrival::rejoined);
}

void rendezvous_guest::take_restarted(std::span<const std::byte> payload) {
  wire::scanner in(payload);
  const auto anew = wire::decode_member(in);
  if (!anew || !in.complete() || anew->rank == 0 || anew->rank >= options_.world_size || anew->rank == options_.rank) {
    return broken({errc::malformed,
                   "rank 0 at " + place() + " reported an impossible restart; use one build of parley on all ranks"});
  }
  // Rank 0 reports restarts in order, so a process that is not newer is known already.
  std::uint64_t& known = incarnations_[anew->rank];
  if (runtime::restarts_of(anew->incarnation) <= runtime::restarts_of(known)) return;
  known = anew->incarnation;
  meet_again(*anew);
}

void rendezvous_guest::take_failure(std::span<const std::byte> payload) {
  wire::scanner in(payload);
  const auto total = in.number<std::uint32_t>();
  const auto listed = in.number<std::uint32_t>();
  std::vector<rank_id> missing;
  for (std::uint32_t i = 0; i < std::min<std::size_t>(listed, max_listed_ranks) && in.good(); ++i) {
    missing.push_back(in.number<rank_id>());
  }
  broken(never_came(missing, total, ""));
}

void rendezvous_guest::take_notice(wire::type what, std::span<const std::byte> payload) {
  wire::scanner in(payload);
  const auto rank = in.number<rank_id>();
  if (!in.good() || rank >= options_.world_size) return;
  if (what == wire::type::lost) return lose(rank, in.text(in.left()));
  part_with(rank, read_farewell(in).value_or(runtime::root_cause{rank, {}}));
}

void rendezvous_guest::take_bye(std::span<const std::byte> payload) {
  wire::scanner in(payload);
  const runtime::root_cause why = read_farewell(in).value_or(runtime::root_cause{});
  link_->close();
  link_.reset();  // without rank 0 there is no death watch
  part_with(0, why);
}

void rendezvous_guest::broken(error why) {
  if (joining()) return fail(std::move(why));
  if (link_) link_->close();
  link_.reset();
  lose(0, why.what());
}

}  // namespace parley::transports
