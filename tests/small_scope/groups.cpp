// Explores a group whose leader stamps which config runs some invocations later, in every order of delivery.
#include <parley/tests/small_scope/held_world.hpp>

#include <parley/actors/group/group_leader.hpp>
#include <parley/actors/group/group_worker.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::uint64_t c0 = 100;
constexpr std::uint64_t c1 = 101;

struct group_setup {
  rank_id ranks = 2;
  std::uint64_t depth = 1;
  std::uint64_t calls = 3;
  bounds allowed{};
  std::uint64_t waits_for = depth;  // a worker waits for the stamp of this many invocations before
  bool ignores_stamps = false;
};

op_declaration declared(const group_setup& s) {
  std::vector<op_participant> all{{0, "leader"}};
  for (rank_id r = 1; r < s.ranks; ++r) all.push_back({r, "worker"});
  auto op = declare_group("group", std::move(all), s.depth, "");
  op.default_config = "c0";
  op.default_digest = c0;
  return op;
}

/// Workers contribute their rank and the leader returns the sum. At some point the leader decides on another config.
class group_world final : public held_world {
 public:
  explicit group_world(const group_setup& setup)
      : held_world(setup.ranks, setup.allowed), setup_(setup), op_(declared(setup)),
        assigned_(c0, "c0", "", {0}, tuning_policy::off, {}), ran_(ranks), ended_(ranks) {
    ends_.push_back(std::make_unique<group_leader>(sites[0]->shared, op_, 5, assigned_, setup_.depth,
                                                   back_pressure::contributions));
    for (rank_id r = 1; r < ranks; ++r) {
      auto worker = std::make_unique<group_worker>(sites[r]->shared, op_, 5, setup_.waits_for);
      if (setup_.ignores_stamps) worker->ignore_stamps();
      ends_.push_back(std::move(worker));
    }
    for (auto& s : sites) programs_.push_back(std::make_unique<scope>(s->clock));
  }

  // A rank has at most `depth` calls in flight, plus one that waits.
  bool may_call(rank_id r) const {
    const std::uint64_t next = ends_[r]->next_invocation();
    return next < setup_.calls && next <= ended_[r] + setup_.depth;
  }
  std::vector<event> steps() override {
    std::vector<event> all;
    for (rank_id r = 0; r < ranks; ++r) {
      if (may_call(r)) all.push_back({make_call, r, 0, make_call});
    }
    if (!assigned_.opened()) all.push_back({decide, 0, 0, decide});
    return all;
  }
  void step(const event& e) override {
    if (e.id == decide) return assigned_.open({c0, c1}, {"c0", "c1"}, {{"1B", "c1", 1.0}}, 0);
    programs_[e.where]->spawn(e.where == 0 ? lead(*this) : work(*this, e.where));
  }
  std::string name_of_step(const event& e) override {
    return e.id == decide ? "the leader decides" : "rank " + std::to_string(e.where) + " makes a call";
  }
  static task<> lead(group_world& w) {
    group_invocation inv(*w.ends_[0], 1, never);
    auto digest = co_await inv.begin();
    w.ran_[0][inv.index()] = digest ? *digest : 0;
    std::vector<std::byte> heard(w.ranks);
    for (rank_id r = 1; r < w.ranks; ++r) inv.receive(r, 0, std::span(heard).subspan(r, 1));
    auto all_heard = co_await inv.settle();
    for (rank_id r = 1; r < w.ranks; ++r)
      heard[0] = std::byte(std::to_integer<unsigned>(heard[0]) + std::to_integer<unsigned>(heard[r]));
    for (rank_id r = 1; r < w.ranks; ++r) inv.send(r, 0, std::span(heard).first(1));
    all_heard = co_await inv.settle();
    w.note_end(inv, 0, heard[0]);
  }
  static task<> work(group_world& w, rank_id self) {
    group_invocation inv(*w.ends_[self], 1, never);
    auto digest = co_await inv.begin();
    w.ran_[self][inv.index()] = digest ? *digest : 0;
    std::byte mine{static_cast<unsigned char>(self)};
    inv.send(0, 0, std::span(&mine, 1));
    auto sent = co_await inv.settle();
    inv.receive(0, 0, std::span(&mine, 1));
    sent = co_await inv.settle();
    w.note_end(inv, self, mine);
  }
  void note_end(group_invocation& inv, rank_id self, std::byte sum) {
    const std::string what = "invocation " + std::to_string(inv.index()) + " on rank " + std::to_string(self);
    if (inv.fault().why != errc::none) breaks("L2: " + what + " fails");
    if (std::to_integer<unsigned>(sum) != ranks * (ranks - 1) / 2) breaks("S8: " + what + " has another sum");
    ends_[self]->end(inv);
    ++ended_[self];
  }

  bool go_on() override {
    bool moved = false;
    for (rank_id r = 0; r < ranks; ++r) {
      if (!may_call(r)) continue;
      step({0, r, 0, make_call});
      moved = true;
    }
    return moved;
  }
  bool over() override {
    return std::all_of(ended_.begin(), ended_.end(), [&](std::uint64_t n) { return n == setup_.calls; });
  }
  std::string unfinished() override { return "L2: a call never ends"; }
  void judge() override {}
  void look() override {
    for (const auto& [invocation, digest] : ran_[0]) {
      for (rank_id r = 1; r < ranks; ++r) {
        const auto at = ran_[r].find(invocation);
        if (at != ran_[r].end() && at->second != digest)
          breaks("S2: invocation " + std::to_string(invocation) + " runs as " + std::to_string(digest) + " and as " +
                 std::to_string(at->second));
      }
    }
  }
  std::string outcome() const override {
    std::string text;
    for (const auto& [invocation, digest] : ran_[0]) text += std::to_string(digest - c0);
    return text;
  }

 private:
  enum : std::uint32_t { make_call = 1, decide };
  group_setup setup_;
  op_declaration op_;
  assignment assigned_;
  std::vector<std::unique_ptr<rooted_group>> ends_;
  std::vector<std::map<std::uint64_t, std::uint64_t>> ran_;  // by rank: the config that each invocation ran
  std::vector<std::uint64_t> ended_;
  std::vector<std::unique_ptr<scope>> programs_;
};

explorer::maker making(const group_setup& s) {
  return [s] { return std::make_unique<group_world>(s); };
}

/// `predicted`: the outcomes of protocol_model.py for a leader that changes its config once.
void check_safe(const std::string& name, const group_setup& s, const std::set<std::string>& predicted) {
  tests::check_safe(name, making(s), predicted);
}
void check_broken(const std::string& name, const group_setup& s, const std::string& invariant) {
  tests::check_broken(name, making(s), invariant);
}

}  // namespace

TEST_CASE(
    "members of a group run each invocation alike, with the config that their leader stamped some invocations before") {
  check_safe("ahead by one", {.depth = 1, .calls = 4}, {"0000", "0001", "0011", "0111"});
  check_safe("ahead by two", {.depth = 2, .calls = 3}, {"000", "001"});
  if (deep()) check_safe("ahead by two, four calls", {.depth = 2, .calls = 4}, {"0000", "0001", "0011"});
  check_safe("ahead by one, repeated", {.depth = 1, .calls = 3, .allowed = {.repetitions = 1}}, {"000", "001", "011"});
  check_safe("ahead by one, two workers", {.ranks = 3, .depth = 1, .calls = 2}, {"00", "01"});
}

TEST_CASE("the search finds every planted flaw of a group, and names the broken invariant") {
  check_broken("a stamp that is not waited for", {.waits_for = 2}, "S2");
  check_broken("stamps ignored", {.ignores_stamps = true}, "S2");
}
