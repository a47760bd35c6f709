#include <parley/transports/ucx/lent_payloads.hpp>

#include <parley/transports/join/rendezvous_wire.hpp>

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace parley::transports {

using runtime::arrival;
using runtime::completion;
using runtime::errc;
using runtime::rank_id;

namespace {

enum class loan_kind : std::uint16_t { none, question, readable, lent, taken, again, repaid, withdrawn, unreadable };

enum class read_outcome : std::uint8_t { read, taken_back, gone, unreadable };

std::uint64_t address_of(const void* at) noexcept { return reinterpret_cast<std::uint64_t>(at); }

iovec place(std::uint64_t address, std::size_t bytes) noexcept {
  return {reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr): in another process
}

/// Copies from another process's memory, and then reads the guard word there, which says whether the copy is valid.
read_outcome read_memory(pid_t process, std::uint64_t from, std::span<std::byte> into, std::uint64_t guard,
                         std::uint64_t number) noexcept {
  std::uint64_t standing = 0;
  const iovec here[] = {{into.data(), into.size()}, {&standing, sizeof standing}};
  const iovec there[] = {place(from, into.size()), place(guard, sizeof standing)};
  const ssize_t got = ::process_vm_readv(process, here, 2, there, 2, 0);
  if (got == static_cast<ssize_t>(into.size() + sizeof standing))
    return standing == number ? read_outcome::read : read_outcome::taken_back;
  return got < 0 && errno == ESRCH ? read_outcome::gone : read_outcome::unreadable;
}

}  // namespace

/// The header of every message. It is as long as a stamp, so that the link's fast path for small messages applies.
struct lent_payloads::message {
  loan_kind what = loan_kind::none;
  std::uint16_t restarts = 0;  // of rank `from`
  rank_id from = 0;
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t guard = 0;   ///< the address of a word that is `number` while the loan is valid
  std::uint64_t on = 0;      ///< the channel of the lent message; this message's payload is the header of the lent one
  std::int64_t process = 0;  ///< in a question: the asker's process id
  std::uint64_t token = 0;   ///< in a question: the number at `address`
};

struct lent_payloads::loan : completion {
  loan(lent_payloads& o, rank_id t, channel c, std::span<const std::byte> p, completion& d)
      : completion(&on_sent), owner(o), to(t), on(c), payload(p), done(&d) {}
  static void on_sent(completion& self, errc outcome) noexcept {
    auto& mine = static_cast<loan&>(self);
    mine.owner.end_loan(mine.number, outcome);
  }
  lent_payloads& owner;
  rank_id to;
  channel on;
  std::span<const std::byte> payload;
  completion* done;
  std::uint64_t number = 0;
  std::atomic<std::uint64_t> guard = 0;
  bool sending = false;  // the link sends the payload, because the receiver cannot read it
};

struct lent_payloads::reading : completion {
  enum class stage : std::uint8_t { copying, awaiting, fetching };
  explicit reading(lent_payloads& o) noexcept : completion(&on_fetched), owner(o) {}
  static void on_fetched(completion& self, errc outcome) noexcept {
    auto& mine = static_cast<reading&>(self);
    mine.owner.end_reading(mine, outcome);
  }
  lent_payloads& owner;
  rank_id from = 0;
  pid_t process = 0;
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t guard = 0;
  std::uint64_t bytes = 0;
  std::uint64_t copied = 0;
  std::span<std::byte> into;
  completion* done = nullptr;
  stage now = stage::copying;
  errc failed = errc::none;
};

lent_payloads::lent_payloads(runtime::link& by, options chosen, take_function take)
    : link_(by), chosen_(chosen), take_(std::move(take)) {
  static_assert(sizeof(message) == runtime::link::max_header_bytes);
  static_assert(sizeof(message) + runtime::link::max_header_bytes <= arrival::inline_bytes);
  wire::randomise(std::as_writable_bytes(std::span(&token_, 1)));
  wire::randomise(std::as_writable_bytes(std::span(&last_, 1)));
  link_.listen(channel::loans, this);
}

lent_payloads::~lent_payloads() { close(); }

errc lent_payloads::say(rank_id to, message m, std::span<const std::byte> payload, completion* done) noexcept {
  if (closed_) return errc::closed;
  m.from = link_.rank();
  m.restarts = static_cast<std::uint16_t>(chosen_.restarts);
  return link_.send(to, channel::loans, std::as_bytes(std::span(&m, 1)), payload, done);
}

// The sender.

bool lent_payloads::may_lend(rank_id to, std::size_t bytes) {
  if (to == link_.rank()) return false;
  neighbour& peer = neighbours_[to];
  if (peer.state == lending::unasked) {
    message m;
    m.what = loan_kind::question;
    if (chosen_.may) m.process = ::getpid();
    m.address = address_of(&token_);
    m.token = token_;
    if (say(to, m) == errc::none) peer.state = lending::asked;
  }
  return peer.state == lending::yes && lends(bytes);
}

bool lent_payloads::has_yet_to_answer(rank_id peer) const noexcept {
  const auto known = neighbours_.find(peer);
  return known != neighbours_.end() && known->second.state == lending::asked && chosen_.restarts == 0;
}

errc lent_payloads::lend(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                         completion& done) {
  auto made = std::make_unique<loan>(*this, to, on, payload, done);
  made->number = ++last_;
  made->guard = made->number;
  message m;
  m.what = loan_kind::lent;
  m.number = made->number;
  m.address = address_of(payload.data());
  m.bytes = payload.size();
  m.guard = address_of(&made->guard);
  m.on = static_cast<std::uint64_t>(on);
  if (const errc told = say(to, m, header); told != errc::none) return told;
  loans_[made->number] = std::move(made);
  return errc::pending;
}

// The fence orders this before later writes of the memory's next user.
void lent_payloads::take_back(loan& l) noexcept {
  l.guard = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void lent_payloads::end_loan(std::uint64_t number, errc outcome) noexcept {
  const auto known = loans_.find(number);
  if (known == loans_.end()) return;
  const std::unique_ptr<loan> over = std::move(known->second);
  loans_.erase(known);
  take_back(*over);
  over->done->on_end(*over->done, outcome);
}

// The receiver.

errc lent_payloads::fetch(const void* held, std::span<std::byte> into, completion* done) {
  const auto found = kept_.find(held);
  std::unique_ptr<reading> mine = std::move(found->second);
  kept_.erase(found);
  reading& r = *mine;
  r.into = into.first(static_cast<std::size_t>(r.bytes));
  readings_.push_back(std::move(mine));
  if (r.failed == errc::none && copy_on(r)) {  // more to copy: `done` is called later
    r.done = done;
    return errc::pending;
  }
  const errc outcome = r.failed;
  end_reading(r, outcome);
  return outcome;
}

bool lent_payloads::copy_on(reading& r) noexcept {
  const std::size_t next = std::min<std::size_t>(r.into.size() - r.copied, chosen_.piece);
  switch (read_memory(r.process, r.address + r.copied, r.into.subspan(r.copied, next), r.guard, r.number)) {
    case read_outcome::read: break;
    case read_outcome::taken_back: r.failed = errc::send_failed; return false;
    case read_outcome::gone:  // the link will detect the failure, or learn why (such as: this rank was declared dead)
      r.now = reading::stage::awaiting;
      return true;
    case read_outcome::unreadable: {
      message m;
      m.what = loan_kind::again;
      m.number = r.number;
      r.failed = say(r.from, m);
      if (r.failed != errc::none) return false;
      r.now = reading::stage::awaiting;
      return true;
    }
  }
  r.copied += next;
  if (r.copied == r.bytes) return false;
  if (r.now == reading::stage::copying && (copying_.empty() || copying_.front() != &r)) copying_.push_back(&r);
  return true;
}

// If this rank copied the payload itself, the sender may reuse its memory from here on.
void lent_payloads::end_reading(reading& r, errc outcome) noexcept {
  const auto known = std::find_if(readings_.begin(), readings_.end(), [&](const auto& k) { return k.get() == &r; });
  const std::unique_ptr<reading> over = std::move(*known);
  readings_.erase(known);
  std::erase(copying_, &r);
  if (r.now == reading::stage::copying) give_back(r);
  if (r.done != nullptr) r.done->on_end(*r.done, outcome);
}

void lent_payloads::drop(const void* held) noexcept {
  const auto found = kept_.find(held);
  if (found == kept_.end()) return;
  give_back(*found->second);
  kept_.erase(found);
}

void lent_payloads::give_back(const reading& r) noexcept {
  message m;
  m.what = loan_kind::taken;
  m.number = r.number;
  static_cast<void>(say(r.from, m));
}

void lent_payloads::work() noexcept {
  for (const auto& [done, outcome] : std::exchange(over_, {})) done->on_end(*done, outcome);
  if (copying_.empty()) return;
  reading& oldest = *copying_.front();
  if (!copy_on(oldest)) return end_reading(oldest, oldest.failed);
  if (oldest.now != reading::stage::copying) copying_.pop_front();
}

bool lent_payloads::stop(const completion& pending, bool at_once) noexcept {
  for (auto& [number, l] : loans_) {
    if (l->done != &pending) continue;
    if (!at_once && l->on == channel::transfers) return true;  // the target counts puts: never cancelled
    if (l->sending) {
      at_once ? link_.abandon(*l) : link_.cancel(*l);
    } else {
      take_back(*l);
      over_.push_back({l->done, errc::cancelled});
      loans_.erase(number);
    }
    return true;
  }
  for (auto& r : readings_) {
    if (r->done != &pending) continue;
    if (r->now == reading::stage::fetching) {
      at_once ? link_.abandon(*r) : link_.cancel(*r);
    } else {
      over_.push_back({std::exchange(r->done, nullptr), errc::cancelled});
      end_reading(*r, errc::cancelled);
    }
    return true;
  }
  return false;
}

void lent_payloads::abandon_all(const std::function<bool(const completion*)>& such) {
  std::vector<const completion*> doomed;
  for (const auto& [number, l] : loans_)
    if (such(l->done)) doomed.push_back(l->done);
  for (const auto& r : readings_)
    if (r->done != nullptr && such(r->done)) doomed.push_back(r->done);
  for (const completion* const each : doomed) stop(*each, true);
}

void lent_payloads::close() noexcept {
  for (const auto& [done, outcome] : std::exchange(over_, {})) done->on_end(*done, outcome);
  const auto is_lent = [](const auto& entry) { return !entry.second->sending; };
  for (auto l = std::find_if(loans_.begin(), loans_.end(), is_lent); l != loans_.end();
       l = std::find_if(loans_.begin(), loans_.end(), is_lent))
    end_loan(l->first, errc::closed);
  const auto is_here = [](const auto& r) { return r->now != reading::stage::fetching; };
  for (auto r = std::find_if(readings_.begin(), readings_.end(), is_here); r != readings_.end();
       r = std::find_if(readings_.begin(), readings_.end(), is_here))
    end_reading(**r, errc::closed);
  closed_ = true;
}

bool lent_payloads::waits_for(const std::function<bool(rank_id)>& reachable) const {
  return std::any_of(loans_.begin(), loans_.end(),
                     [&](const auto& entry) { return !entry.second->sending && reachable(entry.second->to); });
}

const completion* lent_payloads::behind(const completion* done) const noexcept {
  for (const auto& [number, l] : loans_)
    if (l.get() == done) return l->done;
  for (const auto& r : readings_)
    if (r.get() == done) return r->done;
  return done;
}

void lent_payloads::on_peer_failed(rank_id peer) noexcept {
  // The link itself ends the operations that it sends or fetches. A completion may start and end other operations, so each search starts
  // over.
  const auto lent_to = [&](const auto& entry) { return entry.second->to == peer && !entry.second->sending; };
  for (auto l = std::find_if(loans_.begin(), loans_.end(), lent_to); l != loans_.end();
       l = std::find_if(loans_.begin(), loans_.end(), lent_to))
    end_loan(l->first, errc::peer_failed);
  const auto read_from = [&](const auto& r) { return r->from == peer && r->now != reading::stage::fetching; };
  for (auto r = std::find_if(readings_.begin(), readings_.end(), read_from); r != readings_.end();
       r = std::find_if(readings_.begin(), readings_.end(), read_from))
    end_reading(**r, errc::peer_failed);
  for (auto& [held, kept] : kept_) {
    if (kept->from == peer) kept->failed = errc::peer_failed;  // for a later fetch: the failure is reported only once
  }
}

void lent_payloads::take_back_from(rank_id peer) noexcept {
  for (auto& [number, l] : loans_) {
    if (l->to == peer) take_back(*l);
  }
}

void lent_payloads::expect(rank_id peer, std::uint32_t restarts) {
  if (restarts != 0) neighbours_[peer] = {.restarts = static_cast<std::uint16_t>(restarts)};
}

// Messages.

void lent_payloads::on_arrival(arrival&& arrived) noexcept {
  message m;
  if (arrived.header().size() != sizeof m) return;
  std::memcpy(&m, arrived.header().data(), sizeof m);
  const auto from = neighbours_.find(m.from);
  if (m.from >= link_.world_size() || m.restarts != (from == neighbours_.end() ? 0 : from->second.restarts)) return;
  switch (m.what) {
    case loan_kind::question: return on_question(m);
    case loan_kind::readable:
    case loan_kind::unreadable:
      if (from != neighbours_.end() && from->second.state == lending::asked)
        from->second.state = m.what == loan_kind::readable ? lending::yes : lending::no;
      return;
    case loan_kind::lent: return on_lent(m, arrived);
    case loan_kind::taken:
      if (const auto l = loans_.find(m.number); l != loans_.end() && l->second->to == m.from && !l->second->sending)
        end_loan(m.number, l->second->guard == m.number ? errc::none : errc::peer_failed);  // 0: taken back
      return;
    case loan_kind::again: return on_again(m);
    case loan_kind::repaid: return on_repaid(m, std::move(arrived));
    case loan_kind::withdrawn: return on_withdrawn(m);
    case loan_kind::none: return;
  }
}

void lent_payloads::on_question(const message& m) {
  std::uint64_t seen = 0;
  const auto into = std::as_writable_bytes(std::span(&seen, 1));
  const bool can_read =
      chosen_.may && m.process > 0 && m.token != 0 &&
      read_memory(static_cast<pid_t>(m.process), m.address, into, m.address, m.token) == read_outcome::read;
  if (can_read) neighbours_[m.from].process = m.process;
  message answer;
  answer.what = can_read ? loan_kind::readable : loan_kind::unreadable;
  static_cast<void>(say(m.from, answer));
}

void lent_payloads::on_lent(const message& m, const arrival& arrived) {
  const neighbour& from = neighbours_[m.from];
  if (from.process == 0 || m.bytes == 0 || m.on >= runtime::link::channels || m.on == std::uint64_t(channel::loans) ||
      arrived.length() > runtime::link::max_header_bytes)
    return;
  auto made = std::make_unique<reading>(*this);
  made->from = m.from;
  made->process = static_cast<pid_t>(from.process);
  made->number = m.number;
  made->address = m.address;
  made->guard = m.guard;
  made->bytes = m.bytes;
  const void* const held = made.get();
  kept_[held] = std::move(made);
  take_(static_cast<channel>(m.on), arrival(&link_, arrived.payload(), m.bytes, held, true));
}

// The receiver's kernel cannot read the payload, so the link sends it.
void lent_payloads::on_again(const message& m) {
  const auto known = loans_.find(m.number);
  if (known == loans_.end() || known->second->to != m.from) {
    message answer;
    answer.what = loan_kind::withdrawn;
    answer.number = m.number;
    static_cast<void>(say(m.from, answer));
    return;
  }
  loan& l = *known->second;
  if (std::exchange(l.sending, true)) return;
  neighbour& from = neighbours_[m.from];
  if (++from.unreadable >= most_unreadable) from.state = lending::no;
  message answer;
  answer.what = loan_kind::repaid;
  answer.number = l.number;
  const errc started = say(m.from, answer, l.payload, &l);
  if (started == errc::pending) return;
  if (started != errc::none) {
    answer.what = loan_kind::withdrawn;
    static_cast<void>(say(m.from, answer));
  }
  end_loan(answer.number, started);
}

lent_payloads::reading* lent_payloads::awaited(const message& m) noexcept {
  for (auto& r : readings_)
    if (r->from == m.from && r->number == m.number && r->now == reading::stage::awaiting) return r.get();
  return nullptr;
}

void lent_payloads::on_repaid(const message& m, arrival&& arrived) {
  reading* const r = awaited(m);
  if (r == nullptr) return;
  r->now = reading::stage::fetching;
  const errc started =
      arrived.length() == r->into.size() ? link_.fetch(std::move(arrived), r->into, r) : errc::malformed;
  if (started != errc::pending) end_reading(*r, started);
}

void lent_payloads::on_withdrawn(const message& m) {
  if (reading* const r = awaited(m)) end_reading(*r, errc::send_failed);
}

}  // namespace parley::transports
