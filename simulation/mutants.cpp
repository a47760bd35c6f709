#include <parley/simulation/mutants.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/generations.hpp>
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/actors/rounds/neighbour_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/frame.hpp>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace parley::simulation {

using actors::stamp;
using runtime::link;

namespace {

template <class M>
std::optional<M> body_of(const parcel& p) {
  runtime::frame_header h;
  if (p.on != link::channel::control || p.header.size() != sizeof h) return std::nullopt;
  std::memcpy(&h, p.header.data(), sizeof h);
  if (h.type != M::message_type || p.payload.size() != p.payload_bytes) return std::nullopt;
  auto decoded = runtime::decode<M>(p.payload);
  if (!decoded) return std::nullopt;
  return std::move(*decoded);
}

// Changes the messages of one type on their way into a rank.
template <class M, class Change>
bool change_body(parcel& p, Change change) {
  std::optional<M> body = body_of<M>(p);
  if (!body) return false;
  change(*body);
  p.instead.clear();
  runtime::encode(*body, p.instead);
  runtime::frame_header h;
  std::memcpy(&h, p.header.data(), sizeof h);
  h.body_bytes = static_cast<std::uint32_t>(p.instead.size());
  std::memcpy(p.header.data(), &h, sizeof h);
  p.replaced = true;
  return true;
}

template <class Change>
void change_stamp(parcel& p, Change change) {
  stamp s;
  if (p.on != link::channel::data || !actors::read_stamp(p.header, s)) return;
  change(s);
  std::memcpy(p.header.data(), &s, sizeof s);
}

// A receiver that counts messages instead of reading their invocation.
struct by_arrival final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_stamp(p, [&](stamp& s) {
      if (s.offset != 0) return;
      s.invocation =
          next[std::tuple(s.op, s.generation, s.source, s.tag, has(s.flags, actors::stamp_flags::rehearsal))]++;
    });
    return true;
  }
  std::map<std::tuple<std::uint64_t, std::uint64_t, rank_id, std::uint32_t, bool>, std::uint32_t> next;
};

// A rank that treats every message as one of its own job and generation.
struct any_generation final : wire_tap {
  void on_send(const parcel& p, const fate&) override {
    // A rank sends messages of its own generation.
    stamp s;
    runtime::frame_header h;
    if (p.on == link::channel::data) {
      if (actors::read_stamp(p.header, s)) latest[s.op] = s.generation;
    } else if (p.header.size() == sizeof h) {
      std::memcpy(&h, p.header.data(), sizeof h);
      if (h.type != 0) latest[h.actor & ~std::uint64_t{3}] = h.generation;
      sessions[{h.source, h.destination}] = h.session;
    }
  }
  bool on_deliver(parcel& p) override {
    change_stamp(p, [&](stamp& s) { s.generation = latest[s.op]; });
    runtime::frame_header h;
    if (p.on == link::channel::control && p.header.size() == sizeof h) {
      std::memcpy(&h, p.header.data(), sizeof h);
      if (h.type != 0) h.generation = latest[h.actor & ~std::uint64_t{3}];
      h.session = sessions[{h.source, h.destination}];
      std::memcpy(p.header.data(), &h, sizeof h);
    }
    return true;
  }
  std::map<std::uint64_t, std::uint64_t> latest;
  std::map<std::pair<rank_id, rank_id>, std::uint64_t> sessions;
};

// Remembers the first message about each key, so that ranks of an op in a later generation get that message in place of the current one.
template <class Key, class Word>
class said_before {
 public:
  /// The first message if it is of an earlier generation, otherwise null.
  const Word* find(const Key& of, std::uint64_t generation, const Word& now) {
    const auto [at, fresh] = first_.try_emplace(of, generation, now);
    const auto& [its, word] = at->second;
    return actors::judge(its, generation) == actors::generation_verdict::ended ? &word : nullptr;
  }

 private:
  std::map<Key, std::pair<std::uint64_t, Word>> first_;
};

// A worker that rejoins with the assignment of the previous generation.
struct old_assignment final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_stamp(p, [&](stamp& s) {
      if (s.next_digest == 0 || has(s.flags, actors::stamp_flags::poison) || has(s.flags, actors::stamp_flags::checked))
        return;
      if (const auto* old = before.find({s.op, p.to, s.invocation}, s.generation, s.next_digest)) s.next_digest = *old;
    });
    return true;
  }
  said_before<std::tuple<std::uint64_t, rank_id, std::uint32_t>, std::uint64_t> before;
};

// A leader that keeps using a rank's reports of trials from before that rank's restart.
struct old_rows final : wire_tap {
  bool on_deliver(parcel& p) override {
    runtime::frame_header h;
    if (p.header.size() == sizeof h) std::memcpy(&h, p.header.data(), sizeof h);
    change_body<actors::report>(p, [&](actors::report& r) {
      for (actors::wire_row& row : r.rows) {
        if (const auto* old = before.find({h.actor, p.from, row.tag, row.invocation}, h.generation, row)) row = *old;
      }
    });
    return true;
  }
  said_before<std::tuple<std::uint64_t, rank_id, std::uint32_t, std::uint64_t>, actors::wire_row> before;
};

// A leader for which a failed repetition took no time.
struct failed_is_fast final : wire_tap {
  bool on_deliver(parcel& p) override {
    if (type_of(p) == "nack") return false;
    change_body<actors::report>(p, [](actors::report& r) {
      for (actors::wire_row& row : r.rows) {
        if (row.status == 0) continue;
        row.status = 0;
        row.end_ns = row.start_ns;
      }
    });
    return true;
  }
};

// A leader that never learns that a config failed on another rank: it treats the trial as cancelled by its caller.
struct quarantine_forgotten final : wire_tap {
  bool on_deliver(parcel& p) override {
    if (type_of(p) == "nack") return false;
    change_body<actors::report>(p, [](actors::report& r) {
      for (actors::wire_row& row : r.rows) row.status = row.status == 0 ? row.status : actors::cancelled_row;
    });
    return true;
  }
};

// A leader that uses the time of the fastest participant of each repetition, not of the slowest.
struct min_for_max final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::report>(p, [](actors::report& r) {
      for (actors::wire_row& row : r.rows) row.end_ns = row.start_ns = row.previous_end_ns;
    });
    return true;
  }
};

// A participant that claims to have warmed every config that it knows of.
struct claims_all final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::warm>(p, [&](actors::warm& w) { known = w.candidates; });
    change_body<actors::warmed>(p, [&](actors::warmed& w) {
      w.ready = known;
      w.errors.clear();
    });
    return true;
  }
  std::vector<std::uint64_t> known;
};

// A receiver that ends its receive when it revokes the credit, even if the sender replies that its put has begun.
struct early_return final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::revoked>(p, [](actors::revoked& r) { r.next = 0; });
    return true;
  }
};

// A worker that runs the config of the previous message, instead of the config that belongs to the invocation.
struct previous_look_ahead final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_stamp(p, [&](stamp& s) {
      if (s.next_digest == 0 || has(s.flags, actors::stamp_flags::poison)) return;
      std::uint64_t& before = last[std::tuple(s.op, p.to)];
      const std::uint64_t now = s.next_digest;
      if (before != 0) s.next_digest = before;
      before = now;
    });
    return true;
  }
  std::map<std::tuple<std::uint64_t, rank_id>, std::uint64_t> last;
};

// A sender that stamps another config than the one it runs.
struct other_stamp final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_stamp(p, [&](stamp& s) {
      std::uint64_t& before = last[s.op];
      const std::uint64_t now = s.digest;
      if (before != 0) s.digest = before;
      before = now;
    });
    return true;
  }
  std::map<std::uint64_t, std::uint64_t> last;
};

// A participant that treats another candidate as the winner.
struct old_decision final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::decide>(p, [&](actors::decide& d) {
      if (!d.evidence.empty()) d.digest = d.evidence.back().digest;
    });
    return true;
  }
};

// Participants that run past the gate that they have promised: the leader receives an earlier promise.
struct no_gate final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::lease_reply>(p, [](actors::lease_reply& r) { r.from = 0; });
    return true;
  }
};

// A participant that changes its promise each time it is asked.
struct promise_changed final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::lease_reply>(p, [&](actors::lease_reply& r) {
      if (r.what == actors::lease_reply::kind::promise) r.from += seen[std::tuple(p.from, r.key, r.campaign)]++;
    });
    return true;
  }
  std::map<std::tuple<rank_id, std::uint32_t, std::uint64_t>, std::uint64_t> seen;
};

// Changes the log entries, and the number of a campaign, that participants receive.
template <class Change>
void change_log(parcel& p, Change change) {
  change_body<actors::lease_prepare>(p, [&](actors::lease_prepare& m) { change(m.after, m.entries, &m.campaign); });
  change_body<actors::lease_schedule>(p, [&](actors::lease_schedule& m) { change(m.after, m.entries, nullptr); });
}

// A coordinator that aborts a campaign after some participants have received its schedule.
struct abort_after_schedule final : wire_tap {
  bool on_deliver(parcel& p) override {
    if (p.to > 1) return true;
    change_log(p, [](std::uint64_t, std::vector<actors::lease_entry>& entries, const std::uint64_t*) {
      for (actors::lease_entry& e : entries) e = {};
    });
    return true;
  }
};

// Participants whose gate stays closed after its campaign was aborted, because they never receive the abort.
struct gate_not_lifted final : wire_tap {
  bool on_deliver(parcel& p) override {
    std::uint32_t key = 0;
    bool aborts = false;
    const auto look = [&](const auto& m) {
      key = m.key;
      for (const actors::lease_entry& e : m.entries) aborts = aborts || e.what == actors::lease_entry::kind::aborted;
    };
    const bool of_log = change_body<actors::lease_prepare>(p, look) || change_body<actors::lease_schedule>(p, look);
    if (aborts) deaf.insert(std::tuple(p.from, p.to, key));
    return !of_log || !deaf.contains(std::tuple(p.from, p.to, key));
  }
  std::set<std::tuple<rank_id, rank_id, std::uint32_t>> deaf;
};

// A coordinator that has lost its log, and numbers campaigns of the same generation from the beginning.
struct log_lost final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_log(p, [](std::uint64_t& after, std::vector<actors::lease_entry>& entries, std::uint64_t* campaign) {
      if (after + entries.size() < 2) return;
      if (after == 0) entries.erase(entries.begin());
      after -= after == 0 ? 0 : 1;
      if (campaign != nullptr) --*campaign;
    });
    change_body<actors::lease_reply>(p, [](actors::lease_reply& r) {
      if (r.known == 1) ++r.known;
    });
    return true;
  }
};

// A participant that acknowledges an entry before it has arrived.
struct early_acknowledgement final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::lease_reply>(p, [](actors::lease_reply& r) {
      if (r.what == actors::lease_reply::kind::promise) ++r.known;
    });
    return true;
  }
};

// A merge that accepts every config that any rank knows, and participants that claim to have warmed configs that they cannot run.
struct outside_intersection final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::offer>(
        p, [](actors::offer& o) { std::fill(o.available.begin(), o.available.end(), std::uint8_t{1}); });
    return claims.on_deliver(p);
  }
  claims_all claims;
};

// A receiver that counts the second copy of a part as another part of the same message.
struct repeats_counted final : wire_tap {
  bool on_deliver(parcel& p) override {
    if (!p.copy) return true;
    change_stamp(p, [&](stamp& s) {
      const std::uint64_t next = s.offset + p.payload_bytes;
      if (p.payload_bytes != 0 && next + p.payload_bytes <= s.total_bytes) s.offset = next;
    });
    return true;
  }
};

// A receiver that drops all parts of an invocation except the first, as repeats.
struct parts_dropped final : wire_tap {
  bool on_deliver(parcel& p) override {
    stamp s;
    return p.on != link::channel::data || !actors::read_stamp(p.header, s) || s.offset == 0 ||
           has(s.flags, actors::stamp_flags::rehearsal);
  }
};

// A sender that ignores revokes of credits.
struct no_revoke final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::revoke>(p, [&](actors::revoke& r) {
      asked[std::tuple(p.from, p.to, r.stream)] = r.number;
      r.number = 0;
    });
    change_body<actors::revoked>(p, [&](actors::revoked& r) { r.number = asked[std::tuple(p.to, p.from, r.stream)]; });
    return true;
  }
  std::map<std::tuple<rank_id, rank_id, std::uint64_t>, std::uint64_t> asked;
};

// Credits whose numbers are so high that no revoke covers them.
struct unnumbered_credits final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::credit>(p, [](actors::credit& c) { c.number += 1'000'000; });
    return true;
  }
};

// A sender that uses credits of the previous generation, except in rehearsals, which would find the fault and exclude put.
struct old_credits final : wire_tap {
  bool on_deliver(parcel& p) override {
    runtime::frame_header h;
    if (p.header.size() == sizeof h) std::memcpy(&h, p.header.data(), sizeof h);
    change_body<actors::credit>(p, [&](actors::credit& c) {
      if (c.stream >= actors::stream_id(0, true)) return;
      const auto [at, is_first] = first.try_emplace(std::tuple(h.actor, c.stream), h.generation, c);
      if (at->second.first == h.generation) return;
      c.address = at->second.second.address;
      c.key = at->second.second.key;
    });
    return true;
  }
  std::map<std::tuple<std::uint64_t, std::uint64_t>, std::pair<std::uint64_t, actors::credit>> first;
};

// A receiver that refuses data of a generation which it has not joined yet.
struct unknown_refused final : wire_tap {
  void on_send(const parcel& p, const fate&) override {
    runtime::frame_header h;
    if (p.on != link::channel::control || p.header.size() != sizeof h) return;
    std::memcpy(&h, p.header.data(), sizeof h);
    if (h.type != 0) own[std::tuple(h.actor & ~std::uint64_t{3}, p.from)] = h.generation;
  }
  bool on_deliver(parcel& p) override {
    stamp s;
    if (p.on != link::channel::data || !actors::read_stamp(p.header, s)) return true;
    const auto at = own.find(std::tuple(s.op, p.to));
    return at == own.end() || at->second == s.generation;
  }
  std::map<std::tuple<std::uint64_t, rank_id>, std::uint64_t> own;
};

// A sender whose puts are larger than the credit's capacity.
struct capacity_ignored final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::credit>(p, [](actors::credit& c) { c.capacity += 1'000'000; });
    return true;
  }
};

// A sender that does not report a failed send.
struct no_poison final : wire_tap {
  bool on_deliver(parcel& p) override { return type_of(p) != "poison"; }
};

// A receiver that reports only a few times how much it has matched.
struct matches_lost final : wire_tap {
  bool on_deliver(parcel& p) override { return type_of(p) != "matched" || ++said[p.from] <= 3; }
  std::map<rank_id, int> said;
};

// A sender for which a revoke cancels only the credit of the receive that timed out, not the credits of receives that moved up.
struct own_credit final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::credit>(
        p, [&](const actors::credit& c) { out[std::tuple(p.to, p.from, c.stream)].insert(c.number); });
    change_body<actors::revoke>(p, [&](actors::revoke& r) {
      const std::tuple its(p.to, p.from, r.stream);
      asked[its] = r.number;
      auto& numbers = out[its];
      const auto own = numbers.upper_bound(done[its]);
      if (own != numbers.end() && *own < r.number) r.number = *own;
      done[its] = asked[its];
    });
    change_body<actors::revoked>(p, [&](actors::revoked& r) { r.number = asked[std::tuple(p.from, p.to, r.stream)]; });
    return true;
  }
  using stream = std::tuple<rank_id, rank_id, std::uint64_t>;
  std::map<stream, std::set<std::uint64_t>> out;
  std::map<stream, std::uint64_t> asked;
  std::map<stream, std::uint64_t> done;  // revoked before
};

// A receiver that sends a credit while its revoke has no reply yet: the last credit counts as sent after the revoke.
struct credit_during_revoke final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::revoke>(p, [&](actors::revoke& r) {
      asked[std::tuple(p.to, p.from, r.stream)] = r.number;
      if (r.number != 0) --r.number;
    });
    change_body<actors::revoked>(p, [&](actors::revoked& r) { r.number = asked[std::tuple(p.from, p.to, r.stream)]; });
    return true;
  }
  std::map<std::tuple<rank_id, rank_id, std::uint64_t>, std::uint64_t> asked;
};

// A receiver in which a timed-out receive keeps its index, so that the message with that index reaches no receive.
struct index_kept final : wire_tap {
  bool on_deliver(parcel& p) override {
    runtime::frame_header h;
    if (p.header.size() == sizeof h) std::memcpy(&h, p.header.data(), sizeof h);
    change_body<actors::revoked>(
        p, [&](const actors::revoked& r) { kept[std::tuple(h.actor & ~std::uint64_t{3}, r.stream)].insert(r.next); });
    bool to_nobody = false;
    change_stamp(p, [&](stamp& s) {
      const auto& indices =
          kept[std::tuple(s.op, actors::stream_id(s.tag, has(s.flags, actors::stamp_flags::rehearsal)))];
      to_nobody = indices.contains(s.invocation);
      s.invocation -= static_cast<std::uint32_t>(std::distance(indices.begin(), indices.lower_bound(s.invocation)));
    });
    return !to_nobody;
  }
  std::map<std::tuple<std::uint64_t, std::uint64_t>, std::set<std::uint64_t>> kept;
};

// A receiver in which later receives do not move up: the next posted receive gets the index of the receive that timed out, so that the two
// messages after the reply reach each other's receives.
struct given_back_index final : wire_tap {
  bool on_deliver(parcel& p) override {
    runtime::frame_header h;
    if (p.header.size() == sizeof h) std::memcpy(&h, p.header.data(), sizeof h);
    change_body<actors::revoked>(p, [&](const actors::revoked& r) {
      given_back[std::tuple(h.actor & ~std::uint64_t{3}, r.stream)].insert(r.next);
    });
    change_stamp(p, [&](stamp& s) {
      const auto& indices =
          given_back[std::tuple(s.op, actors::stream_id(s.tag, has(s.flags, actors::stamp_flags::rehearsal)))];
      if (indices.contains(s.invocation)) {
        ++s.invocation;
      } else if (s.invocation != 0 && indices.contains(s.invocation - 1)) {
        --s.invocation;
      }
    });
    return true;
  }
  std::map<std::tuple<std::uint64_t, std::uint64_t>, std::set<std::uint64_t>> given_back;
};

// A sender for which a message larger than its window never fits, because it never learns that everything was matched.
struct oversize_never_fits final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::matched>(p, [](actors::matched& m) {
      if (m.what == actors::matched::kind::report && m.count != 0) --m.count;
    });
    return true;
  }
};

// A coordinator that expects quick replies. As soon as a reply is late, it gives the campaign up and begins the next one.
struct impatient final : wire_tap {
  bool on_deliver(parcel& p) override {
    if (p.to != victim) {
      // The victim's replies are about campaigns that the coordinator does not know.
      return p.from != victim || type_of(p) != "lease_reply";
    }
    change_body<actors::lease_prepare>(p, [&](actors::lease_prepare& m) {
      std::uint64_t& given_up = begun[m.key];
      m.after = 0;
      m.entries.assign(given_up, {});
      m.campaign = ++given_up;
      m.round_trip_ns = 0;
    });
    return type_of(p) != "lease_schedule";
  }
  static constexpr rank_id victim = 0;
  std::map<std::uint32_t, std::uint64_t> begun;
};

// A receiver that treats any reply as the reply to its open revoke, because replies carry no number.
struct answers_unnumbered final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::revoked>(p, [&](actors::revoked& r) { r.number = asked[std::tuple(p.to, p.from, r.stream)]; });
    return true;
  }
  void on_send(const parcel& p, const fate&) override {
    if (const auto r = body_of<actors::revoke>(p)) asked[std::tuple(p.from, p.to, r->stream)] = r->number;
  }
  std::map<std::tuple<rank_id, rank_id, std::uint64_t>, std::uint64_t> asked;
};

// A sender whose streams share one window: each report of a stream is reduced by the unmatched messages of the other streams.
struct window_of_edge final : wire_tap {
  void on_send(const parcel& p, const fate&) override {
    stamp s;
    if (p.on != link::channel::data || !actors::read_stamp(p.header, s)) return;
    if (has(s.flags, actors::stamp_flags::rehearsal)) return;
    std::uint64_t& sent = streams[{p.from, p.to, s.op}][actors::stream_id(s.tag, false)].sent;
    sent = std::max<std::uint64_t>(sent, s.invocation + 1);
  }
  bool on_deliver(parcel& p) override {
    runtime::frame_header h;
    if (p.header.size() == sizeof h) std::memcpy(&h, p.header.data(), sizeof h);
    change_body<actors::matched>(p, [&](actors::matched& m) {
      if (m.what != actors::matched::kind::report) return;
      auto& all = streams[{p.to, p.from, h.actor & ~std::uint64_t{3}}];
      all[m.stream].matched = std::max(all[m.stream].matched, m.count);
      std::uint64_t unmatched = 0;
      for (const auto& [id, its] : all) unmatched += id == m.stream ? 0 : its.sent - std::min(its.sent, its.matched);
      m.count -= std::min(m.count, unmatched);
    });
    return true;
  }
  struct progress {
    std::uint64_t sent = 0;
    std::uint64_t matched = 0;
  };
  std::map<std::tuple<rank_id, rank_id, std::uint64_t>, std::map<std::uint64_t, progress>> streams;
};

// A leader for which every trial took a microsecond: the cost of trials is lost.
struct cost_forgotten final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::report>(p, [](actors::report& r) {
      for (actors::wire_row& row : r.rows) row.end_ns = row.start_ns + 1'000;
    });
    return true;
  }
};

// Ranks that reply to replies.
struct answers_answered final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::neighbour_failure>(
        p, [](actors::neighbour_failure& f) { f.code = static_cast<std::uint8_t>(runtime::errc::peer_failed); });
    return true;
  }
};

template <class T>
std::unique_ptr<wire_tap> make() {
  return std::make_unique<T>();
}

struct entry {
  mutant_info info;
  std::unique_ptr<wire_tap> (*make)();
};

const std::vector<entry>& all() {
  static const std::vector<entry> known = {
      {{"stamp-ignored", "receivers run their default whatever the stamp says", "pair", {"S2"}}, nullptr},
      {{"no-fence", "the stamp of a put leaves before what it announces has landed", "contention", {"S8"}}, nullptr},
      {{"poison-not-fenced",
        "the poison of a put that failed leaves before what was put has landed",
        "torn_puts",
        {"S8"}},
       nullptr},
      {{"not-deregistered", "memory that a dead sender may write into is given back as it is", "late_puts", {"S8"}},
       nullptr},
      {{"lost-memory-used", "memory that a dead sender may still write into is used again", "unmapped", {"S8"}},
       nullptr},
      {{"matching-by-arrival", "receivers count messages instead of reading their number", "pair", {"S2", "S8"}},
       &make<by_arrival>},
      {{"generation-ignored", "messages of another generation are taken for our own", "strays", {"S5", "S8", "S2"}},
       &make<any_generation>},
      {{"old-assignment", "a worker rejoins with the assignment of the generation before", "rejoins", {"S2"}},
       &make<old_assignment>},
      {{"old-rows", "a leader counts what was reported of trials of the generation before", "rejoins", {"S2"}},
       &make<old_rows>},
      {{"failed-is-fast", "a failed repetition counts as one that took no time", "broken_configs", {"S6", "oracle"}},
       &make<failed_is_fast>},
      {{"quarantine-forgotten", "a config that failed at a receiver is tried again", "broken_configs", {"quarantine"}},
       &make<quarantine_forgotten>},
      {{"min-for-max", "a repetition took what its fastest participant took", "pair", {"oracle"}}, &make<min_for_max>},
      {{"claims-all", "a participant says it has warmed what it has not", "broken_configs", {"S3"}}, &make<claims_all>},
      {{"early-return", "a receive ends when its credit is revoked, though its put has begun", "late_receives", {"S8"}},
       &make<early_return>},
      {{"look-ahead-late", "workers run what belongs to the invocation before", "mixed", {"S2"}},
       &make<previous_look_ahead>},
      {{"look-ahead-not-awaited",
        "a worker that has not heard which config its invocation has runs the default",
        "bad_groups",
        {"S2"}},
       nullptr},
      {{"other-stamp", "the leader stamps what it assigned before", "pair", {"S2"}}, &make<other_stamp>},
      {{"no-gate", "participants start invocations beyond the gate that they promised", "leases", {"S2"}},
       &make<no_gate>},
      {{"promise-changed", "a participant promises another gate each time it is asked", "leases", {"S7"}},
       &make<promise_changed>},
      {{"abort-after-schedule",
        "a campaign is aborted although some participants have its schedule",
        "leases",
        {"S1", "S2"}},
       &make<abort_after_schedule>},
      {{"gate-not-lifted", "a gate stays shut when its campaign is aborted", "gates", {"L1"}}, &make<gate_not_lifted>},
      {{"log-lost", "the coordinator loses its log and continues in the same generation", "leases", {"S1", "S7"}},
       &make<log_lost>},
      {{"ack-before-append", "an entry is acknowledged before it exists", "leases", {"S7"}},
       &make<early_acknowledgement>},
      {{"outside-intersection", "candidates are all configs that any rank can run", "versions", {"S4"}},
       &make<outside_intersection>},
      {{"repeats-counted", "a part that comes twice counts as another part", "chunks", {"S8"}}, &make<repeats_counted>},
      {{"parts-dropped", "repeats are dropped per invocation, not per part", "mixed", {"L2"}}, &make<parts_dropped>},
      {{"not-revoked", "a credit stays valid when its receive has timed out", "mixed", {"S8"}}, &make<no_revoke>},
      {{"credits-outlive-generation", "a sender uses credits of an ended generation", "late_returns", {"S8", "L1"}},
       &make<old_credits>},
      {{"unknown-generation-refused",
        "data of a generation that is not joined yet is refused",
        "returns",
        {"delivery", "L2"}},
       &make<unknown_refused>},
      {{"generation-end-not-fenced",
        "memory goes back when a generation ends, and what was put in it lands later",
        "late_returns",
        {"S8"}},
       nullptr},
      {{"credits-not-numbered", "a revoke does not tell old credits from new ones", "mixed", {"S8"}},
       &make<unnumbered_credits>},
      {{"capacity-ignored", "a put is larger than the buffer of the credit", "small_receives", {"S8"}},
       &make<capacity_ignored>},
      {{"total-not-checked",
        "a message is written before its size was compared with the room",
        "small_receives",
        {"S8"}},
       nullptr},
      {{"no-poison", "the receiver is not told of a send that failed", "broken_configs", {"L2", "delivery"}},
       &make<no_poison>},
      {{"window-update-lost", "reports of matched messages are lost and not repeated", "windows", {"L2"}},
       &make<matches_lost>},
      {{"window-of-edge", "all streams of an edge share one window", "streams", {"L2"}}, &make<window_of_edge>},
      {{"own-stamp-only",
        "a stamp matches the receive of its own invocation alone: those before it time out",
        "overtaken",
        {"delivery", "L2"}},
       nullptr},
      {{"answers-not-numbered", "any answer ends a revoke, be it to an earlier one", "overtaken", {"S8"}},
       &make<answers_unnumbered>},
      {{"own-credit", "a revoke voids one credit, though later receives move up", "late_receives", {"S8"}},
       &make<own_credit>},
      {{"credit-during-revoke", "a credit is given while a revoke is unanswered", "mixed", {"S8"}},
       &make<credit_during_revoke>},
      {{"index-kept", "the index of a receive that timed out is not given back", "mixed", {"delivery", "L2"}},
       &make<index_kept>},
      {{"given-back-index", "the index of a receive that timed out goes to the next one posted", "mixed", {"S8"}},
       &make<given_back_index>},
      {{"window-ignored", "a sender runs ahead without an end", "windows", {"window"}}, nullptr},
      {{"control-window-ignored", "control messages go on without an end", "narrow", {"queues"}}, nullptr},
      {{"oversize-never-fits", "a message that is larger than the window waits for ever", "windows", {"L2"}},
       &make<oversize_never_fits>},
      {{"agreement-awaited", "a call waits until its op has agreed on candidates", "pair", {"N1"}}, nullptr},
      {{"impatient-coordinator", "a campaign is restarted each time an answer is late", "leases", {"N2"}},
       &make<impatient>},
      {{"drift-ignored", "no rank checks whether the decided config still takes as long", "drift", {"oracle"}},
       nullptr},
      {{"budget-ignored", "trials do not wait until they are earned", "budget", {"N4"}}, nullptr},
      {{"cost-forgotten", "trials go on after they have cost more than was earned", "budget", {"N4"}},
       &make<cost_forgotten>},
      {{"old-decision", "participants are told another winner than the leader runs", "pair", {"agreement"}},
       &make<old_decision>},
      {{"answers-answered",
        "ranks tell each other of a failed call without an end, because each message draws another",
        "survivors",
        {"rest"}},
       &make<answers_answered>},
  };
  return known;
}

}  // namespace

std::span<const mutant_info> mutants() {
  static const std::vector<mutant_info> infos = [] {
    std::vector<mutant_info> v;
    for (const entry& e : all()) v.push_back(e.info);
    return v;
  }();
  return infos;
}

const mutant_info* find_mutant(std::string_view name) {
  const auto at = std::find_if(mutants().begin(), mutants().end(), [&](const auto& m) { return m.name == name; });
  return at == mutants().end() ? nullptr : &*at;
}

std::unique_ptr<wire_tap> make_mutant(std::string_view name) {
  if (!name.empty() && find_mutant(name) == nullptr) {
    std::string names;
    for (const mutant_info& m : mutants()) names += (names.empty() ? "" : ", ") + std::string(m.name);
    runtime::raise({runtime::errc::bad_argument, "there is no mutant `" + std::string(name) + "`; there are " + names});
  }
  for (const entry& e : all()) {
    if (e.info.name == name && e.make != nullptr) return e.make();
  }
  return nullptr;
}

void put_mutant(std::string_view name, world_options& into) {
  if (name == "no-fence" || name == "poison-not-fenced") into.link.fence = link_model::fences::do_nothing;
  if (name == "window-ignored") into.settings.window = {.invocations = 1U << 20U, .bytes = 1U << 30U};
  if (name == "control-window-ignored") into.control_window = 1U << 20U;
  if (name == "stamp-ignored") into.settings.mutant_ignores_stamp = true;
  if (name == "own-stamp-only") into.breaks = actors::broken_rule::own_stamp_only;
  if (name == "look-ahead-not-awaited") into.breaks = actors::broken_rule::look_ahead_not_awaited;
  if (name == "drift-ignored") into.settings.plan.drift.on = false;
  if (name == "budget-ignored") into.settings.plan.budget_fraction = 1e9;
}

}  // namespace parley::simulation
