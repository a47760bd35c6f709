// The receiving end of an edge: a call from its stamp to its end. Error texts and rehearsals are in other files.
#include <parley/ops/edges/edge_in.hpp>

#include <parley/ops/core/call_error.hpp>
#include <parley/tuning/payload_check.hpp>

#include <exception>
#include <utility>

namespace parley::ops {

using actors::stamp_flags;
using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

namespace {

// Limits the time of a config. A matched receive waits for its data without limit. Once all data is here, or no more will arrive, the
// config must end within about `span_ns`; otherwise it is cancelled.
struct patience final : runtime::timer {
  patience(runtime::executor& e, const part_receiver& i, runtime::scope& s, time_ns for_ns) noexcept
      : timer(&on_late), ex(e), in(i), config(s), span_ns(for_ns) {
    look_later();
  }
  void look_later() noexcept {
    if (const time_ns at = ex.deadline_in(span_ns); at != runtime::never) ex.arm(*this, at);
  }
  static void on_late(timer& self) noexcept {
    auto& mine = static_cast<patience&>(self);
    const bool over = mine.in.failed() != errc::none || (mine.in.all_here() && mine.in.in_flight() == 0);
    if (over) mine.config.cancel(errc::timeout);
    mine.look_later();
  }
  runtime::executor& ex;
  const part_receiver& in;
  runtime::scope& config;
  time_ns span_ns;
};

}  // namespace

edge_in::edge_in(actors::services& s, const edge_options& o)
    : edge_end(s, o, o.peer, s.net.rank(), "receiver"),
      receiver_(s, participant_.declaration, participant_.generation) {
  if (options_.memory != nullptr) receiver_.expect_slow_fetches();
  if (one_sided()) {
    receiver_.allow_one_sided(options_.memory);
    receiver_.on_ended([this](errc why) {
      const bool takes_us_for_dead = why == errc::peer_failed || why == errc::fenced;
      // This rank does not know of that restart yet, so there is no new generation to rejoin: the code is `peer_failed`.
      const bool restarted = why == errc::peer_restarted;
      fail({takes_us_for_dead ? errc::fenced
            : restarted       ? errc::peer_failed
                              : why,
            about(),
            "rank " + std::to_string(options_.peer) + " has ended this generation of the op" +
                (takes_us_for_dead ? ": it considers this rank dead"
                 : restarted       ? ": it says that one of the op's ranks has restarted"
                                   : ", with " + std::string(runtime::name(why)))});
    });
  }
  if (options_.restart_group != nullptr) receiver_.say_no_end();
  receiver_.on_late_soon(services_.asked_before(options_.timeout_ns), [this](std::uint32_t tag) { ask_peer(tag); });
  receiver_.on_overflow([this] { refuse_overflow(); });
  receiver_.on_too_many_tags([this] {
    reject({errc::bad_argument, about(),
            "the messages and receives of this op already use " + std::to_string(actors::most_tags) +
                " tags on this rank; use fewer tags"});
  });
  receiver_.on_refused([this](const part_receiver& in, errc why) { tell_refused(in, why); });
  start(receiver_.rows());
  if (services_.data.has_lost(declaration().id(), participant_.generation)) refuse_overflow();
}

edge_in::~edge_in() = default;

void edge_in::refuse_overflow() {
  reject(error::in_words(errc::full, about(),
                         declaration().title() + ": rank " + std::to_string(services_.net.rank()) +
                             " received more than " + std::to_string(services_.early_bytes) +
                             " bytes before it declared their ops, joined the ops' generations or posted the receives; "
                             "do so earlier, or send less, or fewer and larger parts, before then"));
}

std::vector<runtime::arrival> edge_in::retire() noexcept {
  retire_participant();
  return receiver_.retire();
}

void edge_in::list_waiting(runtime::waiting_list& all) { receiver_.list_waiting(waiting("receive"), all); }

void edge_in::take_memory(const std::shared_ptr<actors::memory_region>& region) { receiver_.add_memory(region); }

// Tells the sender that this rank has registered memory, so that credits are possible. If no credits arrive, the sender's error can then
// say why. The sender may have no end of the edge yet, or miss the message, so this rank sends it up to four times, also before rehearsals.
// A credit carries the same information.
void edge_in::say_memory() noexcept {
  constexpr std::size_t often_enough = 4;
  if (memory_said_ == often_enough || those_that_need(needs::credit).empty()) return;
  ++memory_said_;
  static_cast<void>(services_.mail.send(options_.peer, actors::number_of(declaration().id(), actors::part::data_sender),
                                        participant_.generation, actors::known{}));
}

void edge_in::fail(const error& why) noexcept {
  failed_ = why;
  participant_.changed.tell();
  // If a rank other than the peer has died, both ranks of this edge live, and the edge is closed.
  const bool is_of_another = why.code() == errc::peer_failed && why.about().peer && *why.about().peer != options_.peer;
  receiver_.fail(is_of_another ? errc::closed : why.code());
}

// ---- a call: its config, its end ----------------------------------------------------------------------------------------

// Before the two ends have met, each runs its own default. A stamp with another config means that their declarations differ. The sender, as
// the leader, compares them, and its error names both. This waits for that error, but only for half of a call's timeout: the sender's own
// timeout must not come first.
task<> edge_in::until_runnable(part_receiver& in, std::uint64_t ran) {
  const time_ns until = services_.until(options_.timeout_ns / 2);
  while (runnable(ran) == nullptr && participant_.candidates.empty() && !failed_) {
    auto woken = co_await participant_.changed.next(until);
    if (woken) continue;
    if (woken.code() != errc::timeout) runtime::raise(woken.reason());
    in.fail(errc::declaration_mismatch);
    const paired_config* const theirs = find(ran);
    runtime::raise({errc::declaration_mismatch,
                    "the sender's default is " +
                        (theirs == nullptr ? "a config that this rank does not list" : theirs->id()) +
                        ", and this rank's default is " + options_.configs.front()->id() +
                        "; the first config of the list, the default, must be the same on both ranks"});
  }
  if (failed_) runtime::raise(*failed_);
  if (runnable(ran) != nullptr) co_return;
  runtime::blame({"S3", "only what was warmed here is stamped", {receiver_.op(), services_.net.rank()}}, options_.peer);
  runtime::raise({errc::config_mismatch, find(ran) == nullptr ? "the stamp names a config that this rank does not have"
                                                              : "the stamp names a config that was not warmed here"});
}

task<std::uint64_t> edge_in::receive_in_parts(part_receiver& in, std::span<std::byte> into) {
  const std::uint64_t ran = chosen(*in.mark());
  std::string why;
  try {
    if (runnable(ran) == nullptr) co_await until_runnable(in, ran);
    runtime::scope& here = co_await runtime::this_scope;
    const paired_config* const found = find(ran);
    const runtime::implementation half(here, title(), found == nullptr ? std::string_view() : found->id());
    runtime::scope config(here, {.inside = &half});
    const patience limit(services_.ex, in, config, services_.patient(options_.timeout_ns));
    config.spawn(run(in, ran, into));
    co_await config.join();
  } catch (...) {
    why = runtime::describe(std::current_exception()).what();
    in.fail(failure_of_config(std::current_exception()));
  }
  if (!in.mismatch().empty()) why = in.mismatch();
  const errc settled = co_await in.settle();
  static_cast<void>(settled);
  co_return end(in, ran, why);
}

task<> edge_in::run(part_receiver& in, std::uint64_t digest, std::span<std::byte> into) {
  const paired_config* config = find(digest);
  if (config == nullptr)
    runtime::raise({errc::config_mismatch, "the stamp names a config that this rank does not have"});
  if (!into.empty()) co_await config->receive(in, into);
}

// Unpacking is charged to the config.
void edge_in::unpack_unless_by_piece(part_receiver& in, std::uint64_t ran) {
  const paired_config* const config = find(ran);
  if (is_in_pieces(in) && config != nullptr && !config->goes_by_piece()) in.in_pieces()->scatter();
}

bool edge_in::warmed(std::uint64_t digest) const noexcept { return participant_.may_run(digest); }

void edge_in::show_payload(const part_receiver& in) const {
  if (in.memory() == nullptr) return;
  if (is_in_pieces(in)) in.in_pieces()->gather();
  services_.watcher->on_payload(services_.net.rank(), {actors::payload_seen::what::received,
                                                       receiver_.op(),
                                                       receiver_.generation(),
                                                       in.mark()->tag,
                                                       in.invocation(),
                                                       {in.memory(), static_cast<std::size_t>(in.total_bytes())}});
}

void edge_in::record_compared(part_receiver& in, std::uint64_t ran) {
  const time_ns ended_ns = receiver_.rows().clock();
  const bool readable = options_.memory == nullptr && in.memory() != nullptr;
  const auto came = [&] {
    return is_in_pieces(in) ? tuning::check_of_pieces(in.in_pieces()->all)
                            : tuning::payload_check({in.memory(), in.total_bytes()});
  };
  if (readable && came() != in.mark()->next_digest) in.fail(errc::config_failed);
  actors::note_ended_at(services_, receiver_.rows(), ended(in, *in.mark(), ran, in.failed()), ended_ns);
  receiver_.note_end(in);
}

void edge_in::fail_other_config(part_receiver& in) noexcept {
  if (!runtime::holds(false, {"S2", "a receiver runs what its invocation is stamped with", receiver_.here()}))
    in.fail(errc::config_mismatch);
}

}  // namespace parley::ops
