#include <parley/transports/nccl/nccl_pairs.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace parley::transports {

using runtime::completion;
using runtime::errc;
using runtime::rank_id;
using runtime::time_ns;

namespace {

constexpr std::size_t most_pairs = 256;
constexpr std::size_t most_early = 4'096;
constexpr int reader_place = 0;
constexpr int owner_place = 1;

enum class kind : std::uint32_t { none, open, get, reader_aborts, owner_aborts };

time_ns machine_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// The header of messages on the channel. The reader numbers the pairs.
struct nccl_pairs::message {
  kind what = kind::none;
  rank_id source = 0;
  std::uint64_t pair = 0;
  std::uint64_t sequence = 0;
  place at{};
};

struct nccl_pairs::transfer final : completion {
  transfer(nccl_pairs& a, pair& p, std::span<std::byte> m, completion* d) noexcept
      : completion(&on_reached), all(a), of(p), memory(m), done(d) {}
  static void on_reached(completion& self, errc outcome) noexcept {
    auto& me = static_cast<transfer&>(self);
    me.all.ended(me, outcome);
  }
  nccl_pairs& all;
  pair& of;
  std::span<std::byte> memory;
  completion* done;     // null at the owner
  bool marked = false;  // a mark in the stream reports its end
};

struct nccl_pairs::pair {
  rank_id peer = 0;
  bool reads = false;
  std::uint64_t number = 0;
  nccl_communicator handle = nullptr;  // null before the reader's id has arrived, and after the abort
  cuda_stream stream = nullptr;
  bool connected = false;
  bool calling = false;  // the latest NCCL call continues in the background: connecting, or the first of `waiting`
  errc broken = errc::none;
  std::uint64_t last = 0;                  // number of the latest request made or served
  std::map<std::uint64_t, message> early;  // at the owner: requests that overtook others
  std::list<std::unique_ptr<transfer>> waiting;
  std::list<std::unique_ptr<transfer>> in_flight;
  transfer* late =
      nullptr;  // of a broken pair: NCCL was connecting for this transfer, and may enqueue it until `nothing_more`
  nccl_library::nothing_more nothing_more;
  time_ns moved_ns = 0;

  bool idle() const noexcept { return !calling && waiting.empty() && in_flight.empty() && early.empty(); }
  void note_work(time_ns now_ns) noexcept {
    if (idle()) moved_ns = now_ns;
  }
};

nccl_pairs::nccl_pairs(runtime::link& below, cuda_copies& copies, nccl_library& library, allowed may, options o)
    : below_(below), copies_(copies), library_(library), allowed_(std::move(may)), options_(o),
      event_fd_(::eventfd(0, EFD_CLOEXEC)) {
  if (options_.clock == nullptr) options_.clock = &machine_clock;
  last_number_ =
      static_cast<std::uint64_t>(now());  // a restarted process uses higher numbers than the process before it
  library_.prepare(copies_.device());
  below_.listen(runtime::link::channel::devices, this);
}

nccl_pairs::~nccl_pairs() {
  below_.listen(runtime::link::channel::devices, nullptr);
  for (const auto& p : pairs_) break_off(*p, errc::closed, "the link ends", p->idle() ? tell_peer::no : tell_peer::yes);
  // Enqueued transfers touch memory until they have ended.
  while (!pairs_.empty()) {
    copies_.poll();
    for (const auto& p : pairs_) end_unmarked(*p);
    tidy();
  }
  ::close(event_fd_);
}

errc nccl_pairs::say(rank_id to, message m, std::span<const std::byte> payload) noexcept {
  m.source = below_.rank();
  return below_.send(to, runtime::link::channel::devices, std::as_bytes(std::span(&m, 1)), payload, nullptr);
}

nccl_pairs::pair* nccl_pairs::find(rank_id peer, std::uint64_t number, bool reads) noexcept {
  for (const auto& p : pairs_) {
    if (p->peer == peer && p->number == number && p->reads == reads) return p.get();
  }
  return nullptr;
}

// ---- the reader -------------------------------------------------------------------------------------------------------

nccl_pairs::pair* nccl_pairs::reader_of(rank_id owner) {
  for (const auto& p : pairs_) {
    if (p->peer == owner && p->reads && p->broken == errc::none) return p.get();
  }
  if (pairs_.size() >= most_pairs) return nullptr;
  const auto id = library_.make_id();
  if (!id) {
    counters_.why = id.reason().text();
    return nullptr;
  }
  auto made = std::make_unique<pair>();
  made->peer = owner;
  made->reads = true;
  made->number = ++last_number_;
  made->stream = copies_.driver().make_stream(copies_.device());
  const auto connecting = library_.connect(*id, 2, reader_place, copies_.device());
  if (!connecting) {
    counters_.why = connecting.reason().text();
    copies_.driver().destroy(made->stream);
    return nullptr;
  }
  made->handle = *connecting;
  made->calling = true;
  made->moved_ns = now();
  ++counters_.communicators;
  pair& p = *pairs_.emplace_back(std::move(made));
  message m;
  m.what = kind::open;
  m.pair = p.number;
  const errc sent = say(owner, m, id->bytes);
  if (sent != errc::none) break_off(p, sent, "no message to its owner can be sent", tell_peer::no);
  return &p;
}

errc nccl_pairs::get(rank_id from, const place& at, std::span<std::byte> into, completion* done) {
  if (from >= below_.world_size() || from == below_.rank() || into.size() != at.bytes || done == nullptr)
    return errc::bad_argument;
  if (into.empty()) return errc::none;
  try {
    pair* const p = reader_of(from);
    if (p == nullptr) return errc::device_failed;
    if (p->broken != errc::none) return p->broken;
    ++counters_.gets;
    counters_.bytes += into.size();
    p->note_work(now());
    p->waiting.push_back(std::make_unique<transfer>(*this, *p, into, done));
    message m;
    m.what = kind::get;
    m.pair = p->number;
    m.sequence = ++p->last;
    m.at = at;
    const errc sent = say(from, m);
    if (sent != errc::none) break_off(*p, sent, "a request cannot be sent", tell_peer::no);
    return errc::pending;
  } catch (const runtime::failure& f) {
    counters_.why = f.what();
    return f.code();
  }
}

nccl_pairs::transfer* nccl_pairs::find(const completion& pending) noexcept {
  for (const auto& p : pairs_) {
    for (const auto* const all : {&p->waiting, &p->in_flight}) {
      for (const auto& t : *all) {
        if (t->done == &pending) return t.get();
      }
    }
  }
  return nullptr;
}

bool nccl_pairs::stop(const completion& pending) noexcept {
  transfer* const t = find(pending);
  if (t != nullptr) break_off(t->of, errc::device_failed, "a transfer was given up", tell_peer::yes);
  return t != nullptr;
}

bool nccl_pairs::abandon(const completion& pending) noexcept {
  if (!stop(pending)) return false;
  while (transfer* const t = find(pending)) {
    copies_.poll();
    if (find(pending) == t) end_unmarked(t->of);
  }
  return true;
}

// ---- the owner --------------------------------------------------------------------------------------------------------

void nccl_pairs::on_arrival(runtime::arrival&& arrived) noexcept {
  message m;
  if (arrived.header().size() != sizeof m) {
    ++counters_.refused;
    return;
  }
  std::memcpy(&m, arrived.header().data(), sizeof m);
  if (m.source >= below_.world_size() || m.source == below_.rank()) {
    ++counters_.refused;
    return;
  }
  try {
    handle(m, std::move(arrived));
  } catch (const runtime::failure& f) {
    ++counters_.refused;
    counters_.why = f.what();
  }
}

void nccl_pairs::handle(const message& m, runtime::arrival&& arrived) {
  if (m.what == kind::owner_aborts || m.what == kind::reader_aborts) {
    pair* const p = find(m.source, m.pair, m.what == kind::owner_aborts);
    if (p != nullptr)
      break_off(*p, errc::device_failed, "rank " + std::to_string(m.source) + " aborted it", tell_peer::no);
    if (m.what == kind::reader_aborts) over_[m.source] = std::max(over_[m.source], m.pair);
    return;
  }
  if ((m.what != kind::open && m.what != kind::get) || m.pair <= over_[m.source]) {
    ++counters_.refused;
    return;
  }
  pair* p = find(m.source, m.pair, false);
  if (p == nullptr) {
    if (pairs_.size() >= most_pairs) {
      ++counters_.refused;
      return;
    }
    auto made = std::make_unique<pair>();
    made->peer = m.source;
    made->number = m.pair;
    made->moved_ns = now();
    p = pairs_.emplace_back(std::move(made)).get();
  }
  if (p->broken != errc::none) return;
  if (m.what == kind::open) return on_open(*p, arrived);
  p->note_work(now());
  if (m.sequence <= p->last || p->early.size() >= most_early || !p->early.emplace(m.sequence, m).second) {
    ++counters_.refused;
    return;
  }
  take_requests(*p);
}

void nccl_pairs::on_open(pair& p, const runtime::arrival& arrived) {
  nccl_id id;
  if (p.handle != nullptr || arrived.payload().size() != id.bytes.size()) {
    ++counters_.refused;
    return;
  }
  std::memcpy(id.bytes.data(), arrived.payload().data(), id.bytes.size());
  p.stream = copies_.driver().make_stream(copies_.device());
  const auto connecting = library_.connect(id, 2, owner_place, copies_.device());
  if (!connecting) return break_off(p, errc::device_failed, connecting.reason().text(), tell_peer::yes);
  p.handle = *connecting;
  p.calling = true;
  p.moved_ns = now();
  ++counters_.communicators;
  take_requests(p);
}

// Accepts requests in the order in which the reader receives.
void nccl_pairs::take_requests(pair& p) {
  while (p.handle != nullptr && !p.early.empty() && p.early.begin()->first == p.last + 1) {
    const message m = p.early.begin()->second;
    p.early.erase(p.early.begin());
    ++p.last;
    if (m.at.bytes == 0 || !allowed_(m.at)) {
      ++counters_.refused;
      return break_off(p, errc::bad_argument,
                       "rank " + std::to_string(p.peer) + " asked for memory that is not exposed", tell_peer::yes);
    }
    ++counters_.sends;
    const std::span<std::byte> memory(reinterpret_cast<std::byte*>(m.at.address), m.at.bytes);
    p.waiting.push_back(std::make_unique<transfer>(*this, p, memory, nullptr));
  }
}

// ---- both -------------------------------------------------------------------------------------------------------------

void nccl_pairs::enqueue_next(pair& p) {
  transfer& t = *p.waiting.front();
  if (p.in_flight.empty()) p.moved_ns = now();
  errc outcome = copies_.order(p.stream, t.memory);
  if (outcome == errc::none)
    outcome = p.reads ? library_.receive(t.memory, owner_place, p.handle, p.stream)
                      : library_.send(t.memory, reader_place, p.handle, p.stream);
  if (outcome == errc::pending) {
    p.calling = true;
  } else if (outcome == errc::none) {
    mark_next(p);
  } else {
    break_off(p, outcome, library_.fault(), tell_peer::yes);
  }
}

// The first waiting transfer is in the stream now.
void nccl_pairs::mark_next(pair& p) noexcept {
  p.in_flight.splice(p.in_flight.end(), p.waiting, p.waiting.begin());
  transfer& t = *p.in_flight.back();
  t.marked = copies_.watch(p.stream, &t) == errc::pending;
  if (!t.marked) break_off(p, errc::device_failed, copies_.driver().fault(), tell_peer::yes);
}

void nccl_pairs::ended(transfer& t, errc outcome) noexcept {
  pair& p = t.of;
  if (p.broken != errc::none) outcome = p.broken;
  p.moved_ns = now();
  completion* const done = t.done;
  std::erase_if(p.in_flight, [&](const auto& each) { return each.get() == &t; });
  if (outcome != errc::none && p.broken == errc::none) break_off(p, outcome, copies_.driver().fault(), tell_peer::yes);
  if (done != nullptr) done->on_end(*done, outcome);
}

// Ends the transfers of a broken pair that never entered the stream. The transfer `late` may have entered the stream before `nothing_more`
// became true, so it gets a mark first, and ends with that mark.
bool nccl_pairs::end_unmarked(pair& p) noexcept {
  bool any = false;
  if (p.late != nullptr && (p.nothing_more == nullptr || p.nothing_more->load())) {
    transfer& t = *std::exchange(p.late, nullptr);
    t.marked = copies_.watch(p.stream, &t) == errc::pending;
  }
  for (;;) {
    const auto at = std::find_if(p.in_flight.begin(), p.in_flight.end(),
                                 [&p](const auto& t) { return !t->marked && t.get() != p.late; });
    if (at == p.in_flight.end()) return any;
    any = true;
    ended(**at, p.broken);
  }
}

// The abort makes NCCL's kernels stop. The stream then continues, and its marks report when the memory is free.
void nccl_pairs::break_off(pair& p, errc why, const std::string& text, tell_peer told) noexcept {
  if (p.broken != errc::none) return;
  p.broken = why;
  if (why != errc::closed) {
    ++counters_.aborted;
    counters_.why = "rank " + std::to_string(p.peer) + ": " + text;
  }
  if (p.handle != nullptr) p.nothing_more = library_.abort(std::exchange(p.handle, nullptr));
  const bool called = p.connected && p.calling && !p.waiting.empty();
  p.calling = false;
  p.early.clear();
  p.late = called ? p.waiting.front().get() : nullptr;
  p.in_flight.splice(p.in_flight.end(), p.waiting);
  // NCCL's kernels end, and NCCL frees its memory, only when no stream waits for a message. So release the streams that wait for these
  // transfers.
  if (p.reads) {
    for (const auto& t : p.in_flight) copies_.give_up_on(t->memory, why);
  }
  if (!p.reads) over_[p.peer] = std::max(over_[p.peer], p.number);
  if (told == tell_peer::no) return;
  message m;
  m.what = p.reads ? kind::reader_aborts : kind::owner_aborts;
  m.pair = p.number;
  static_cast<void>(say(p.peer, m));
}

void nccl_pairs::on_peer_failed(rank_id peer) noexcept {
  for (const auto& p : pairs_) {
    if (p->peer == peer) break_off(*p, errc::peer_failed, "it has died", tell_peer::no);
  }
}

bool nccl_pairs::advance(pair& p) {
  if (p.broken != errc::none) return end_unmarked(p);
  if (p.idle()) return false;
  if (p.handle != nullptr) {
    const errc seen = library_.state(p.handle);
    if (seen == errc::pending) std::this_thread::yield();  // NCCL's thread may share this core
    if (seen != errc::none && seen != errc::pending) {
      break_off(p, errc::device_failed, library_.fault(), tell_peer::yes);
      return true;
    }
    if (p.calling && seen == errc::none) {
      p.calling = false;
      if (std::exchange(p.connected, true)) mark_next(p);
    }
    const std::size_t before = p.waiting.size();
    while (p.connected && !p.calling && p.broken == errc::none && !p.waiting.empty()) enqueue_next(p);
    if (p.waiting.size() != before) return true;
  }
  if (p.broken == errc::none && now() - p.moved_ns > options_.patience_ns) {
    break_off(p, errc::device_failed,
              "nothing has moved for " + std::to_string(options_.patience_ns / 1'000'000'000) +
                  " s: the other rank does not poll, or its GPU is held up",
              tell_peer::yes);
    return true;
  }
  return false;
}

bool nccl_pairs::busy() const noexcept {
  return std::any_of(pairs_.begin(), pairs_.end(), [](const auto& p) { return p->broken != errc::none || !p->idle(); });
}

bool nccl_pairs::tidy() noexcept {
  return std::erase_if(pairs_, [this](const auto& p) {
           const bool over = p->broken != errc::none && p->in_flight.empty();
           if (over && p->stream != nullptr) copies_.driver().destroy(p->stream);
           return over;
         }) != 0;
}

bool nccl_pairs::poll() {
  bool any = false;
  for (const auto& p : pairs_) any = advance(*p) || any;
  return tidy() || any;
}

}  // namespace parley::transports
