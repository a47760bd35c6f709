#include <parley/transports/ucx/carried_memory.hpp>

#include <parley/transports/join/rendezvous_wire.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::transports {

using runtime::arrival;
using runtime::completion;
using runtime::errc;
using runtime::rank_id;

namespace {

constexpr std::uint64_t key_version = 0x3279656b79707270;  // change it when the format of keys or messages changes

enum class carried_kind : std::uint16_t { none, put, get, got, fence, fenced };

bool inside(std::uint64_t outer, std::uint64_t outer_bytes, std::uint64_t inner, std::uint64_t inner_bytes) noexcept {
  return inner >= outer && inner_bytes <= outer_bytes && inner - outer <= outer_bytes - inner_bytes;
}

errc outcome_of(std::uint64_t code) noexcept {
  return code == 0 ? errc::none : runtime::errc_of(code, errc::malformed);
}

}  // namespace

std::optional<carried_key> read_carried_key(std::span<const std::byte> key) noexcept {
  carried_key read;
  if (key.size() < sizeof read) return std::nullopt;
  std::memcpy(&read, key.data(), sizeof read);
  if (read.version != key_version) return std::nullopt;
  return read;
}

bool covers(const carried_key& key, std::uint64_t address, std::uint64_t bytes) noexcept {
  return inside(key.address, key.bytes, address, bytes);
}

void landings::landed(std::uint64_t number, errc outcome) {
  if (outcome != errc::none && number < first_failed_) {
    first_failed_ = number;
    outcome_ = outcome;
  }
  if (number < below_) return;
  if (number != below_) {
    if (beyond_.size() < most_beyond) {
      beyond_.insert(number);
    } else if (!beyond_.contains(number)) {
      first_forgotten_ = std::min(first_forgotten_, number);
      if (number < first_failed_) {
        first_failed_ = number;
        outcome_ = errc::full;
      }
    }
    return;
  }
  ++below_;
  while (!beyond_.empty() && *beyond_.begin() == below_) {
    beyond_.erase(beyond_.begin());
    ++below_;
  }
}

bool landings::wait(fence&& f) {
  if (fences_.size() >= most_fences) return false;
  fences_.push_back(std::move(f));
  return true;
}

std::optional<landings::fence> landings::take_done() {
  const auto first = std::find_if(fences_.begin(), fences_.end(),
                                  [this](const fence& f) { return f.below <= below_ || first_forgotten_ < f.below; });
  if (first == fences_.end()) return std::nullopt;
  std::optional<fence> done(std::move(*first));
  fences_.erase(first);
  return done;
}

/// The header of every message. It is as long as a stamp, so that the link's fast path for small messages applies.
struct carried_memory::message {
  carried_kind what = carried_kind::none;
  std::uint16_t restarts = 0;  // of rank `from`
  rank_id from = 0;
  std::uint64_t region = 0;
  std::uint64_t token = 0;
  std::uint64_t address = 0;  ///< in a fence that carries a message: the channel of that message
  std::uint64_t bytes = 0;
  std::uint64_t number = 0;  ///< the number of a put; in a fence: the first put that the fence does not wait for
  std::uint64_t request = 0;
  std::uint64_t outcome = 0;
};

struct carried_memory::visit : completion {
  visit(carried_memory& o, rank_id p, const message& m, carried_kind k)
      : completion(&on_done), owner(o), peer(p), region(m.region), number(m.number), what(k) {}
  static void on_done(completion& self, errc outcome) noexcept {
    auto& mine = static_cast<visit&>(self);
    mine.owner.left(mine, outcome);
  }
  carried_memory& owner;
  rank_id peer;
  std::uint64_t region;
  std::uint64_t number;
  carried_kind what;
};

struct carried_memory::request : completion {
  request(carried_memory& o, rank_id p, carried_kind k, completion* d)
      : completion(&on_done), owner(o), peer(p), what(k), done(d) {}
  // The link has fetched the payload of a get, or failed to.
  static void on_done(completion& self, errc outcome) noexcept {
    auto& mine = static_cast<request&>(self);
    mine.owner.end(mine.id, outcome);
  }
  carried_memory& owner;
  rank_id peer;
  carried_kind what;
  completion* done;
  std::uint64_t id = 0;
  std::span<std::byte> into;  // where a get writes
  bool fetching = false;
  bool cancelled = false;
};

carried_memory::carried_memory(runtime::link& by, channel on, take_function take, std::uint32_t restarts)
    : link_(by), on_(on), take_(std::move(take)), restarts_(static_cast<std::uint16_t>(restarts)) {
  static_assert(sizeof(message) == runtime::link::max_header_bytes);
  link_.listen(on_, this);
}

carried_memory::~carried_memory() { close(); }

void carried_memory::close() noexcept {
  closed_ = true;
  end_all([](const request& r) { return !r.fetching; }, errc::closed);
}

// The target.

std::vector<std::byte> carried_memory::expose(std::uint64_t number, std::span<std::byte> bytes) {
  carried_key made{.version = key_version, .number = number, .token = 0, .address = 0, .bytes = bytes.size()};
  wire::randomise(std::as_writable_bytes(std::span(&made.token, 1)));
  made.address = reinterpret_cast<std::uint64_t>(bytes.data());
  regions_[number] = {bytes, made.token};
  last_exposed_ = std::max(last_exposed_, number);
  std::vector<std::byte> key(sizeof made);
  std::memcpy(key.data(), &made, sizeof made);
  return key;
}

void carried_memory::withdraw(std::uint64_t number) noexcept { regions_.erase(number); }

bool carried_memory::was_withdrawn(std::uint64_t number) const noexcept {
  return number <= last_exposed_ && !regions_.contains(number);
}

bool carried_memory::uses(const completion* pending, std::uint64_t number) const noexcept {
  return std::any_of(visits_.begin(), visits_.end(),
                     [=](const auto& v) { return v.get() == pending && v->region == number; });
}

const carried_memory::region* carried_memory::find(const message& m) const noexcept {
  const auto known = regions_.find(m.region);
  if (known == regions_.end() || known->second.token != m.token) return nullptr;
  const auto& bytes = known->second.bytes;
  return inside(reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size(), m.address, m.bytes) ? &known->second
                                                                                                 : nullptr;
}

void carried_memory::on_arrival(arrival&& arrived) noexcept {
  message m;
  const auto header = arrived.header();
  if (header.size() == sizeof m) std::memcpy(&m, header.data(), sizeof m);
  if (m.from >= link_.world_size()) m.what = carried_kind::none;
  const auto known = restarts_of_.find(m.from);
  if (m.what != carried_kind::none && m.restarts != (known == restarts_of_.end() ? 0 : known->second)) {
    ++counters_.foreign;
    return;
  }
  switch (m.what) {
    case carried_kind::put: on_put(m, std::move(arrived)); break;
    case carried_kind::get: on_get(m); break;
    case carried_kind::got: on_got(m, std::move(arrived)); break;
    case carried_kind::fence: on_fence(m, std::move(arrived)); break;
    case carried_kind::fenced: on_fenced(m); break;
    default: ++counters_.malformed; break;
  }
}

void carried_memory::on_put(const message& m, arrival&& arrived) {
  if (was_withdrawn(m.region)) {
    ++counters_.late;
    return note_landed(m.from, m.number, errc::none);
  }
  const region* const at = find(m);
  if (at == nullptr || arrived.length() != m.bytes || visits_.size() >= most_visits) {
    ++counters_.refused;
    note_landed(m.from, m.number, errc::unavailable);
    return;
  }
  const std::span<std::byte> into =
      at->bytes.subspan(m.address - reinterpret_cast<std::uint64_t>(at->bytes.data()), m.bytes);
  if (!arrived.remote()) {
    note_landed(m.from, m.number, link_.fetch(std::move(arrived), into, nullptr));
    return;
  }
  auto made = std::make_unique<visit>(*this, m.from, m, carried_kind::put);
  visit& v = *made;
  visits_.push_back(std::move(made));
  const errc started = link_.fetch(std::move(arrived), into, &v);
  if (started != errc::pending) left(v, started);
}

void carried_memory::on_get(const message& m) {
  const region* const at = find(m);
  message answer;
  answer.what = carried_kind::got;
  answer.from = link_.rank();
  answer.request = m.request;
  if (at == nullptr || visits_.size() >= most_visits) {
    ++counters_.refused;
    answer.outcome = static_cast<std::uint64_t>(errc::unavailable);
    static_cast<void>(say(m.from, answer));
    return;
  }
  const auto part = at->bytes.subspan(m.address - reinterpret_cast<std::uint64_t>(at->bytes.data()), m.bytes);
  auto made = std::make_unique<visit>(*this, m.from, m, carried_kind::get);
  visit& v = *made;
  visits_.push_back(std::move(made));
  const errc started = say(m.from, answer, part, &v);
  if (started != errc::pending) left(v, started);
}

void carried_memory::left(visit& v, errc outcome) noexcept {
  const rank_id peer = v.peer;
  const std::uint64_t number = v.number;
  const bool was_put = v.what == carried_kind::put;
  if (was_withdrawn(v.region)) outcome = errc::none;
  std::erase_if(visits_, [&](const auto& each) { return each.get() == &v; });
  if (was_put) note_landed(peer, number, outcome);
}

void carried_memory::note_landed(rank_id from, std::uint64_t number, errc outcome) noexcept {
  landings_[from].landed(number, outcome);
  answer_fences(from);
}

void carried_memory::on_fence(const message& m, arrival&& arrived) {
  landings::fence asked{.request = m.request, .below = m.number};
  if (arrived.length() != 0) {
    const bool whole = !arrived.remote() && arrived.length() <= runtime::link::max_header_bytes;
    if (!whole || m.address >= runtime::link::channels || m.address == static_cast<std::uint64_t>(on_)) {
      ++counters_.malformed;
      return;
    }
    const auto brings = arrived.payload();
    asked.on = static_cast<channel>(m.address);
    asked.header.assign(brings.begin(), brings.end());
  }
  if (!landings_[m.from].wait(std::move(asked))) {
    ++counters_.refused;
    return answer_fence(m.from, m.request, errc::full);
  }
  answer_fences(m.from);
}

void carried_memory::answer_fences(rank_id from) {
  for (;;) {
    const auto its = landings_.find(from);  // looked up each time, because `take_` may have given that rank up
    if (its == landings_.end()) return;
    const auto done = its->second.take_done();
    if (!done) return;
    const errc outcome = its->second.outcome_of(*done);
    if (outcome == errc::none && !done->header.empty()) take_(done->on, arrival(done->header, {}));
    answer_fence(from, done->request, outcome);
  }
}

void carried_memory::answer_fence(rank_id from, std::uint64_t asked, errc outcome) noexcept {
  message answer;
  answer.what = carried_kind::fenced;
  answer.from = link_.rank();
  // `cancelled` is reserved for operations that the origin itself cancelled.
  answer.outcome = static_cast<std::uint64_t>(outcome == errc::cancelled ? errc::unavailable : outcome);
  answer.request = asked;
  static_cast<void>(say(from, answer));  // a peer that is gone needs no reply
}

// The origin.

errc carried_memory::say(rank_id to, message m, std::span<const std::byte> payload, completion* done) noexcept {
  if (closed_) return errc::closed;
  m.restarts = restarts_;
  return link_.send(to, on_, std::as_bytes(std::span(&m, 1)), payload, done);
}

errc carried_memory::put(rank_id to, const carried_key& key, std::uint64_t address, std::span<const std::byte> data,
                         completion* done) {
  if (!covers(key, address, data.size())) return errc::bad_argument;
  std::uint64_t& started = puts_started_[to];
  message m;
  m.what = carried_kind::put;
  m.from = link_.rank();
  m.region = key.number;
  m.token = key.token;
  m.address = address;
  m.bytes = data.size();
  m.number = started;
  const errc sent = say(to, m, data, done);
  if (sent == errc::none || sent == errc::pending) ++started;
  return sent;
}

errc carried_memory::ask(rank_id to, message m, std::unique_ptr<request> asked, std::span<const std::byte> payload) {
  asked->id = m.request = ++last_request_;
  m.from = link_.rank();
  requests_.emplace(m.request, std::move(asked));
  const errc sent = say(to, m, payload);
  if (sent == errc::none) return errc::pending;
  requests_.erase(m.request);
  return sent;
}

errc carried_memory::get(rank_id from, const carried_key& key, std::uint64_t address, std::span<std::byte> into,
                         completion* done) {
  if (!covers(key, address, into.size())) return errc::bad_argument;
  message m;
  m.what = carried_kind::get;
  m.region = key.number;
  m.token = key.token;
  m.address = address;
  m.bytes = into.size();
  auto asked = std::make_unique<request>(*this, from, carried_kind::get, done);
  asked->into = into;
  return ask(from, m, std::move(asked));
}

errc carried_memory::fence(rank_id to, completion* done) { return announce(to, on_, {}, done); }

errc carried_memory::announce(rank_id to, channel on, std::span<const std::byte> header, completion* done) {
  if (header.size() > runtime::link::max_header_bytes) return errc::bad_argument;
  message m;
  m.what = carried_kind::fence;
  m.address = static_cast<std::uint64_t>(on);
  m.number = puts_started_[to];
  auto asked = std::make_unique<request>(*this, to, carried_kind::fence, done);
  return ask(to, m, std::move(asked), header);
}

void carried_memory::on_got(const message& m, arrival&& arrived) {
  const auto known = requests_.find(m.request);
  if (known == requests_.end()) return;
  request& asked = *known->second;
  if (asked.peer != m.from || asked.what != carried_kind::get || asked.fetching) return;
  errc outcome = outcome_of(m.outcome);
  if (outcome == errc::none && asked.cancelled) outcome = errc::cancelled;
  if (outcome == errc::none && arrived.length() != asked.into.size()) outcome = errc::malformed;
  if (outcome == errc::none) {
    asked.fetching = true;
    outcome = link_.fetch(std::move(arrived), asked.into, &asked);
  }
  if (outcome != errc::pending) end(m.request, outcome);
}

void carried_memory::on_fenced(const message& m) {
  const auto known = requests_.find(m.request);
  if (known == requests_.end() || known->second->peer != m.from || known->second->what != carried_kind::fence) return;
  end(m.request, outcome_of(m.outcome));
}

void carried_memory::end(std::uint64_t id, errc outcome) noexcept {
  const auto known = requests_.find(id);
  if (known == requests_.end()) return;
  const std::unique_ptr<request> ended = std::move(known->second);
  requests_.erase(known);
  if (ended->done != nullptr) ended->done->on_end(*ended->done, outcome == errc::pending ? errc::malformed : outcome);
}

// Once the reply to a get has arrived, the link fetches its payload, so the link must stop that fetch.
void carried_memory::stop(const completion& pending, void (runtime::link::*how)(completion&)) noexcept {
  for (auto& [id, asked] : requests_) {
    if (asked->done != &pending) continue;
    if (asked->fetching) {
      (link_.*how)(*asked);
    } else {
      asked->cancelled = true;
    }
    return;
  }
}

void carried_memory::expect(rank_id peer, std::uint32_t restarts) {
  if (restarts == 0) return;
  restarts_of_[peer] = static_cast<std::uint16_t>(restarts);
  // These belong to the process before it.
  landings_.erase(peer);
  puts_started_.erase(peer);
}

void carried_memory::on_peer_failed(rank_id peer) noexcept {
  landings_.erase(peer);
  puts_started_.erase(peer);
  end_all([peer](const request& r) { return r.peer == peer; }, errc::peer_failed);
}

template <class Which>
void carried_memory::end_all(Which which, errc outcome) noexcept {
  std::vector<std::uint64_t> over;
  for (const auto& [id, asked] : requests_) {
    if (which(*asked)) over.push_back(id);
  }
  std::sort(over.begin(), over.end());
  for (const std::uint64_t id : over) end(id, outcome);
}

}  // namespace parley::transports
