#include <parley/actors/leases/lease.hpp>

#include <parley/error.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace parley::actors;

namespace {

constexpr std::uint64_t c0 = 10, trial_a = 11, trial_b = 12, winner = 13;
constexpr std::uint64_t generation = 0x7770000;
using kind = lease_answer::kind;
using heard = lease_writer::heard;

lease_letter prepare_of(std::uint64_t campaign, std::uint64_t after = 0, std::vector<lease_entry> entries = {}) {
  return {lease_letter::kind::prepare, generation, campaign, after, std::move(entries)};
}
lease_letter schedule_of(std::uint64_t after, std::vector<lease_entry> entries) {
  return {lease_letter::kind::schedule, generation, 0, after, std::move(entries)};
}
lease_entry decision(std::uint64_t from, std::uint64_t digest) {
  return {lease_entry::kind::scheduled, from, {}, digest};
}

/// Returns the name of the invariant that `act` breaks.
template <class F>
std::string broken_by(F&& act) {
  std::string name;
  parley::runtime::breach_watch watch([&](const parley::runtime::breach& b) {
    CHECK(b.where.op == 42);
    CHECK(b.where.rank == 3);
    CHECK_FALSE(b.culprit);
    name = b.name;
  });
  try {
    act();
  } catch (const parley::runtime::failure& f) {
    CHECK(f.code() == parley::runtime::errc::invariant_broken);
    return name;
  }
  return {};
}

}  // namespace

TEST_CASE("an entry assigns its segments in order and then its tail, and later entries override earlier ones") {
  lease_log log(c0);
  log.append({lease_entry::kind::scheduled, 5, {{trial_a, 2}, {trial_b, 1}}, c0});
  log.append({});  // an aborted entry: it assigns nothing
  log.append(decision(20, winner));
  const auto runs = [&](std::uint64_t i) { return log.assigned(i).digest; };
  CHECK(runs(4) == c0);
  CHECK(runs(5) == trial_a);
  CHECK(runs(6) == trial_a);
  CHECK(log.assigned(6).of == lease::part::trial);
  CHECK(runs(7) == trial_b);
  CHECK(log.assigned(7).of == lease::part::last_trial);
  CHECK(runs(8) == c0);
  CHECK(log.assigned(8).of == lease::part::steady);
  CHECK(runs(19) == c0);
  CHECK(runs(20) == winner);
  CHECK(log.tail() == winner);
  log.append(decision(6, c0));  // no participant had run invocation 6 yet; the promises guarantee that
  CHECK(runs(6) == c0);
  CHECK(runs(5) == trial_a);
}

TEST_CASE("a reader keeps its promise at the gate, repeats it unchanged, and is released by the campaign's entry") {
  lease_reader h(generation, c0);
  h.start();
  const auto promise = h.on_prepare(prepare_of(1), 2);
  CHECK(promise.what == kind::promise);
  CHECK(promise.from == 3);
  h.start();
  CHECK(h.on_prepare(prepare_of(1), 2) == promise);  // S7: the same promise, though `next` has advanced
  CHECK(h.repeated() == promise);
  h.start();
  CHECK_FALSE(h.may_start());
  CHECK(h.on_schedule(schedule_of(0, {decision(4, winner)})).known == 1);
  CHECK(h.may_start());
  CHECK(h.start().digest == c0);
  CHECK(h.start().digest == winner);
  CHECK(h.on_prepare(prepare_of(1), 2).what == kind::known);  // a late copy of the first letter
  CHECK(h.may_start());
}

TEST_CASE("an abort lifts the gate and changes nothing else") {
  lease_reader h(generation, c0);
  h.on_prepare(prepare_of(1), 0);
  CHECK_FALSE(h.may_start());
  h.on_schedule(schedule_of(0, {lease_entry{}}));
  CHECK(h.start().digest == c0);
}

TEST_CASE("a prepare letter repairs an earlier schedule letter that was lost") {
  lease_reader h(generation, c0);
  h.on_prepare(prepare_of(1), 0);
  const auto a = h.on_prepare(prepare_of(2, 0, {decision(0, winner)}), 5);
  CHECK(a.what == kind::promise);
  CHECK(a.campaign == 2);
  CHECK(a.from == 5);
  CHECK(h.start().digest == winner);
}

TEST_CASE("letters with a gap, of another generation, or that contradict known entries change nothing") {
  lease_reader h(generation, c0);
  CHECK(h.on_prepare(prepare_of(3), 0).what == kind::refuse);
  CHECK(h.may_start());
  CHECK(h.on_schedule(schedule_of(2, {decision(0, winner)})).known == 0);
  auto foreign = schedule_of(0, {decision(0, winner)});
  foreign.generation = 42;
  CHECK(h.on_schedule(foreign).what == kind::none);
  foreign.generation = generation_after(generation);
  CHECK(h.on_schedule(foreign).what == kind::new_generation);
  foreign.generation = generation - 1;
  CHECK(h.on_schedule(foreign).what == kind::none);
  h.on_schedule(schedule_of(0, {decision(0, winner)}));
  CHECK(h.on_schedule(schedule_of(0, {decision(0, trial_a), decision(0, trial_b)})).what == kind::contradiction);  // S1
  CHECK(h.on_prepare(prepare_of(2, 0, {decision(0, trial_a)}), 0).what == kind::contradiction);
  CHECK(h.log().size() == 1);
  CHECK(h.start().digest == winner);
}

TEST_CASE(
    "the writer schedules from the largest promise and sends each reader the entries that it has not acknowledged") {
  lease_writer w(generation, c0, 2);
  CHECK(w.letter_to(0).what == lease_letter::kind::nothing);
  w.prepare();
  CHECK(w.letter_to(1).campaign == 1);
  CHECK(w.on_answer(0, {kind::promise, generation, 1, 7, 0}) == heard::noted);
  CHECK(w.letter_to(0).what == lease_letter::kind::nothing);
  CHECK(w.on_answer(1, {kind::promise, generation, 1, 9, 0}) == heard::complete);
  CHECK(w.schedule({{trial_a, 3}}, c0) == 9);
  CHECK(w.letter_to(0).entries.size() == 1);
  CHECK(w.on_answer(0, {kind::known, generation, 0, 0, 1}) == heard::noted);
  CHECK(w.letter_to(0).what == lease_letter::kind::nothing);
  w.prepare();
  const auto late = w.letter_to(1);
  CHECK(late.campaign == 2);
  CHECK(late.entries.size() == 1);
  CHECK(w.letter_to(0).entries.empty());
  w.abort();
  CHECK(w.letter_to(0).entries.size() == 1);
  CHECK(w.letter_to(1).entries.size() == 2);
}

TEST_CASE("the writer recognizes answers that cannot be true") {
  lease_writer w(generation, c0, 2);
  w.prepare();
  w.on_answer(0, {kind::promise, generation, 1, 7, 0});
  CHECK(w.on_answer(0, {kind::promise, generation, 1, 7, 0}) == heard::noted);
  CHECK(w.on_answer(0, {kind::promise, generation, 1, 8, 0}) == heard::broken);  // S7
  CHECK(w.on_answer(1, {kind::known, generation, 0, 0, 5}) == heard::broken);    // the writer never wrote 5 entries
  CHECK(w.on_answer(1, {kind::promise, generation + 1, 1, 3, 0}) == heard::noted);
  CHECK(w.on_answer(1, {kind::promise, generation, 4, 3, 0}) == heard::noted);
  CHECK_FALSE(w.all_promised());
  CHECK(w.on_answer(1, {kind::refuse, generation, 1, 0, 0}) == heard::refused);
}

TEST_CASE(
    "in every build, starting at a gate or preparing, scheduling or aborting out of turn breaks a named invariant") {
  struct careless_holder : lease_reader {
    using lease_reader::lease_reader;
    void forget_the_log() { log_ = lease_log(c0); }
  };
  careless_holder h(generation, c0, {42, 3});
  h.on_prepare(prepare_of(1), 0);
  CHECK(broken_by([&] { h.start(); }) == "S2");
  CHECK(h.next() == 0);  // no invocation has started
  h.on_prepare(prepare_of(2, 0, {lease_entry{}}), 0);
  h.forget_the_log();
  CHECK(broken_by([&] { h.on_prepare(prepare_of(1), 5); }) == "S7");

  lease_writer w(generation, c0, 2, {42, 3});
  CHECK(broken_by([&] { w.abort(); }) == "S1");
  CHECK(broken_by([&] { w.schedule({}, c0); }) == "S1");
  w.prepare();
  CHECK(broken_by([&] { w.prepare(); }) == "S1");
  w.on_answer(0, {kind::promise, generation, 1, 7, 0});
  CHECK(broken_by([&] { w.schedule({}, winner); }) == "S1");
  w.on_answer(1, {kind::promise, generation, 1, 7, 0});
  CHECK(broken_by([&] { w.schedule({}, winner); }).empty());
  CHECK(broken_by([&] { w.abort(); }) == "S1");
}
