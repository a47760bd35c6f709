// The whole sentences of a job about calls that do not end, ranks that leave, variables and results files. Tests elsewhere compare facts,
// so a better sentence is changed only here and in the code.
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/wording.hpp>

#include <parley/ops/job/rank_environment.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/transports/files/file_storage.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <array>
#include <list>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

// ---- calls that do not end --------------------------------------------------------------------------------------------

transfer_options both_ways(const std::string& name = "acts") {
  transfer_options op;
  op.name = name;
  op.edges = {{0, 1}, {1, 0}};
  op.timeout = 8s;
  return op;
}

/// Two ranks, and the outcomes of their calls.
struct two_ranks : world {
  explicit two_ranks(rank_settings s = {}) : world(2, std::move(s)), calls(clock) {}
  result<>& receive(transfer t, rank_id from, std::uint32_t tag, std::size_t bytes) {
    calls.spawn(keep_receive(std::move(t), from, tag, data.emplace_back(bytes), outcomes.emplace_back()));
    return outcomes.back();
  }
  result<>& send(transfer t, rank_id to, std::uint32_t tag, std::size_t bytes) {
    calls.spawn(keep_send(std::move(t), to, tag, data.emplace_back(bytes), outcomes.emplace_back()));
    return outcomes.back();
  }
  void end() {
    run_until(clock, [this] { return calls.running() == 0; });
  }
  static task<> keep_receive(transfer t, rank_id from, std::uint32_t tag, std::span<std::byte> into,
                             result<>& outcome) {
    const auto got = co_await attempt(t.receive(into, {.from = from, .tag = tag}));
    outcome = got ? result<>() : result<>(got.reason());
  }
  static task<> keep_send(transfer t, rank_id to, std::uint32_t tag, std::span<const std::byte> data,
                          result<>& outcome) {
    outcome = co_await attempt(t.send(data, {.to = to, .tag = tag}));
  }
  std::list<std::vector<std::byte>> data;
  std::list<result<>> outcomes;
  scope calls;
};

/// Rank 0 sends a message with a tag under which rank 1 does not receive. Then each rank waits for the other.
std::string of_crossed_calls(rank_id on) {
  two_ranks w;
  const std::array ends{transfer(w[0], both_ways()), transfer(w[1], both_ways())};
  w.send(ends[0], 1, 3, 8);
  pass(w, 1'000'000);
  const auto& of_0 = w.receive(ends[0], 1, 0, 16);
  const auto& of_1 = w.receive(ends[1], 0, 7, 24);
  pass(w, 2'000'000'000);
  w.receive(ends[0], 1, 4, 8);
  w.end();
  return sentence_of(on == 0 ? of_0 : of_1);
}
std::string of_another_name(rank_id on) {
  two_ranks w;
  const auto& of_0 = w.receive(transfer(w[0], both_ways("act")), 1, 0, 8);
  const auto& of_1 = w.receive(transfer(w[1], both_ways("acts")), 0, 0, 8);
  w.end();
  return sentence_of(on == 0 ? of_0 : of_1);
}
std::string of_another_order() {
  two_ranks w;
  std::array<std::vector<collective>, 2> groups;
  for (const char* const name : {"one", "two"}) {
    auto op = led_by(0, {star()});
    op.name = name;
    op.timeout = 4s;
    for (rank_id r = 0; r < 2; ++r) groups[r].emplace_back(w[r], op);
  }
  std::vector<float> x(4), y(4);
  std::array<result<>, 2> outcomes;
  w.calls.spawn(reduce_one(groups[0][0], x, outcomes[0]));
  w.calls.spawn(reduce_one(groups[1][1], y, outcomes[1]));
  w.end();
  return sentence_of(outcomes[0]);
}
std::string of_silent_peer() {
  two_ranks w;
  const transfer end(w[0], both_ways());
  w.ranks[1].reset();
  const auto& outcome = w.receive(end, 1, 0, 8);
  w.end();
  return sentence_of(outcome);
}
/// The call's timeout is too short for an answer of its peer.
std::string of_short_call() {
  two_ranks w;
  auto op = both_ways();
  op.timeout = 10ms;
  const transfer end(w[0], op);
  static_cast<void>(transfer(w[1], op));
  const auto& outcome = w.receive(end, 1, 0, 8);
  w.end();
  return sentence_of(outcome);
}

// ---- ranks that leave -------------------------------------------------------------------------------------------------

std::string of_receive_whose_sender(departure how) {
  two_ranks w;
  const auto& outcome = w.receive(transfer(w[0], both_ways()), 1, 0, 8);
  pass(w, 1'000'000);
  w[0].on_lost(1, "it says why", how);
  w.end();
  return sentence_of(outcome);
}
/// Rank 1 receives three messages and leaves two.
std::string of_untaken(bool when_rank_1_has_answered) {
  world w(2);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  call_outcomes all = move_each(w, out, in, {100, 200, 300});
  run(w.clock, send_each(out, {10, 20}, all));
  if (when_rank_1_has_answered) {
    static_cast<void>(w[0].unfinished());
    pass(w, 100'000'000);
  }
  return w[0].unfinished().undelivered.at(0);
}
std::string of_refused_declaration() {
  world w(2);
  auto op = pair_of({direct()});
  transfer out(w[0], op);
  op.dtype = "bf16";
  transfer in(w[1], op);
  pass(w, 1'000'000'000);
  return w[0].unfinished().rejected.at(0);
}

// ---- processes and their variables ------------------------------------------------------------------------------------

std::string of_fork() {
  std::string text = sentence_of(thrown_by([] { refuse_fork("send of acts 0->1 was called"); }));
  const std::string process = std::to_string(::getpid());
  return text.replace(text.find(process), process.size(), "77");
}

std::string of_variable(const std::string& name, const std::string& value) {
  return sentence_of(thrown_by([&] {
    static_cast<void>(heed_environment(
        {}, [&](const std::string& of) { return of == name ? std::optional<std::string>(value) : std::nullopt; }));
  }));
}

// ---- results files ----------------------------------------------------------------------------------------------------

using tuning::validator;

tuning::results_file file_with(const std::string& text) { return tuning::parse_results(text).value().file; }
const std::string header = "Validator,A,1\n";

/// The warning about a results file of rank 0 that is not valid for this job.
std::string of_file(const std::string& text, std::vector<validator> here) {
  memory_storage disk;
  disk.files["r0.csv"] = text;
  const results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = std::move(here)});
  return store.warnings().at(0);
}
std::string of_device() {
  transports::file_storage disk;
  return results_store(&disk, {.path = "/dev/zero", .ordinal = 0, .validators = {{"A", "1"}}}).warnings().at(0);
}
std::string of_locked_common_file() {
  memory_storage disk;
  disk.files["r.csv"] = header + "op,a,gone,1\n";
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = {{"A", "1"}}});
  const auto superseded = store.remembered().entries();
  disk.locked.insert("r.csv");
  static_cast<void>(store.add(file_with(header + "op,a,new,2\n"), superseded));
  return store.warnings().at(0);
}
std::string of_locked_file() {
  memory_storage disk;
  disk.files["r0.csv"] = header + "op,a,x,1\n";
  disk.locked.insert("r0.csv");
  results_store store(&disk, {.path = "r.csv", .ordinal = 0, .validators = {{"A", "1"}}, .unique = 0xabc});
  static_cast<void>(store.add(file_with(header + "op,b,x,1\n"), {}));
  return store.warnings().at(0);
}
/// Refuses every path.
struct full_storage final : runtime::storage {
  static error refused(const std::string& path) { return {errc::io, path + ": No space left on device"}; }
  result<std::string> read(const std::string& path) override {
    return error{errc::unavailable, path + " is not there"};
  }
  result<> replace(const std::string& path, std::string_view) override { return refused(path); }
  result<> update(const std::string& path, const edit&) override { return refused(path); }
  result<> append(const std::string& path, std::string_view) override { return refused(path); }
};
std::string of_full_disk() {
  full_storage disk;
  results_store store(&disk, {.path = "d/r.csv", .ordinal = 3, .validators = {{"A", "1"}}, .unique = 1});
  return sentence_of(store.add(file_with(header + "op,b,x,1\n"), {}));
}

}  // namespace

TEST_CASE("messages about calls that do not end and ranks that leave have exactly these sentences") {
  check_sentences({
      {of_crossed_calls(0),
       "timeout: acts 1->0, on rank 0 (receiver): no message matched a receive of up to 16 bytes from rank 1 (tag 0, "
       "invocation 0); that rank is late; rank 1 has sent 0 messages of tag 0; it waits in: receive of "
       "acts 0->1, call 0, tag 7, 24 bytes: waits for rank 0 (a message) since 7.5 s; rank 0 also waits in: receive of "
       "acts 1->0, call 0, tag 4, 8 bytes: waits for rank 1 (a message) since 6.0 s"},
      {of_crossed_calls(1),
       "timeout: acts 0->1, on rank 1 (receiver): no message matched a receive of up to 24 bytes from rank 0 (tag 7, "
       "invocation 0); that rank is late; rank 0 has sent 0 messages of tag 7, and 1 of tag 3; it waits "
       "in: receive of acts 1->0, call 0, tag 0, 16 bytes: waits for rank 1 (a message) since 7.5 s; and in: receive "
       "of acts 1->0, call 0, tag 4, 8 bytes: waits for rank 1 (a message) since 5.5 s"},
      {of_another_name(0),
       "timeout: act 1->0, on rank 0 (receiver): no message matched a receive of up to 8 bytes from rank 1 (tag 0, "
       "invocation 0); that rank is late; rank 1 has not declared this op, but has declared acts 0->1, acts 1->0, "
       "which this rank has not declared; it waits in: receive of acts 0->1, "
       "call 0, tag 0, 8 bytes: waits for rank 0 (a message) since 7.5 s"},
      {of_another_name(1),
       "timeout: acts 0->1, on rank 1 (receiver): no message matched a receive of up to 8 bytes from rank 0 (tag 0, "
       "invocation 0); that rank is late; rank 0 has not declared this op, but has declared act 0->1, act 1->0, which "
       "this rank has not declared; it waits in: receive of act 1->0, "
       "call 0, tag 0, 8 bytes: waits for rank 1 (a message) since 7.5 s"},
      {of_another_order(),
       "timeout: one 0->1, invocation 0, on rank 0 (leader): rank 1 did not join the call in time; see what holds it "
       "up, or allow more time; rank 1 has made 0 calls of it; it waits in: work of two "
       "0->1, call 0, 16 bytes: waits for rank 0 (parts) since 3.5 s; so rank 0 and rank 1 make "
       "these calls in different orders, or one of them leaves a call out; make the same calls in the same order on "
       "all ranks"},
      {of_silent_peer(),
       "timeout: acts 1->0, on rank 0 (receiver): no message matched a receive of up to 8 bytes from rank 1 (tag 0, "
       "invocation 0); that rank is late; rank 1 has not said in 500 ms what it is doing"},
      {of_short_call(), "timeout: acts 1->0, on rank 0 (receiver): no message matched a receive of up to 8 bytes from "
                        "rank 1 (tag 0, invocation 0); that rank is late, or its messages have another tag"},
      {of_receive_whose_sender(departure::died),
       "peer_failed: acts 1->0, on rank 0: rank 1 is gone: it says why; restart the job to continue; no message "
       "matched a receive of up to 8 bytes from rank 1 (tag 0, invocation 0)"},
      {of_receive_whose_sender(departure::vanished),
       "peer_failed: acts 1->0, on rank 0: rank 1 is gone: it says why; restart the job to continue; no message "
       "matched a receive of up to 8 bytes from rank 1 (tag 0, invocation 0)"},
      {of_receive_whose_sender(departure::failed),
       "peer_failed: acts 1->0, on rank 0: rank 1 ended with it says why; no message matched a receive of up to 8 "
       "bytes from rank 1 (tag 0, invocation 0)"},
      {of_receive_whose_sender(departure::cut_off),
       "peer_failed: acts 1->0, on rank 0: rank 1 can no longer be reached: it says why; to keep the connection, "
       "cancel a call and await it before you destroy it; no message matched a receive of up to 8 bytes from rank 1 "
       "(tag 0, invocation 0)"},
      {of_receive_whose_sender(departure::returned),
       "peer_failed: acts 1->0, on rank 0: rank 1 has returned from rank_main; this receive has no sender; no message "
       "matched a receive of up to 8 bytes from rank 1 (tag 0, invocation 0)"},
      {of_untaken(false), "activations 0->1, on rank 0: rank 1 has not taken 5 of the 5 messages that were sent to it; "
                          "let it receive each message before it returns"},
      {of_untaken(true), "activations 0->1, on rank 0: rank 1 has not taken 2 of the 5 messages that were sent to it; "
                         "let it receive each message before it returns"},
      {of_refused_declaration(),
       "the declaration was refused: declaration_mismatch: activations 0->1: rank 1 declares dtype bf16, the leader "
       "rank 0 declares dtype bytes; declare the op alike on all its ranks"},
  });
}

TEST_CASE("messages about processes, variables and results files have exactly these sentences") {
  check_sentences({
      {of_fork(), "bad_argument: send of acts 0->1 was called in process 77, which fork() made of a rank's process; "
                  "only the process that joined the job has a part in it, so the child must call exec or end"},
      {of_variable("PARLEY_TUNABLEOP_TUNING", "maybe"),
       "malformed: PARLEY_TUNABLEOP_TUNING=maybe: must be 0 or 1; correct it or unset it"},
      {of_variable("PARLEY_TUNING", "maybe"), "malformed: PARLEY_TUNING=maybe: must be 0 or 1; correct it or unset it"},
      {unknown_variables({"PARLEY_TUNNIG"}).at(0),
       "parley knows no environment variable PARLEY_TUNNIG; the most similar known variable is PARLEY_TUNING"},
      {unknown_variables({"PARLEY_COLOUR_SCHEME"}).at(0),
       "parley knows no environment variable PARLEY_COLOUR_SCHEME; docs/settings.md lists the known variables"},
      {of_file("Validator,PARLEY_PROCESSOR,test\nop,a,x,1\n", {{"PARLEY_PROCESSOR", "another"}}),
       "r0.csv: validator PARLEY_PROCESSOR is test in the file and another here; the file is ignored and kept"},
      {of_file("Validator,PARLEY_WORLD,4\nacts/0>1,1MiB,x,1\n", {{"PARLEY_WORLD", "2"}}),
       "r0.csv: validator PARLEY_WORLD is 4 in the file and 2 here; the file is ignored and kept"},
      {of_file("Validator,PARLEY_WORLD,2\ngemm,n=1,fast,1\nacts/0>1,1MiB,x,1\n", {{"PARLEY_WORLD", "4"}}),
       "r0.csv: validator PARLEY_WORLD is 2 in the file and 4 here; the file is kept and ignored, except for 1 results "
       "of kernels"},
      {of_device(), "/dev/zero: not a plain file; results are neither read nor written"},
      {of_locked_common_file(),
       "r.csv keeps 1 results that differ from the decisions of this run: r.csv.lock is held by another process"},
      {of_locked_file(),
       "r0.csv.lock is held by another process; the results are in r0.unmerged-0000000000000abc.csv: once the problem "
       "is fixed, run `parley results merge -o r0.csv r0.unmerged-0000000000000abc.csv`"},
      {of_full_disk(), "io: the results could not be written anywhere: d/r3.csv: No space left on device; "
                       "d/r3.unmerged-0000000000000001.csv: "
                       "No space left on device; make room or name another file in PARLEY_RESULTS"},
  });
}

TEST_CASE("the error for a mask that resembles a capability too much has exactly this sentence") {
  struct misspelt {
    std::string mask;
    std::string name;
    std::string meant;
  };
  for (const auto& [mask, name, meant] :
       {misspelt{"nvlnk", "nvlnk", "nvlink"}, misspelt{"NVLink", "NVLink", "nvlink"},
        misspelt{"1:peer-access", "peer-access", "peer_access"}, misspelt{"peeracces", "peeracces", "peer_access"},
        misspelt{"ncll", "ncll", "nccl"}, misspelt{"GPU", "GPU", "gpu"}, misspelt{"2:ipcc", "ipcc", "ipc"},
        misspelt{"ipc,uxc,ucxx", "ucxx", "ucx"}, misspelt{"sm90", "sm90", "sm_N"}, misspelt{"SM_90", "SM_90", "sm_N"},
        misspelt{"0:sm_90a", "sm_90a", "sm_N"}, misspelt{"sm_", "sm_", "sm_N"},
        misspelt{"cuda12.4", "cuda12.4", "cuda_N"}, misspelt{"nccl-2", "nccl-2", "nccl_N"},
        misspelt{"nccl_2.28.9.1", "nccl_2.28.9.1", "nccl_N"}, misspelt{"memory_40GiB", "memory_40GiB", "memory_N"}}) {
    CHECK(of_variable("PARLEY_MASK", mask) ==
          "malformed: PARLEY_MASK=" + mask + ": \"" + name + "\" is not a capability, and too similar to " + meant +
              " to be a config's own name; a mask names gpu, peer_access, nvlink, ipc, nccl, ucx, sm_90, cuda_12.4, "
              "nccl_2.28, memory_40 and the like, or a config; correct it or unset it");
  }
}
