// Both ends rehearse a config on scratch memory before it may run for a message of the program: the sender sends a pattern, and the
// receiver compares the received bytes with it.
#include <parley/ops/core/call_error.hpp>
#include <parley/ops/core/scratch_guard.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

constexpr time_ns rehearsal_pause_ns = 200'000;
constexpr time_ns longest_rehearsal_ns = actors::warming_limit_ns / 4 * 3;

// True if the config's half on this rank is to blame: it threw, or sent or asked for a part that the payload does not have.
constexpr bool is_of_its_own(errc failure) noexcept {
  return failure == errc::config_failed || failure == errc::bad_argument;
}

// The pattern of a rehearsal, the same on every machine. It is made of words for speed, because the loop stands still while this rank
// makes or compares the pattern.
constexpr std::uint64_t pattern_step = 0x9e3779b97f4a7c15U;
std::uint64_t little_endian(std::uint64_t word) noexcept {
  return std::endian::native == std::endian::big ? __builtin_bswap64(word) : word;
}

void write_pattern(std::span<std::byte> to, std::uint64_t digest) noexcept {
  std::uint64_t next = digest * pattern_step;
  for (std::size_t at = 0; at < to.size(); at += sizeof next, next += pattern_step) {
    const std::uint64_t word = little_endian(next);
    std::memcpy(to.data() + at, &word, sizeof word);
  }
}

// The place of the first byte that differs from the pattern; the size if none does.
std::size_t compare_pattern(std::span<const std::byte> came, std::uint64_t digest) noexcept {
  std::uint64_t next = digest * pattern_step;
  for (std::size_t at = 0; at < came.size(); at += sizeof next, next += pattern_step) {
    const std::uint64_t word = little_endian(next);
    std::uint64_t here = 0;
    std::memcpy(&here, came.data() + at, sizeof here);
    if (here == word) continue;
    std::array<std::byte, sizeof word> right;
    std::memcpy(right.data(), &word, sizeof word);
    while (came[at] == right[at % sizeof word]) ++at;
    return at;
  }
  return came.size();
}

// Device memory is filled from a copy in host memory. The copy is freed at once, because many edges may rehearse at the same time.
task<> make_pattern(runtime::memory_space& space, std::span<std::byte> scratch, std::uint64_t digest) {
  if (&space == &runtime::host_memory()) {
    write_pattern(scratch, digest);
    co_return;
  }
  std::vector<std::byte> made(scratch.size());
  write_pattern(made, digest);
  co_await space.copy(scratch, made);
}

task<std::size_t> check_pattern(runtime::memory_space& space, std::span<const std::byte> scratch,
                                std::uint64_t digest) {
  if (&space == &runtime::host_memory()) co_return compare_pattern(scratch, digest);
  std::vector<std::byte> came(scratch.size());
  co_await space.copy(came, scratch);
  co_return compare_pattern(came, digest);
}
}  // namespace

// ---- at the sender ------------------------------------------------------------------------------------------------------

task<> edge_out::rehearse(std::uint64_t digest) {
  std::optional<actors::busy_until_end> control(std::in_place, services_, participant_.control_ns);
  std::unique_ptr<runtime::memory_space::block> block;
  actors::registered_memory registered_scratch;
  bool begun = false;
  std::exception_ptr thrown;
  try {
    if (const std::uint64_t own = participant_.variant_of(digest); own != digest) sender_.note_variant(digest, own);
    block = memory().make(rehearsal_bytes());
    const std::span<std::byte> scratch = block->bytes();
    co_await make_pattern(memory(), scratch, digest);
    control.reset();  // from here on it mostly waits
    registered_scratch = memory_for(needs::known_payload, digest, scratch);
    // A rehearsal delays no other call, so it waits for the credit or memory that it needs. If that does not come, the rehearsal fails on
    // both sides. Each pause is an eighth of the time so far, so the wait is at most an eighth too long. Checking every 0.2 ms for
    // seconds would slow the program down.
    const time_ns began = services_.ex.now();
    const time_ns until = services_.ex.deadline_in(actors::warming_limit_ns / 2);
    for (time_ns now = began; !sender_.ready_to_rehearse(digest, scratch) && now < until; now = services_.ex.now()) {
      const time_ns pause = std::max(rehearsal_pause_ns, (now - began) / 8);
      auto slept = co_await runtime::sleep_until(std::min(until, services_.ex.deadline_in(pause)));
      if (!slept) break;
    }
    begun = true;
    // Ends before the receiver gives up, so that the receiver learns which side failed.
    const time_ns over = std::min(deadline({}), services_.ex.deadline_in(longest_rehearsal_ns));
    co_await run(sender_.begin_rehearsal(digest, scratch.size(), scratch.data()), scratch, over);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) co_return;
  if (!begun) give_up_rehearsal(digest);
  if (is_of_its_own(runtime::describe(thrown).code())) participant_.failed_here.push_back(digest);
  std::rethrow_exception(thrown);
}

// The rehearsal still uses up its number, because the receiver counts it.
void edge_out::give_up_rehearsal(std::uint64_t digest) {
  const actors::outgoing inv = sender_.begin_rehearsal(digest, rehearsal_bytes());
  part_sender out(services_.net, options_.peer, inv.mark, inv.access);
  out.fail(errc::config_failed);
  sender_.end(inv, out);
}

// ---- at the receiver ----------------------------------------------------------------------------------------------------

// The error of a rehearsal that failed at its sender, or that did not arrive at all.
error edge_in::seen_at_receiver(const part_receiver& in, errc code) const {
  const std::string sender = "rank " + std::to_string(options_.peer) + ", which sends, ";
  if (in.sender_failure() != errc::none)
    return {code, sender + "ended its rehearsal with " + std::string(runtime::name(in.sender_failure()))};
  if (code == errc::timeout) return {code, sender + "has not begun its rehearsal in time"};
  return code;
}

// Receives the sender's next rehearsal and returns its number. A rehearsal with a number below `due` is an earlier one, and not of this
// config.
task<std::uint64_t> edge_in::rehearse_next(std::uint64_t due, std::uint64_t wanted, std::span<std::byte> scratch) {
  part_receiver in(receiver_, 0, scratch.size(), part_receiver::kind::rehearsal, nullptr, scratch.data());
  // An eighth longer than the sender's timeout, so that the sender's error comes first.
  const time_ns span = options_.timeout_ns;
  auto seen = co_await in.match(deadline_after(span < runtime::never / 2 ? span + span / 8 : span));
  if (!seen) {
    if (in.matched() && in.invocation() < due) co_return in.invocation();
    runtime::raise(seen_at_receiver(in, seen.code()));
  }
  const std::uint64_t digest = seen->digest;
  std::exception_ptr thrown;
  try {
    runtime::scope& here = co_await runtime::this_scope;
    const paired_config* const found = find(digest);
    const runtime::implementation half(here, title(), found == nullptr ? std::string_view() : found->id());
    runtime::scope running(here, {.inside = &half});
    running.begin(run(in, digest, scratch));
    co_await running.join();
  } catch (...) {
    thrown = std::current_exception();
    in.fail(failure_of_config(thrown));
  }
  const errc outcome = co_await in.settle();
  record(in, digest, outcome);
  if (in.invocation() < due) co_return in.invocation();
  if (digest != wanted) runtime::raise({errc::config_mismatch, "the sender rehearses another config"});
  const bool askew = !in.mismatch().empty();
  if ((thrown || askew) && is_of_its_own(outcome) && in.sender_failure() == errc::none)
    participant_.failed_here.push_back(digest);
  if (askew) {
    const paired_config* const own = find(digest);
    const bool stands_in =
        own != nullptr && own->digest() != digest;  // the sender runs another config of its wire class
    runtime::raise({errc::config_failed,
                    std::string(in.mismatch()) +
                        (stands_in ? "; this rank runs " + own->id() + " instead, because both have the wire class `" +
                                         own->identity().wire_class +
                                         "`; all configs of a wire class must cut payloads in the same way"
                                   : "")});
  }
  if (thrown) runtime::raise(runtime::describe(thrown));
  if (outcome != errc::none) runtime::raise(seen_at_receiver(in, outcome));
  co_return in.invocation();
}

task<> edge_in::rehearse(std::uint64_t digest) {
  // Both ends number the rehearsals that the leader requests. Messages or the poison of an earlier rehearsal may still arrive here, because
  // this end had no memory for that rehearsal, or had stopped waiting for it.
  const std::uint64_t due = rehearsals_++;
  const std::shared_ptr<runtime::memory_space::block> block = memory().make(rehearsal_bytes() + guard_bytes);
  const scratch_guard guard(memory(), block->bytes());
  const std::span<std::byte> scratch = guard.buffer();
  co_await guard.set();
  if (has_memory()) say_memory();
  auto registered_scratch = memory_for(needs::credit, digest, scratch);
  registered_scratch.keep(block);
  std::uint64_t came = 0;
  do {
    came = co_await rehearse_next(due, digest, scratch);
  } while (came < due);
  const actors::busy_until_end control(services_, participant_.control_ns);
  try {
    co_await guard.check();
    const std::size_t wrong = co_await check_pattern(memory(), scratch, digest);
    if (wrong != scratch.size())
      runtime::raise({errc::config_failed, "the rehearsal brought wrong data at byte " + std::to_string(wrong)});
  } catch (...) {
    participant_.failed_here.push_back(digest);
    throw;
  }
  if (registered_scratch && find(digest)->what_it_needs() == needs::credit) receiver_.want_credits();
}

}  // namespace parley::ops
