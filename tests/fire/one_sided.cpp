#include <parley/tests/fire/one_sided.hpp>

#include <parley/tests/fire/ranks.hpp>
#include <parley/tests/support/cases/pattern.hpp>

#include <parley/actors/edge/credit_messages.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/config.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transfer.hpp>

#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
#include <cstring>

using namespace std::chrono_literals;
using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;

namespace fire {
namespace {

// ---- what is handed to UCX --------------------------------------------------------------------------------------------

enum class passing : std::uint8_t { nothing, put, fence, fence_answer, get, got, offer };

// The encoding in transports/ucx/carried_memory.cpp and lent_payloads.cpp.
constexpr std::uint16_t lent = 3;
constexpr std::size_t lent_for_at = 40;
passing carried(std::uint16_t kind) {
  constexpr std::array kinds{passing::nothing, passing::put,   passing::get,
                             passing::got,     passing::fence, passing::fence_answer};
  return kind < kinds.size() ? kinds[kind] : passing::nothing;
}

template <class Value>
Value at(std::span<const std::byte> bytes, std::size_t offset) {
  Value value{};
  if (bytes.size() >= offset + sizeof value) std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

passing what_passes(unsigned id, std::span<const std::byte> header, std::span<const std::byte> payload) {
  const auto on = static_cast<link::channel>(id / 2);
  if (on == link::channel::transfers) return carried(at<std::uint16_t>(header, 0));
  if (on == link::channel::loans && at<std::uint16_t>(header, 0) == lent &&
      at<std::uint64_t>(header, lent_for_at) == static_cast<std::uint64_t>(link::channel::transfers))
    return carried(at<std::uint16_t>(payload, 0));
  actors::stamp s;
  if (on == link::channel::data && actors::read_stamp(header, s) && has(s.flags, actors::stamp_flags::to_be_got))
    return passing::offer;
  return passing::nothing;
}

// Flags of flight records.
constexpr unsigned timed = 1;
constexpr unsigned rehearsal = 4;

class one_sided_steps {
 public:
  one_sided_steps(rank& self, std::uint64_t digest, std::uint64_t pieces, std::span<const std::byte> payload)
      : self_(self), digest_(digest), pieces_(pieces), payload_(payload) {}

  void hands_over(passing what) {
    if (!armed_) return;
    if (what == passing::put && count_ == 0) come_to("holds_credit");
    if (what == passing::fence) come_to("written");
    if (what == passing::fence_answer) come_to("landed");
    if (what == passing::offer) come_to("offers");
    if (what == passing::get && count_ == 0) come_to("has_offer");
  }
  void handed_over(passing what) {
    if (!armed_) return;
    const bool piece = what == passing::put || what == passing::get || what == passing::got;
    count_ = piece ? count_ + 1 : 0;
    if (what == passing::put && count_ == pieces_) come_to("writes");
    if (what == passing::fence) come_to("fenced");
    if (what == passing::offer) come_to("offered");
    if (what == passing::get && count_ == pieces_) come_to("reads");
    if (what == passing::got && count_ == pieces_) come_to("is_read");
  }
  /// Called on every turn of the loop.
  bool reached(const std::string& step) {
    const auto& sent = self_.mail().sent_by_type();
    const auto ran = [this](const auto& it) {
      constexpr std::uint64_t latest = 64;
      return self_.flight().find_latest(it, latest) != nullptr;
    };
    if (!armed_) {
      armed_ = ran([](const flight_record& r) { return is_transfer(r.what) && (r.flags & timed) != 0; });
      credits_ = sent[actors::credit::message_type];
      told_ = sent[actors::taken::message_type];
      return false;
    }
    if (step == "sent" || step == "received")
      return ran([this](const flight_record& r) { return r.digest == digest_ && (r.flags & rehearsal) == 0; });
    if (step == "gave_credit") return sent[actors::credit::message_type] > credits_;
    if (step == "told") return sent[actors::taken::message_type] > told_;
    return step == "is_written" && payload_.front() != fresh && payload_.back() == fresh;
  }
  /// Fills the payload's buffer until the payload arrives.
  static constexpr std::byte fresh{0xEE};

 private:
  rank& self_;
  std::uint64_t digest_;
  std::uint64_t pieces_;
  std::span<const std::byte> payload_;
  bool armed_ = false;
  std::uint64_t count_ = 0;
  std::uint64_t credits_ = 0;
  std::uint64_t told_ = 0;
};

one_sided_steps*& steps() {
  static one_sided_steps* now = nullptr;
  return now;
}

// ---- what the ranks do ------------------------------------------------------------------------------------------------

constexpr rank_id sender = 1;
constexpr rank_id receiver = 2;
constexpr std::size_t beside = 4096;
constexpr std::byte given_back{0xDD};
constexpr auto searched_again_after = 1s;

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
}

struct endless_stream {
  rank& self;
  transfer t;
  std::vector<std::byte> memory;
  std::span<std::byte> payload;
  std::uint64_t number = 0;

  void check(bool came) const {
    const std::span<const std::byte> all(memory);
    const bool untouched =
        all_are(all.first(beside), one_sided_steps::fresh) && all_are(all.last(beside), one_sided_steps::fresh);
    if (!untouched) say("memory beside payload " + std::to_string(number) + " was written");
    const auto sent = parley::tests::pattern(payload.size(), number);
    if (came && !std::equal(payload.begin(), payload.end(), sent.begin()))
      say("payload " + std::to_string(number) + " came, and is not what was sent");
  }
};

/// Runs until the sender's input ends; its last message then has one byte. A receive is usually posted before its message is sent.
task<result<>> send_or_receive(endless_stream& s) {
  constexpr time_ns pause_ns = 100'000;
  auto searched = std::chrono::steady_clock::now();
  for (;; ++s.number) {
    say_when_decided(s.self);
    if (s.self.id() == sender) {
      const bool last = input_has_ended();
      const auto next = parley::tests::pattern(s.payload.size(), s.number);
      std::copy(next.begin(), next.end(), s.payload.begin());
      auto slept = co_await sleep_until(s.self.where().deadline_in(pause_ns));
      if (!slept) co_return slept;
      auto sent = co_await attempt(s.t.send(s.payload.first(last ? 1 : s.payload.size()), {.to = receiver}));
      s.check(false);
      if (last || !sent) co_return sent;
      // On a slow machine credits may arrive too late for every trial that contains the step. A new search gives further trials.
      if (std::chrono::steady_clock::now() - searched > searched_again_after) {
        s.t.retune(s.payload.size(), "for its steps");
        searched = std::chrono::steady_clock::now();
      }
    } else {
      std::fill(s.payload.begin(), s.payload.end(), one_sided_steps::fresh);
      auto got = co_await attempt(s.t.receive(s.payload, {.from = sender}));
      s.check(got && *got == s.payload.size());
      if (!got) co_return got.reason();
      if (*got == 1) co_return result<>{};
    }
  }
}

task<> stream_one_sided(endless_stream& s) {
  const actors::registered_memory registered = s.t.registered(s.memory);
  auto ended = co_await send_or_receive(s);
  if (!ended) {
    say("it ended: " + ended.reason().what());
    if (registered.lost()) say("its memory may still be written");
    std::fill(s.memory.begin(), s.memory.end(), given_back);
    while (!input_has_ended()) {
      auto slept = co_await sleep_until(s.self.where().deadline_in(5'000'000));
      if (!slept) break;
    }
    say(all_are(s.memory, given_back) ? "nothing was written afterwards" : "memory was written afterwards");
  }
  if (!ended) raise(ended.reason());
  say("fine on rank " + std::to_string(s.self.id()));
}

void move(job& here, const config_ptr& config, std::size_t bytes, std::uint64_t pieces) {
  rank& self = here.self();
  transfer_options op;
  op.name = "activations";
  op.edges = {{sender, receiver}};
  op.configs = {direct(), config};
  transfer t(self, op);
  if (self.id() != sender && self.id() != receiver) return run(here.loop(), rest_until_input_ends(self));
  endless_stream s{self, t, std::vector<std::byte>(beside + bytes + beside, one_sided_steps::fresh), {}};
  s.payload = std::span(s.memory).subspan(beside, bytes);
  one_sided_steps watch(self, config->digest(), pieces, s.payload);
  steps() = &watch;
  own_steps() = [&](const std::string& step) { return watch.reached(step); };
  run(here.loop(), stream_one_sided(s));
  own_steps() = nullptr;
  steps() = nullptr;
}

constexpr std::size_t in_pieces = 200'000;
constexpr std::size_t lent_bytes = 1'000'000;
constexpr std::size_t large_bytes = 6'000'000;  // too large for a loan

}  // namespace

void puts(job& here) { move(here, put(16_KiB, 2), in_pieces, 3); }
void lent_puts(job& here) { move(here, put(), lent_bytes, 1); }
void large_puts(job& here) { move(here, put(), large_bytes, 1); }
void gets(job& here) { move(here, get(16_KiB, 2), in_pieces, 3); }
void lent_gets(job& here) { move(here, get(), lent_bytes, 1); }

}  // namespace fire

// This program's function takes precedence; it calls the one of UCX.
extern "C" ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void* header, std::size_t header_length,
                                            const void* buffer, std::size_t count, const ucp_request_param_t* param) {
  static const auto send = reinterpret_cast<decltype(&ucp_am_send_nbx)>(::dlsym(RTLD_NEXT, "ucp_am_send_nbx"));
  auto* const steps = fire::steps();
  if (steps == nullptr) return send(ep, id, header, header_length, buffer, count, param);
  const auto what = fire::what_passes(id, {static_cast<const std::byte*>(header), header_length},
                                      {static_cast<const std::byte*>(buffer), count});
  steps->hands_over(what);
  ucs_status_ptr_t sent = send(ep, id, header, header_length, buffer, count, param);
  steps->handed_over(what);
  return sent;
}
