#include <parley/actors/credit_messages.hpp>
#include <parley/actors/messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/frame.hpp>
#include <parley/simulation/mutants.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace parley::simulation {

using actors::stamp;
using runtime::link;

namespace {

// Changes the messages of one type on their way into a rank.
template <class M, class Change>
bool change_body(parcel& p, Change change) {
  runtime::frame_header h;
  if (p.on != link::channel::control || p.header.size() != sizeof h) return false;
  std::memcpy(&h, p.header.data(), sizeof h);
  if (h.type != M::message_type || p.payload.size() != p.payload_bytes) return false;
  auto decoded = runtime::decode<M>(p.payload);
  if (!decoded) return false;
  change(*decoded);
  p.instead.clear();
  runtime::encode(*decoded, p.instead);
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

// A receiver that counts what comes instead of reading which invocation it is of.
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

// A rank for which all messages are of the generation that it is in.
struct any_generation final : wire_tap {
  void on_send(const parcel& p, const fate&) override {
    // Whoever speaks does so in its own generation.
    stamp s;
    runtime::frame_header h;
    if (p.on == link::channel::data) {
      if (actors::read_stamp(p.header, s)) latest[s.op] = s.generation;
    } else if (p.header.size() == sizeof h) {
      std::memcpy(&h, p.header.data(), sizeof h);
      if (h.type != 0) latest[h.actor & ~std::uint64_t{3}] = h.generation;
    }
  }
  bool on_deliver(parcel& p) override {
    change_stamp(p, [&](stamp& s) { s.generation = latest[s.op]; });
    runtime::frame_header h;
    if (p.on == link::channel::control && p.header.size() == sizeof h) {
      std::memcpy(&h, p.header.data(), sizeof h);
      if (h.type != 0) h.generation = latest[h.actor & ~std::uint64_t{3}];
      std::memcpy(p.header.data(), &h, sizeof h);
    }
    return true;
  }
  std::map<std::uint64_t, std::uint64_t> latest;
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

// A leader that never learns that a config failed elsewhere: it takes the trial for one that a caller gave up.
struct quarantine_forgotten final : wire_tap {
  bool on_deliver(parcel& p) override {
    if (type_of(p) == "nack") return false;
    change_body<actors::report>(p, [](actors::report& r) {
      for (actors::wire_row& row : r.rows) row.status = row.status == 0 ? row.status : actors::cancelled_row;
    });
    return true;
  }
};

// A leader that takes the fastest participant of each repetition for all of them.
struct min_for_max final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::report>(p, [](actors::report& r) {
      for (actors::wire_row& row : r.rows) row.end_ns = row.start_ns = row.previous_end_ns;
    });
    return true;
  }
};

// A participant that says it can run whatever it knows of, and has warmed it.
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

// A receiver that ends its receive when it revokes, whatever the sender says has begun.
struct early_return final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::revoked>(p, [](actors::revoked& r) { r.next = 0; });
    return true;
  }
};

// A worker that runs what it learned last instead of what belongs to the invocation.
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

// A participant that takes another candidate for the winner.
struct old_decision final : wire_tap {
  bool on_deliver(parcel& p) override {
    change_body<actors::decide>(p, [&](actors::decide& d) {
      if (!d.evidence.empty()) d.digest = d.evidence.back().digest;
    });
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
      {{"no-fence", "the stamp of a put leaves before what it announces has landed", "mixed", {"S8"}}, nullptr},
      {{"matching-by-arrival", "receivers count messages instead of reading their number", "pair", {"S2", "S8"}},
       &make<by_arrival>},
      {{"generation-ignored", "messages of another generation are taken for our own", "strays", {"S5", "S8", "S2"}},
       &make<any_generation>},
      {{"failed-is-fast", "a failed repetition counts as one that took no time", "broken_configs", {"S6", "oracle"}},
       &make<failed_is_fast>},
      {{"quarantine-forgotten", "a config that failed at a receiver is tried again", "broken_configs", {"quarantine"}},
       &make<quarantine_forgotten>},
      {{"min-for-max", "a repetition took what its fastest participant took", "pair", {"oracle"}}, &make<min_for_max>},
      {{"claims-all", "a participant says it has warmed what it has not", "broken_configs", {"S3", "errors"}},
       &make<claims_all>},
      {{"early-return", "a receive ends when its credit is revoked, though its put has begun", "mixed", {"S8"}},
       &make<early_return>},
      {{"look-ahead-late", "workers run what belongs to the invocation before", "mixed", {"S2"}},
       &make<previous_look_ahead>},
      {{"other-stamp", "the leader stamps what it assigned before", "pair", {"S2"}}, &make<other_stamp>},
      {{"old-decision", "participants are told another winner than the leader runs", "pair", {"agreement"}},
       &make<old_decision>},
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
  for (const entry& e : all()) {
    if (e.info.name == name && e.make != nullptr) return e.make();
  }
  return nullptr;
}

}  // namespace parley::simulation
