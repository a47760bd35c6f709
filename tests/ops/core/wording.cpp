// The whole sentences of errors that ops of several kinds share. Other tests check structured facts, so that a sentence can be improved
// here and in the code alone.
#include <parley/tests/support/cases/halo_grid.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/wording.hpp>

#include <parley/halo.hpp>
#include <parley/pipeline.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns second = 1'000'000'000;

// ---- declarations and decisions ---------------------------------------------------------------------------------------

std::string of_declaration(const std::function<void(transfer_options&)>& change) {
  world w(2);
  transfer_options op = pair_of({direct(), chunked(16_KiB, 2)});
  change(op);
  return sentence_of(thrown_by([&] { static_cast<void>(transfer(w[1], op)); }));
}
std::string of_second_declaration() {
  world w(2);
  const transfer first(w[1], pair_of({direct()}));
  return sentence_of(thrown_by([&] { static_cast<void>(transfer(w[1], pair_of({direct()}))); }));
}
std::string of_undecided(rank_id on) {
  world w(2);
  const transfer out(w[0], pair_of({direct()}));
  const transfer in(w[1], pair_of({direct()}));
  return sentence_of(thrown_by([&] {
    const auto wait = [](transfer t) -> task<> {
      static_cast<void>(co_await t.decided(1'000, {.timeout = std::chrono::nanoseconds(second)}));
    };
    run(w.clock, wait(on == 0 ? out : in));
  }));
}

/// A config whose card is present only if `here`.
struct absent final : paired_config {
  explicit absent(bool here) : paired_config({.name = "absent", .wire_class = "absent"}), here_(here) {}
  task<> send(part_sender& o, std::span<const std::byte> d) const override { co_await o.send(0, d); }
  task<> receive(part_receiver& i, std::span<std::byte> d) const override { co_await i.receive(0, d); }
  result<> available() const override {
    if (here_) return {};
    return error{errc::unavailable, "no such card here"};
  }

 private:
  bool here_;
};
/// The reason for a decision about a size for which only the default may run.
std::string of_default(const std::vector<config_ptr>& of_0, const std::vector<config_ptr>& of_1) {
  world w(2);
  transfer out(w[0], pair_of(of_0));
  transfer in(w[1], pair_of(of_1));
  move_each(w, out, in, {1000, 1000});
  pass(w, second);
  const decision told = out.decision(1000);
  return told.decided && told.why == in.decision(1000).why ? told.why : "it is not decided alike on both ranks";
}
/// The reason for no decision about a size that was never called: on rank 1 before the ranks have met, on rank 0 afterwards.
std::string of_no_decision(rank_id on) {
  world w(2);
  const std::vector<config_ptr> configs{direct(), chunked(16_KiB, 8)};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  if (on == 0) {
    move_each(w, out, in, {1000, 1000});
    pass(w, second);
  }
  return (on == 0 ? out : in).decision(8).why;
}
/// The error of rank `on` where both ends send, or both receive.
std::string of_same_roles(rank_id on, bool send) {
  world w(2);
  std::vector<std::byte> data(10'000'000);
  std::vector<result<>> outcomes(2);
  scope calls(w.clock);
  for (rank_id r = 0; r < 2; ++r) {
    transfer_options op = pair_of({direct()});
    op.role = nullptr;
    op.edges = {send ? std::pair(r, 1 - r) : std::pair(1 - r, r)};
    const auto call = [](transfer t, bool sends, rank_id other, std::span<std::byte> all, result<>* into) -> task<> {
      if (sends) {
        *into = co_await attempt(t.send(all, {.to = other}));
      } else {
        const auto got = co_await attempt(t.receive(all, {.from = other}));
        *into = got ? result<>() : result<>(got.reason());
      }
    };
    calls.spawn(call(transfer(w[r], op), send, 1 - r, data, &outcomes[r]));
  }
  run_until(w.clock, [&] { return calls.running() == 0; });
  return sentence_of(outcomes[on]);
}

/// The error for roles that form no edges.
std::string of_roles(rank_id ranks, std::function<role(rank_id)> who) {
  transfer_options op = pair_of({direct()});
  op.role = std::move(who);
  return sentence_of(pair_up(op, ranks));
}
std::string of_edges(rank_id ranks, std::vector<std::pair<rank_id, rank_id>> edges) {
  transfer_options op = pair_of({direct()});
  op.role = nullptr;
  op.edges = std::move(edges);
  return sentence_of(pair_up(op, ranks));
}

// ---- neighbours -------------------------------------------------------------------------------------------------------

/// The error of rank `on` where rank 1's block differs from rank 0's, side by side in one row.
std::string of_halo(rank_id on, std::size_t cells_of_1, const std::function<void(halo_options&)>& change_on_1 = {}) {
  world w(2);
  std::vector<std::vector<double>> fields{std::vector<double>(6 * 6), std::vector<double>(6 * (cells_of_1 + 2))};
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 2; ++r) {
    halo_options op{.name = "ghosts", .ranks = {2, 1}};
    op.timeout = std::chrono::nanoseconds(second);
    if (r == 1 && change_on_1) change_on_1(op);
    plans.push_back(halo(w[r], op).plan({grid_field(fields[r], {4, r == 0 ? 4 : cells_of_1})}));
  }
  return sentence_of(exchange_all(w, plans)[on]);
}
std::string of_other_neighbour(rank_id on) {
  world w(3);
  std::vector<std::vector<double>> fields(3, std::vector<double>(8));
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 3; ++r) {
    halo_options op{.name = "ghosts"};
    op.timeout = std::chrono::nanoseconds(second);
    op.neighbours = {r == 0 ? rank_id{1} : 3 - r};
    plans.push_back(halo(w[r], op).plan({index_field(fields[r], {{0, 1}}, {{4, 5}})}));
  }
  return sentence_of(exchange_all(w, plans)[on]);
}

struct failing_stage final : pipeline_stage {
  void forward(std::uint64_t, std::span<std::byte>) override {
    if (fails) throw std::runtime_error("no such card");
  }
  bool fails = false;
};
/// The error of rank `on` in the run in which rank 0 throws, or in the next one.
std::string of_pipeline(rank_id on, bool next) {
  world w(2);
  std::vector<failing_stage> of(2);
  of[0].fails = true;
  std::vector<pipeline> pipes;
  for (rank_id r = 0; r < 2; ++r)
    pipes.push_back(pipeline(w[r], {.name = "layers", .timeout = std::chrono::nanoseconds(second)}));
  const std::vector<std::uint64_t> bytes(3, 100);
  const auto run_one = [](pipeline p, const std::vector<std::uint64_t>* sizes, failing_stage* s,
                          result<>* into) -> task<> {
    std::exception_ptr thrown;
    try {
      co_await p.run(*sizes, *s);
    } catch (...) {
      thrown = std::current_exception();
    }
    *into = thrown ? result<>(describe(thrown)) : result<>();
  };
  std::vector<result<>> outcomes(2, result<>(errc::pending));
  for (int i = 0; i < (next ? 2 : 1); ++i) {
    scope calls(w.clock);
    for (rank_id r = 0; r < 2; ++r) calls.spawn(run_one(pipes[r], &bytes, &of[r], &outcomes[r]));
    run_until(w.clock, [&] { return calls.running() == 0; });
    of[0].fails = false;
  }
  return sentence_of(outcomes[on]);
}

}  // namespace

TEST_CASE("errors that several kinds of op share have exactly the expected sentences") {
  check_sentences({
      {of_declaration([](auto& op) { op.configs.clear(); }),
       "bad_argument: op activations has an empty catalogue; list at least its default config"},
      {of_declaration([](auto& op) { op.configs = {direct(), direct()}; }),
       "bad_argument: activations 0->1: the catalogue lists `direct` twice, at 0 and 1; give one of them another name "
       "or other parameters"},
      {of_declaration([](auto& op) { op.role = [](rank_id) { return role::sender; }; }),
       "role_conflict: op activations: in a world of 2 the senders are 0, 1 and the receivers none; each sender needs "
       "one receiver of its own, so change the role function or list the edges"},
      {of_declaration([](auto& op) { op.can_run = [](rank_id) { return std::vector<bool>{false, true}; }; }),
       "bad_argument: activations 0->1: the capability function of rank 1 says that it cannot run direct, which is "
       "the default and must run on every rank; list a config first that all ranks can run"},
      {of_declaration([](auto& op) { op.can_run = [](rank_id) { return std::vector<bool>{true}; }; }),
       "bad_argument: activations 0->1: the capability function of rank 1 returned 1 answers, but the op has 2 "
       "configs; return one answer per config, in their order"},
      {of_declaration([](auto& op) { op.can_run = [](rank_id) { return std::vector<bool>(3, true); }; }),
       "bad_argument: activations 0->1: the capability function of rank 1 returned 3 answers, but the op has 2 "
       "configs; return one answer per config, in their order"},
      {of_declaration([](auto& op) { op.configs = {direct(), nullptr}; }),
       "bad_argument: op activations: config 1 of its catalogue is null"},
      {of_roles(3, [](rank_id r) { return r < 2 ? role::sender : role::receiver; }),
       "role_conflict: op activations: in a world of 3 the senders are 0, 1 and the receivers 2; each sender needs one "
       "receiver of its own, so change the role function or list the edges"},
      {of_roles(4, [](rank_id r) { return r % 3 == 0   ? role::sender
                                          : r % 3 == 1 ? role::receiver
                                                       : role::idle; }),
       "role_conflict: op activations: in a world of 4 the senders are 0, 3 and the receivers 1; each sender needs one "
       "receiver of its own, so change the role function or list the edges"},
      {of_roles(2, [](rank_id r) { return r == 0 ? role::leader : role::receiver; }),
       "role_conflict: op activations: in a world of 2 the senders are none and the receivers 1; \"leader\", which "
       "rank "
       "0 is, is neither; each sender needs one receiver of its own, so change the role function or list the edges"},
      {of_roles(1, [](rank_id r) { return r == 0 ? role::sender : role::receiver; }),
       "role_conflict: op activations: in a world of 1 the senders are 0 and the receivers none; each sender needs one "
       "receiver of its own, so change the role function or list the edges; this rank was started alone: give -n "
       "2 to `parley run` or `parley tune`, or --sim 2 to the program"},
      {of_roles(2, [](rank_id) { return role::idle; }),
       "role_conflict: op activations: in a world of 2 the senders are none and the receivers none; each sender needs "
       "one receiver of its own, so change the role function or list the edges"},
      {of_roles(2, nullptr), "bad_argument: op activations has neither a role function nor edges"},
      {of_edges(2, {{1, 1}}), "bad_argument: op activations: edge 1->1 is a self-send; a transfer needs two ranks"},
      {of_edges(4, {{0, 4}}),
       "bad_argument: op activations: edge 0->4 names a rank outside the world of 4; ranks count from 0"},
      {of_edges(3, {{0, 1}, {1, 2}, {0, 1}}), "role_conflict: op activations: edge 0->1 is listed twice"},
      {of_same_roles(0, true),
       "role_conflict: activations 0->1: rank 0 declares that rank 0 sends to rank 1, rank 1 that rank 1 sends to rank "
       "0; give the op the same roles on all its ranks; invocation 0 was in flight"},
      {of_same_roles(1, true),
       "role_conflict: activations 1->0: rank 1 declares that rank 1 sends to rank 0, rank 0 that rank 0 sends to rank "
       "1; give the op the same roles on all its ranks; invocation 0 was in flight"},
      {of_same_roles(0, false), "role_conflict: activations 1->0: rank 0 declares that rank 1 sends to rank 0, rank 1 "
                                "that rank 0 sends to rank 1; give the op the same roles on all its ranks; no message "
                                "matched a receive of up to 10000000 bytes from rank 1 (tag 0, invocation 0)"},
      {of_same_roles(1, false), "role_conflict: activations 0->1: rank 1 declares that rank 0 sends to rank 1, rank 0 "
                                "that rank 1 sends to rank 0; give the op the same roles on all its ranks; no message "
                                "matched a receive of up to 10000000 bytes from rank 0 (tag 0, invocation 0)"},
      {of_default({direct(), std::make_shared<absent>(true)}, {direct(), std::make_shared<absent>(false)}),
       "no config beyond the default is available on every rank, so the default stays: rank 0 (sender) has direct, "
       "absent; rank 1 (receiver) has direct; rank 1 cannot run absent: unavailable: no such card here"},
      {of_default({direct(), std::make_shared<absent>(false)}, {direct(), std::make_shared<absent>(true)}),
       "no config beyond the default is available on every rank, so the default stays: rank 0 (sender) has direct; "
       "rank 1 (receiver) has direct, absent; rank 0 cannot run absent: unavailable: no such card here"},
      {of_default({direct()}, {direct()}), "no rank lists a config other than the default"},
      {of_default({direct(), std::make_shared<absent>(true)}, {direct()}),
       "no config beyond the default is available on every rank, so the default stays: rank 0 (sender) has direct, "
       "absent; rank 1 (receiver) has direct"},
      {of_no_decision(0), "no call of this size has been made yet"},
      {of_no_decision(1),
       "not all ranks of the op have declared it yet, or their declarations have not arrived; rank 0 leads"},
      {of_second_declaration(),
       "bad_argument: activations 0->1 is declared twice on rank 1; give each op a name of its own"},
      {of_undecided(0), "timeout: activations 0->1, on rank 0 (sender): there is no decision for 1KiB: no rank lists a "
                        "config other than the default"},
      {of_undecided(1), "timeout: activations 0->1, on rank 1 (receiver): there is no decision for 1KiB: no rank lists "
                        "a config other than the default"},
      {of_halo(0, 5),
       "bad_argument: op ghosts, rank 0: rank 1 sent 40 bytes where 32 were expected; give neighbours fields that fit "
       "together"},
      {of_halo(1, 5),
       "bad_argument: op ghosts, rank 1: rank 0 sent 32 bytes where 40 were expected; give neighbours fields that fit "
       "together"},
      {of_halo(1, 4, [](auto& op) { op.periodic = {true, false}; }),
       "declaration_mismatch: op ghosts: rank 0 declares periodic no no, and rank 1 periodic yes no; declare the op "
       "alike on all its ranks; no message matched a receive of up to 32 bytes from rank 0 (tag 36, invocation 0)"},
      {of_other_neighbour(0), "declaration_mismatch: op ghosts: rank 0 has rank 1 as a neighbour, but rank 1's "
                              "neighbours are rank 2; list each as a neighbour of the other; no message matched a "
                              "receive of up to 32 bytes from rank 1 (tag 32, invocation 0)"},
      {of_pipeline(0, false), "exception: no such card"},
      {of_pipeline(1, false),
       "closed: op layers: a call has failed on rank 0 (exception: no such card), and its messages may still arrive, "
       "so this op can make no further calls; declare it again under another name"},
      {of_pipeline(0, true),
       "closed: op layers: a call has failed on rank 0 (exception: no such card), and its messages may still arrive, "
       "so this op can make no further calls; declare it again under another name"},
      {of_pipeline(1, true),
       "closed: op layers: a call has failed on rank 0 (exception: no such card), and its messages may still arrive, "
       "so this op can make no further calls; declare it again under another name"},
  });
}
