#include <parley/runtime/wire/router.hpp>

#include <parley/runtime/invariant.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace parley::runtime {

namespace {
// A frame without a body that reports acceptance. With a sequence number it also asks for a report.
constexpr std::uint16_t credit_type = 0;
}  // namespace

// Fetches a body that is too large to arrive with its header.
struct router::fetching : completion {
  fetching(router& r, rank_id s, std::span<const std::byte> h, std::size_t body_bytes)
      : completion(&on_fetched), owner(&r), source(s), header(h.begin(), h.end()), body(body_bytes) {}
  static void on_fetched(completion& self, errc outcome) noexcept {
    const std::unique_ptr<fetching> mine(static_cast<fetching*>(&self));
    if (mine->owner == nullptr) return;
    std::erase(mine->owner->fetching_, mine.get());
    if (outcome == errc::none) mine->owner->take(mine->header, mine->body);
  }
  router* owner;  // null once the router has ended
  rank_id source;
  std::vector<std::byte> header;
  std::vector<std::byte> body;
};

router::router(executor& ex, link& over, options o, incarnations known)
    : executor_(ex), link_(over), options_(o), world_size_(over.world_size()), incarnations_(std::move(known)),
      retry_timer_(*this), jitter_(ex.rng(streams::jitter).next(), over.rank()) {
  link_.listen(link::channel::control, this);
}

router::~router() {
  link_.listen(link::channel::control, nullptr);
  for (fetching* f : fetching_) f->owner = nullptr;
}

void router::bind_raw(std::uint64_t actor, std::uint64_t types, raw_handler take) {
  handlers_[actor].push_back({types, std::move(take)});
  last_found_ = {};
}

void router::unbind(std::uint64_t actor) {
  handlers_.erase(actor);
  last_found_ = {};
}

void router::forget(rank_id peer, std::uint64_t new_incarnation) noexcept {
  state_of(peer) = met(peer, new_incarnation);
  std::erase_if(parked_, [peer](const parked& p) { return p.header.source == peer; });
}

router::peer_state router::met(rank_id peer, std::uint64_t incarnation) const noexcept {
  const std::uint64_t mine = incarnations_.of(rank());
  return {.rank = peer,
          .session = session_of(options_.job, incarnation, mine),
          .own_session = session_of(options_.job, mine, incarnation)};
}

router::peer_state& router::find_state(rank_id peer) noexcept {
  const auto [at, is_first] = peers_.try_emplace(peer);
  latest_ = &at->second;
  if (is_first) *latest_ = met(peer, incarnations_.of(peer));
  return *latest_;
}

errc router::send_raw(rank_id to, std::uint64_t actor, std::uint64_t generation, std::uint16_t type,
                      std::span<const std::byte> body) {
  if (to >= world_size_ || body.size() > max_body_bytes) return errc::bad_argument;
  frame_header h;
  h.type = type;
  h.actor = actor;
  h.generation = generation;
  if (to == rank()) {  // parked, so that no handler runs inside the call of `send`
    h.source = h.destination = to;
    park(h, body);
    return errc::none;
  }
  peer_state& p = state_of(to);
  if (static_cast<std::uint32_t>(p.next_sequence) - p.acknowledged >= options_.window) {
    ask_for_room(p);
    return errc::full;
  }
  h.sequence = ++p.next_sequence;
  ++counters_.sent;
  ++sent_by_type_[std::min<std::size_t>(type, sent_by_type_.size() - 1)];
  return transmit(p, h, body);
}

errc router::transmit(peer_state& to, frame_header& h, std::span<const std::byte> body) {
  h.source = rank();
  h.destination = to.rank;
  h.body_bytes = static_cast<std::uint32_t>(body.size());
  h.session = to.own_session;
  to.accepted_told = to.accepted;
  h.accepted = static_cast<std::uint32_t>(to.accepted);
  const frame_bytes header = encode_frame(h, body, options_.seal);
  return link_.send(to.rank, link::channel::control, header, body, nullptr);
}

void router::on_arrival(arrival&& message) noexcept {
  if (!message.remote()) {
    take(message.header(), message.payload());
    return;
  }
  frame_header claimed;
  if (message.length() > max_body_bytes || message.header().size() != sizeof claimed) {
    ++counters_.malformed;
    return;
  }
  // The tag can be checked only once the body has arrived. Until then the rank that the frame names as its source must have room in its
  // window.
  std::memcpy(&claimed, message.header().data(), sizeof claimed);
  const auto of_it =
      std::count_if(fetching_.begin(), fetching_.end(), [&](const fetching* f) { return f->source == claimed.source; });
  if (static_cast<std::size_t>(of_it) >= options_.window) return refuse(claimed.source);
  auto* f = new fetching(*this, claimed.source, message.header(), static_cast<std::size_t>(message.length()));
  fetching_.push_back(f);
  const errc started = link_.fetch(std::move(message), f->body, f);
  if (started != errc::pending) fetching::on_fetched(*f, started);
}

void router::take(std::span<const std::byte> header, std::span<const std::byte> body) noexcept {
  auto decoded = decode_frame(header, body, {rank(), world_size_}, options_.seal);
  if (!decoded) {
    ++(decoded.code() == errc::unauthenticated ? counters_.unauthenticated : counters_.malformed);
    return;
  }
  const frame_header& h = *decoded;
  peer_state& p = state_of(h.source);
  // Checked before the frame's numbers are used: with an old process's numbers, frames of the new process would look repeated.
  if (h.session != p.session) {
    ++counters_.foreign;
    return;
  }
  if (!has_room(h)) return refuse(h.source);
  // Acceptance only moves forward, even if frames arrive in another order, and never beyond the frames that were sent.
  const std::uint32_t newly_accepted = h.accepted - p.acknowledged;
  if (newly_accepted != 0 && newly_accepted <= static_cast<std::uint32_t>(p.next_sequence) - p.acknowledged) {
    p.acknowledged = h.accepted;
    p.ask_at = 0;
  }
  if (h.type == credit_type) {
    if (h.sequence != 0) answer_question(p, h);
    return;
  }
  if (!is_new(p, h.sequence)) {
    ++counters_.repeated;
    return;
  }
  ++counters_.received;
  if (deliver(h, body) == errc::full) park(h, body);
  accept(p);
}

// The sender does not know of later acceptance than `accepted`. A question may be one number beyond the window.
bool router::has_room(const frame_header& h) noexcept {
  return h.sequence <= state_of(h.source).accepted + options_.window + (h.type == credit_type ? 1 : 0);
}

void router::refuse(rank_id source) noexcept {
  ++counters_.beyond_window;
  blame({"window", "no more control messages are in flight than their receiver has room for", {0, rank()}}, source);
}

bool router::is_new(peer_state& from, std::uint64_t sequence) noexcept {
  if (sequence > from.highest_seen) {
    const std::uint64_t ahead = sequence - from.highest_seen;
    from.seen = ahead > 64 ? 0 : (ahead == 64 ? 0 : from.seen << ahead) | std::uint64_t{1} << (ahead - 1);
    from.highest_seen = sequence;
    return true;
  }
  const std::uint64_t behind = from.highest_seen - sequence;
  if (behind == 0 || behind > 64) return false;
  const std::uint64_t bit = std::uint64_t{1} << (behind - 1);
  if ((from.seen & bit) != 0) return false;
  from.seen |= bit;
  return true;
}

errc router::deliver(const frame_header& h, std::span<const std::byte> body) {
  raw_handler* const take_message = find_handler(h.actor, h.type);
  if (take_message == nullptr) {
    ++counters_.unclaimed;
    return errc::closed;
  }
  const errc outcome = (*take_message)({h.source, h.type, h.generation}, body);
  if (outcome == errc::malformed) ++counters_.malformed;
  return outcome;
}

// Consecutive messages are often for one actor and type, so the handler that was found last is tried first.
router::raw_handler* router::find_handler(std::uint64_t actor, std::uint16_t type) noexcept {
  if (last_found_.handler != nullptr && last_found_.actor == actor && last_found_.type == type)
    return last_found_.handler;
  const auto found = handlers_.find(actor);
  if (found == handlers_.end()) return nullptr;
  for (bound& b : found->second) {
    if ((b.types & type_bit(type)) == 0) continue;
    last_found_ = {actor, type, &b.take};
    return &b.take;
  }
  return nullptr;
}

void router::park(const frame_header& h, std::span<const std::byte> body) {
  parked_.push_back({h, {body.begin(), body.end()}});
  if (!retry_timer_.linked()) executor_.arm(retry_timer_, executor_.now());
}

void router::retry() noexcept {
  retry_pause_ns_ = std::min(retry_pause_ns_ * 2, longest_retry_pause_ns);
  for (std::size_t left = parked_.size(); left != 0; --left) {
    std::list<parked> first;
    first.splice(first.begin(), parked_, parked_.begin());
    const frame_header& h = first.front().header;
    const rank_id source = h.source;
    if (deliver(h, first.front().body) == errc::full) {
      parked_.splice(parked_.end(), first);
    } else {
      retry_pause_ns_ = shortest_retry_pause_ns;
    }
    if (source != rank()) accept(state_of(source));
  }
  if (!parked_.empty() && !retry_timer_.linked()) executor_.arm_in(retry_timer_, retry_pause_ns_);
}

void router::accept(peer_state& source) {
  update_accepted(source);
  if (source.accepted - source.accepted_told >= options_.window / 2) send_credit(source);
}

// A parked frame is not accepted, which keeps its sender's window closed.
void router::update_accepted(peer_state& source) noexcept {
  std::uint64_t up_to = source.highest_seen;
  for (const parked& waiting : parked_) {
    if (waiting.header.source == source.rank) up_to = std::min(up_to, waiting.header.sequence - 1);
  }
  source.accepted = std::max(source.accepted, up_to);  // never goes back: the sender relies on it
}

void router::send_credit(peer_state& to) {
  frame_header h;
  h.type = credit_type;
  ++counters_.credits_sent;
  static_cast<void>(transmit(to, h, {}));  // a dead peer needs no credits
}

// A question's sequence number follows the numbers of all earlier frames, so that lost frames count as accepted.
void router::answer_question(peer_state& from, const frame_header& question) {
  static_cast<void>(is_new(from, question.sequence));
  update_accepted(from);
  send_credit(from);
}

// A peer that has nothing to send would never report again how much it has accepted, so this rank asks. It asks at once, because a sender
// that waits for room may try again only after a long pause. Then it asks at growing intervals, as long as sends are tried.
void router::ask_for_room(peer_state& to) {
  if (to.ask_at == 0) to.asks.restart();  // the peer has accepted frames since the last question
  if (executor_.now() < to.ask_at) return;
  to.ask_at = executor_.deadline_in(to.asks.next(jitter_));
  if (to.question != to.next_sequence) to.question = ++to.next_sequence;
  frame_header h;
  h.type = credit_type;
  h.sequence = to.question;
  ++counters_.questions_sent;
  static_cast<void>(transmit(to, h, {}));
}

}  // namespace parley::runtime
