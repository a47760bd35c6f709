#include <parley/actors/inquiries.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {

constexpr std::size_t most_asked = 256;    // most (op, peer) pairs that are kept
constexpr std::size_t most_text = 4000;    // bytes of a declaration's text
constexpr std::size_t most_words = 300;    // bytes of a call's words
constexpr std::size_t most_waiting = 4;    // calls that an answer names
constexpr std::size_t most_others = 16;    // ops that an answer names
constexpr std::size_t most_named = 4;      // ranks that an error text names
constexpr std::size_t most_heard = 10000;  // bytes that an answer may have

// At most `most_words` bytes of a text, cut between two words.
std::string shortened(const std::string& text) {
  constexpr std::string_view more = " ...";
  if (text.size() <= most_words) return text;
  const std::size_t end = text.rfind(' ', most_words - more.size());
  return text.substr(0, end == std::string::npos ? most_words - more.size() : end).append(more);
}

bool is_edge(const op_declaration& op) { return op.participants.size() == 2 && op.participants[0].role == "sender"; }

// The error text if the other rank has declared the edge only in the other direction.
std::string both_ways(const op_declaration& op, rank_id self) {
  const rank_id from = op.participants[0].rank;
  const rank_id to = op.participants[1].rank;
  const rank_id peer = self == from ? to : from;
  const auto sends = [](rank_id a, rank_id b) {
    return "rank " + std::to_string(a) + " sends to rank " + std::to_string(b);
  };
  return op.title() + ": rank " + std::to_string(self) + " declares that " + sends(from, to) + ", rank " +
         std::to_string(peer) + " that " + sends(to, from) + "; give the op the same roles on all its ranks";
}

std::size_t size_of(const peer_answer& a) {
  std::size_t bytes = a.text.size() + a.progress.size();
  for (const wire_declared& d : a.others) bytes += d.title.size();
  for (const wire_waiting& w : a.waiting) bytes += w.words.size() + w.peers.size() * sizeof(std::uint32_t);
  return bytes;
}

}  // namespace

inquiries::inquiries(services& s, own_knowledge mine) : services_(s), mine_(std::move(mine)) {
  s.mail.bind<peer_question>(rank_itself, [this](envelope from, peer_question&& q) {
    answer(from, std::move(q));
    return errc::none;
  });
  s.mail.bind<peer_answer>(rank_itself, [this](envelope from, peer_answer&& a) {
    hear(from.source, std::move(a));
    return errc::none;
  });
  s.asks = this;
}

inquiries::~inquiries() {
  services_.asks = nullptr;
  services_.mail.unbind(rank_itself);
}

// ---- asking -----------------------------------------------------------------------------------------------------------

void inquiries::send(const op_declaration& op, std::uint64_t generation, rank_id peer, std::uint32_t number,
                     std::uint32_t tag) {
  peer_question q;
  q.op = op.id();
  q.name = op.name;
  if (is_edge(op)) {
    q.reversed = declare_edge(op.name, op.participants[1].rank, op.participants[0].rank, op.dtype).id();
    q.declaration = both_ways(op, services_.net.rank());
  } else {
    q.declaration = op.text().substr(0, most_text);
  }
  q.number = number;
  q.tag = tag;
  static_cast<void>(services_.mail.send(peer, rank_itself, generation, q));
}

void inquiries::ask(const op_declaration& op, std::uint64_t generation, rank_id peer) {
  send(op, generation, peer, 0, 0);
}

// Timers call this function, and timers must not throw. If it fails, no question is sent.
void inquiries::ask_what_it_does(const op_declaration& op, std::uint64_t generation, rank_id peer, std::uint32_t tag) {
  if (peer == services_.net.rank()) return;
  try {
    asked& a = find_or_add(op.id(), peer);
    a.number = ++last_number_;
    a.asked_ns = services_.ex.now();
    send(op, generation, peer, a.number, tag);
  } catch (...) {}
}

inquiries::asked* inquiries::find(std::uint64_t op, rank_id peer) noexcept {
  const auto is_it = [&](const asked& a) { return a.op == op && a.peer == peer; };
  const auto at = std::find_if(all_.begin(), all_.end(), is_it);
  return at == all_.end() ? nullptr : &*at;
}

inquiries::asked& inquiries::find_or_add(std::uint64_t op, rank_id peer) {
  if (asked* const known = find(op, peer)) return *known;
  if (all_.size() == most_asked) all_.erase(all_.begin());
  asked& a = all_.emplace_back();
  a.op = op;
  a.peer = peer;
  return a;
}

// ---- answering --------------------------------------------------------------------------------------------------------

void inquiries::answer(const envelope& from, peer_question&& q) {
  const bool declared = has(q.op);
  if (!declared && q.reversed != 0 && has(q.reversed)) {
    op_reject r;
    r.code = static_cast<std::uint8_t>(errc::role_conflict);
    r.text = std::move(q.declaration);
    static_cast<void>(services_.mail.send(from.source, number_of(q.op, part::participant), from.generation, r));
    return;
  }
  const auto* const by_name = declared || q.reversed != 0 ? nullptr : mine_.by_name(q.name);
  if (q.number == 0 && by_name == nullptr) return;  // this rank may declare the op later
  peer_answer a;
  a.op = q.op;
  a.number = q.number;
  a.declared = declared;
  if (by_name != nullptr) {
    const std::string asks = "rank " + std::to_string(from.source);
    const std::string self = "rank " + std::to_string(services_.net.rank());
    for (const declared_by_name& one : *by_name)
      a.text += (a.text.empty() ? "" : "; ") + difference(asks, q.declaration, self, one.text);
    a.text = a.text.substr(0, most_text) + "; declare the op alike on all its ranks";
  }
  if (q.number != 0) {
    const runtime::time_ns now = services_.clocks.local(services_.ex.now());
    a.leaving = mine_.leaving();
    if (declared) a.progress = mine_.progress(q.op, from.source, q.tag);
    for (declared_by_name& d : declared ? std::vector<declared_by_name>() : mine_.with(from.source)) {
      if (a.others.size() < most_others) a.others.push_back({d.op, shortened(d.text)});
    }
    runtime::waiting_list all = mine_.waiting();
    std::erase_if(all.calls, [](const runtime::waiting_call& w) { return w.rehearsal; });
    std::stable_sort(all.calls.begin(), all.calls.end(),
                     [](const auto& one, const auto& other) { return one.since_ns < other.since_ns; });
    for (const runtime::waiting_call& w : all.calls) {
      if (a.waiting.size() == most_waiting) {
        ++a.more;
        continue;
      }
      wire_waiting& one = a.waiting.emplace_back();
      one.op = w.id;
      one.words = shortened(runtime::words_of(w, now));
      for (const rank_id r : w.peers) one.peers.push_back(r);
      if (one.peers.size() > most_others) one.peers.resize(most_others);
    }
    const auto since = services_.ex.computing_since();
    if (a.waiting.empty() && since)
      a.waiting.emplace_back().words =
          "a computation of its program, which has run for " + runtime::span_in_words(services_.ex.now() - *since);
  }
  static_cast<void>(services_.mail.send(from.source, rank_itself, from.generation, a));
}

// ---- what was said ----------------------------------------------------------------------------------------------------

void inquiries::hear(rank_id from, peer_answer&& a) {
  if (size_of(a) > most_heard || a.others.size() > most_others || a.waiting.size() > most_waiting) return;
  if (a.number == 0) {
    // Keep the answer only if this rank has the op. This rank has not asked about other ops.
    if (!has(a.op)) return;
    asked& known = find_or_add(a.op, from);
    if (known.answer.text.empty())
      warn(services_, "an op of this rank waits for a rank that declares it differently: " + a.text);
    known.answer.declared = false;
    known.answer.text = std::move(a.text);
    return;
  }
  asked* const known = find(a.op, from);
  if (known == nullptr || a.number != known->number) return;
  known->answered = a.number;
  if (a.text.empty() && !a.declared) a.text = std::move(known->answer.text);
  known->answer = std::move(a);
}

std::string inquiries::said_by(const op_declaration& op, const std::vector<rank_id>& peers) const {
  std::vector<const asked*> known;
  for (const rank_id peer : peers) {
    if (const asked* const one = find(op.id(), peer)) known.push_back(one);
  }
  // Peers that wait in the same call are listed last: the call does not wait for them.
  std::stable_partition(known.begin(), known.end(), [](const asked* one) {
    const auto in_it = [one](const wire_waiting& w) { return w.op == one->op; };
    return std::none_of(one->answer.waiting.begin(), one->answer.waiting.end(), in_it);
  });
  std::string all;
  const std::size_t named = std::min(known.size(), most_named);
  for (std::size_t i = 0; i < named; ++i) all += words_of(*known[i]);
  // The text is about a call that has ended, so that call is not in this list.
  std::vector<runtime::waiting_call> own = named == 0 ? std::vector<runtime::waiting_call>() : mine_.waiting().calls;
  std::erase_if(own, [](const runtime::waiting_call& w) { return w.rehearsal; });
  if (own.empty()) return all;
  constexpr std::size_t most_own = 2;
  const runtime::time_ns now = services_.clocks.local(services_.ex.now());
  all += "; rank " + std::to_string(services_.net.rank()) + " also waits in: ";
  for (std::size_t i = 0; i < std::min(own.size(), most_own); ++i)
    all += (i == 0 ? "" : "; and in: ") + runtime::words_of(own[i], now);
  return own.size() <= most_own ? all : all + "; and in " + std::to_string(own.size() - most_own) + " others";
}

std::string inquiries::words_of(const asked& a) const {
  const std::string who = "rank " + std::to_string(a.peer);
  std::string declared_otherwise = a.answer.text.empty() ? "" : "; " + a.answer.text;
  if (a.number == 0) return declared_otherwise;
  constexpr runtime::time_ns soonest_answer_ns = 1'000'000;
  if (a.answered != a.number && services_.ex.now() - a.asked_ns < soonest_answer_ns) return declared_otherwise;
  if (a.answered != a.number)
    return declared_otherwise + "; " + who + " has not said in " +
           runtime::span_in_words(services_.ex.now() - a.asked_ns) + " what it is doing" + words_of_silence(a.peer);
  const peer_answer& said = a.answer;
  std::string text = "; " + who;
  if (!said.declared) {
    text += " has not declared this op";
    std::string others;
    for (const wire_declared& d : said.others) {
      if (!has(d.op)) others += (others.empty() ? "" : ", ") + d.title;
    }
    if (!others.empty()) text += ", but has declared " + others + ", which this rank has not declared";
    text += declared_otherwise;
  } else if (!said.progress.empty()) {
    text += " " + said.progress;
  } else {
    text += " has declared this op";
  }
  if (said.waiting.empty()) {
    text += said.leaving ? "; its program has returned" : "; it is not waiting in any call";
  } else {
    text += "; it waits in: ";
    for (const wire_waiting& w : said.waiting) text += (&w == &said.waiting.front() ? "" : "; and in: ") + w.words;
    if (said.more != 0) text += "; and in " + std::to_string(said.more) + " others";
  }
  return text + order_of_calls(a);
}

std::string inquiries::words_of_silence(rank_id peer) const {
  const runtime::time_ns still_ns = stands_still_ ? stands_still_(peer) : 0;
  if (still_ns == 0) return {};
  return ": its event loop has not run for " + runtime::span_in_words(still_ns) +
         ", so that rank is stopped, or computes without handling messages (poll, or compute on another thread)";
}

// Both ranks have both ops, and each waits for the other in a different op. This does not report orders of sends between two ranks, which
// do not matter: tags show which message is missing.
std::string inquiries::order_of_calls(const asked& a) const {
  const rank_id self = services_.net.rank();
  for (const wire_waiting& w : a.answer.waiting) {
    const bool for_us = std::find(w.peers.begin(), w.peers.end(), self) != w.peers.end();
    if (w.op == a.op || !for_us || !a.answer.declared || mine_.kind(w.op) != op_kind::collective) continue;
    const auto here = mine_.waiting().calls;
    const bool in_it = std::any_of(here.begin(), here.end(), [&](const auto& c) { return c.id == w.op; });
    if (in_it) continue;
    return "; so rank " + std::to_string(self) + " and rank " + std::to_string(a.peer) +
           " make these calls in different orders, or one of them leaves a call out; make the same calls in the same "
           "order on all ranks";
  }
  return {};
}

}  // namespace parley::actors
