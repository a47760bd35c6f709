#include <parley/actors/one_sided/one_sided.hpp>

#include <parley/actors/declaration.hpp>
#include <parley/actors/edge/parts_in_flight.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/stamp.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {

bool contains(const std::vector<std::uint64_t>& list, std::uint64_t one) noexcept {
  return std::find(list.begin(), list.end(), one) != list.end();
}
}  // namespace

one_sided_sender::one_sided_sender(services& s, edge e, std::vector<std::uint64_t> puts,
                                   std::vector<std::uint64_t> gets)
    : services_(s), edge_(std::move(e)), puts_(std::move(puts)), gets_(std::move(gets)) {
  const std::uint64_t me = number_of(edge_.op, part::data_sender);
  const auto bind = [&]<class M>(auto handle) {
    services_.mail.bind<M>(me, [this, handle](runtime::envelope from, M&& m) {
      // Credits end with their generation (S5).
      if (from.source == edge_.peer && from.generation == edge_.generation) handle(from, std::move(m));
      return errc::none;
    });
  };
  bind.template operator()<credit>([this](const auto& from, credit&& m) { on_credit(from, std::move(m)); });
  bind.template operator()<revoke>([this](const auto& from, revoke&& m) { on_revoke(from, m); });
  bind.template operator()<known>([this](const auto& from, known&& m) { on_known(from, m); });
  services_.mail.bind<taken>(reader_of(edge_.op, edge_.generation, part::data_sender),
                             [this](runtime::envelope from, taken&& m) {
                               if (from.source == edge_.peer) on_taken(m);
                               return errc::none;
                             });
}

one_sided_sender::~one_sided_sender() {
  fail(errc::closed, reader::gone);
  services_.mail.unbind(reader_of(edge_.op, edge_.generation, part::data_sender));
}

// ---- credits ----------------------------------------------------------------------------------------------------------

one_sided_sender::held_stream* one_sided_sender::stream_of(std::uint64_t id) {
  for (held_stream& s : streams_) {
    if (s.id == id) return &s;
  }
  if (streams_.size() >= most_streams) return nullptr;
  streams_.push_back({id, {}});
  return &streams_.back();
}

one_sided_sender::held_stream* one_sided_sender::stream_at(std::uint64_t id, std::uint64_t invocation) {
  held_stream* const s = stream_of(id);
  if (s != nullptr && invocation != 0) s->held.begun(invocation - 1);
  return s;
}

void one_sided_sender::on_credit(const runtime::envelope&, credit&& m) {
  if (m.key.size() > runtime::link::max_remote_key_bytes) {
    ++counters_.credits_ignored;
    return;
  }
  held_credit c;
  c.index = m.index;
  c.number = m.number;
  c.address = m.address;
  c.capacity = m.capacity;
  c.flag = m.flag;
  const auto key = std::as_bytes(std::span(m.key));
  c.key.assign(key.begin(), key.end());
  services_.net.prepare({c.key, c.address});
  memory_there_ = memory_there_ || m.stream != stream_id(0, true);
  const std::uint64_t next = edge_.next(m.stream);
  held_stream* const s = stream_at(m.stream, next);
  if (s == nullptr || !s->held.take(std::move(c), next)) ++counters_.credits_ignored;
  if (edge_.credited) edge_.credited(m.stream);
}

void one_sided_sender::on_revoke(const runtime::envelope&, const revoke& m) {
  if (failed_ != errc::none) return say_ended();
  revoked answer;
  answer.stream = m.stream;
  answer.number = m.number;
  answer.next = edge_.next(m.stream);
  if (held_stream* const s = stream_of(m.stream)) s->held.revoke(m.number);
  // If the control window is full, this message is not sent, and the receiver asks again.
  static_cast<void>(
      services_.mail.send(edge_.peer, number_of(edge_.op, part::data_receiver), edge_.generation, answer));
}

void one_sided_sender::say_ended() noexcept {
  gen_end word;
  word.why = static_cast<std::uint8_t>(failed_);
  // If this message is lost, the receiver repeats its revoke, and gets this reply again.
  static_cast<void>(services_.mail.send(edge_.peer, number_of(edge_.op, part::data_receiver), edge_.generation, word));
}

// ---- what an invocation may use ---------------------------------------------------------------------------------------

bool one_sided_sender::is_put(std::uint64_t digest) const noexcept { return contains(puts_, digest); }
bool one_sided_sender::is_get(std::uint64_t digest) const noexcept { return contains(gets_, digest); }
void one_sided_sender::note_variant(std::uint64_t candidate, std::uint64_t own) {
  list_like(puts_, own, candidate);
  list_like(gets_, own, candidate);
}

std::span<const lacking_config> one_sided_sender::lacking(std::uint64_t stream, std::uint64_t invocation,
                                                          std::span<const std::byte> source) {
  lacking_.clear();
  const auto add = [&](const std::vector<std::uint64_t>& configs) {
    for (const std::uint64_t digest : configs) {
      if (const auto what = lacks(digest, stream, invocation, source)) lacking_.push_back({digest, *what});
    }
  };
  add(puts_);
  announce_forgotten(source);
  add(gets_);
  return lacking_;
}

bool one_sided_sender::may_put(std::uint64_t stream, std::uint64_t invocation, std::uint64_t bytes) noexcept {
  if (puts_.empty() || failed_ != errc::none) return true;
  for (const held_stream& s : streams_) {
    if (s.id == stream) return s.held.has(invocation, bytes);
  }
  return false;
}

std::optional<unmet_need> one_sided_sender::lacks(std::uint64_t digest, std::uint64_t stream, std::uint64_t invocation,
                                                  std::span<const std::byte> source) const noexcept {
  const bool puts = is_put(digest);
  if (!puts && !is_get(digest)) return std::nullopt;
  if (source.empty()) return unmet_need::payload;
  if (!puts) {
    if (find(source) != nullptr) return std::nullopt;
    return holds(source) ? unmet_need::word_in_time : unmet_need::memory_of_sender;
  }
  const auto has_it = [&](const held_stream& s) { return s.id == stream && s.held.has(invocation, source.size()); };
  if (std::any_of(streams_.begin(), streams_.end(), has_it)) return std::nullopt;
  return memory_there_ ? unmet_need::credit_in_time : unmet_need::memory_of_receiver;
}

const one_sided_access* one_sided_sender::begin(std::uint64_t digest, std::uint64_t stream, std::uint64_t invocation,
                                                std::span<const std::byte> source) {
  std::unique_ptr<one_sided_access> use;
  held_stream* const s = puts_.empty() ? nullptr : stream_at(stream, invocation);
  if (is_put(digest)) {
    const held_credit* const c = s == nullptr ? nullptr : s->held.find(invocation, source.size());
    if (c != nullptr) {
      ++counters_.credits_used;
      use = std::make_unique<one_sided_access>(one_sided_access{*this, stream, invocation, *c});
    }
  } else if (is_get(digest)) {
    if (const announced* const a = find(source)) {
      ++counters_.gets_offered;
      use = std::make_unique<one_sided_access>(one_sided_access{*this, stream, invocation, {}, a->region});
      use->place.region = a->number;
      use->place.offset = static_cast<std::uint64_t>(source.data() - a->region->memory.bytes.data());
    }
  }
  if (s != nullptr) s->held.begun(invocation);
  if (use == nullptr) return nullptr;
  in_use_.push_back(std::move(use));
  return in_use_.back().get();
}

void one_sided_sender::end(const one_sided_access* used) noexcept {
  std::erase_if(in_use_, [used](const auto& u) { return u.get() == used; });
}

// ---- memory that the receiver may read --------------------------------------------------------------------------------

void one_sided_sender::add_memory(const std::shared_ptr<memory_region>& region) {
  if (gets_.empty() || failed_ != errc::none) return;
  std::erase_if(announced_, [](const announced& a) { return a.region->where != memory_region::state::exposed; });
  announced_.push_back({0, region});
  number_and_announce(announced_.back());
}

const one_sided_sender::announced* one_sided_sender::find(std::span<const std::byte> source) const noexcept {
  for (const announced& a : announced_) {
    if (a.known && remembers(a) && a.region->contains(source)) return &a;
  }
  return nullptr;
}

void one_sided_sender::announce_forgotten(std::span<const std::byte> source) noexcept {
  const auto holds_it = [&](const announced& a) { return a.region->contains(source); };
  const auto at = std::find_if(announced_.begin(), announced_.end(), holds_it);
  if (at == announced_.end() ||
      std::any_of(at, announced_.end(), [&](const announced& a) { return remembers(a) && holds_it(a); }))
    return;
  number_and_announce(*at);
}

void one_sided_sender::number_and_announce(announced& a) noexcept {
  const auto would_be_forgotten = [&](const auto& used) {
    return used->region != nullptr && used->place.region + most_regions <= last_announced_ + 1;
  };
  if (std::any_of(in_use_.begin(), in_use_.end(), would_be_forgotten)) return;
  a.number = ++last_announced_;
  a.known = false;
  announce(a);
  announcement_.restart();
  if (!announcement_.is_set()) announcement_.go_on(services_);
}

bool one_sided_sender::holds(std::span<const std::byte> source) const noexcept {
  return std::any_of(announced_.begin(), announced_.end(),
                     [&](const announced& a) { return a.region->contains(source); });
}

void one_sided_sender::announce(const announced& a) noexcept {
  exposed m;
  m.region = a.number;
  m.address = reinterpret_cast<std::uint64_t>(a.region->memory.bytes.data());
  m.bytes = a.region->memory.bytes.size();
  m.key.resize(a.region->memory.key.size());
  std::memcpy(m.key.data(), a.region->memory.key.data(), m.key.size());
  static_cast<void>(services_.mail.send(edge_.peer, number_of(edge_.op, part::data_receiver), edge_.generation, m));
}

void one_sided_sender::on_known(const runtime::envelope&, const known& m) noexcept {
  memory_there_ = memory_there_ || m.region == 0;
  for (announced& a : announced_) a.known = a.known || a.number == m.region;
  if (edge_.memory_known) edge_.memory_known();
}

void one_sided_sender::await_taken(std::uint64_t stream, std::uint64_t invocation, transfer_part& offered) noexcept {
  waiting_.push_back({stream, invocation, &offered});
  if (!taken_question_.is_set()) taken_question_.begin(services_, first_question_ns);
}

void one_sided_sender::on_taken(const taken& m) noexcept {
  heard_ns_ = services_.ex.precise_now();
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const waiting_get& w) {
    return w.stream == m.stream && w.invocation == m.invocation;
  });
  if (m.what != taken::kind::report || at == waiting_.end()) return;
  transfer_part& offered = *at->offered;
  waiting_.erase(at);
  // If the receive had no room, or was given up, the config is not to blame: the sender has done its part.
  const errc outcome = m.outcome == 0 ? errc::none : runtime::errc_of(m.outcome, errc::config_failed);
  offered.on_end(offered, blames_config(outcome) ? as_seen_by_other_end(outcome) : errc::none);
}

// ---- asking again -----------------------------------------------------------------------------------------------------

void one_sided_sender::announce_again() noexcept {
  std::erase_if(announced_, [](const announced& a) { return a.region->where != memory_region::state::exposed; });
  bool open = false;
  for (const announced& a : announced_) {
    if (a.known || a.number == 0) continue;
    open = true;
    announce(a);
  }
  if (open) announcement_.go_on(services_);
}

// A caller waits for the answer, so this question is repeated more often than an announcement.
void one_sided_sender::ask_whether_taken() noexcept {
  if (waiting_.empty()) return;
  bool late = false;
  for (const waiting_get& w : waiting_) {
    taken m;
    m.what = taken::kind::question;
    m.stream = w.stream;
    m.invocation = w.invocation;
    const errc sent = services_.mail.send(edge_.peer, reader_of(edge_.op, edge_.generation, part::data_receiver),
                                          edge_.generation, m);
    if (sent == errc::peer_failed) return end_waits(sent);
    late = late || w.offered->owner == nullptr || w.offered->owner->failed() != errc::none;
  }
  if (failed_ != errc::none && hears_nothing()) return end_waits(failed_);
  taken_question_.go_on(services_, late ? longest_late_pause_ns : hurried.longest);
}

bool one_sided_sender::hears_nothing() const noexcept {
  constexpr runtime::time_ns longer_ns = 1'000'000'000;  // longer, so that a death is detected first
  if (services_.detection_ns == 0) return false;
  return services_.ex.is_over(heard_ns_ + std::max(shortest_silence_ns, services_.detection_ns + longer_ns));
}

void one_sided_sender::ask_soon() noexcept {
  if (waiting_.empty()) return;
  taken_question_.begin(services_);
}

void one_sided_sender::end_waits(errc why) noexcept {
  taken_question_.stop();
  auto waiting = std::move(waiting_);
  waiting_.clear();
  for (const waiting_get& w : waiting) w.offered->on_end(*w.offered, why);
}

void one_sided_sender::fail(errc why, reader r) noexcept {
  if (failed_ == errc::none) heard_ns_ = services_.ex.precise_now();
  failed_ = why;
  announcement_.stop();
  announced_.clear();
  if (r == reader::gone) return end_waits(why);
  // Failing a part sends a poison. The poison ends receives that have not begun to read.
  for (const waiting_get& w : waiting_) {
    if (w.offered->owner != nullptr) w.offered->owner->fail(why);
  }
}

}  // namespace parley::actors
