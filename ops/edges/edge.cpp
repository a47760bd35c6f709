#include <parley/ops/edges/edge.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/core/under_way.hpp>
#include <parley/tuning/payload_check.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <utility>

namespace parley::ops {

using actors::stamp;
using actors::stamp_flags;
using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

namespace {

constexpr time_ns rehearsal_pause_ns = 200'000;
constexpr time_ns longest_rehearsal_ns = actors::warming_limit_ns / 4 * 3;

// What a rehearsal sends, the same on every machine. By words: both loops stand still while it is made and compared.
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

// The first byte that is not the pattern's; if there is none, the size.
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

// Memory of a device is reached by way of the host's; of many edges that rehearse at once each holds no more than it needs.
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

// All that was enqueued for `memory`, looked at in each turn of the loop.
class kernels_at_work final : private runtime::completion {
 public:
  kernels_at_work(runtime::memory_space& where, std::span<const std::byte> memory) noexcept
      : completion(&on_over), where_(where), outcome_(where.when_settled(memory, this)) {}
  kernels_at_work(const kernels_at_work&) = delete;
  kernels_at_work& operator=(const kernels_at_work&) = delete;
  ~kernels_at_work() {
    if (outcome_ == errc::pending) where_.forget(this);
  }
  errc outcome() const noexcept { return outcome_; }

 private:
  static void on_over(completion& self, errc how) noexcept { static_cast<kernels_at_work&>(self).outcome_ = how; }
  runtime::memory_space& where_;
  errc outcome_;
};

// A matched receive waits for its data as long as that takes. But when all of it is here, or none will come any more, its
// config has so long to end.
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

capabilities capabilities_of(const edge_options& o, const actors::op_declaration& op, const runtime::link& net) {
  auto found = capabilities_of(op.title(), net.rank(), o.on, o.configs, o.capable, o.allowed,
                               [](const paired_config& c) { return c.demands(); });
  std::vector<const op_config*> plain;
  for (const auto& c : o.configs) plain.push_back(c.get());
  ask_each(found, plain, "asking whether it works over this rank's link", [&](std::size_t i) {
    const auto works = o.configs[i]->works_over(net, o.memory);
    return works ? std::string() : works.reason().text();
  });
  return found;
}

errc failure_of_config(const std::exception_ptr& thrown) {
  const errc code = runtime::describe(thrown).code();
  // A device that failed did so under whatever config.
  const bool says_itself = code == errc::cancelled || code == errc::config_mismatch || code == errc::device_failed;
  return says_itself ? code : errc::config_failed;
}

// ---- what both ends share ---------------------------------------------------------------------------------------------

edge_end::edge_end(actors::services& s, edge_options o, rank_id sender, rank_id receiver, std::string role)
    : op_end(sender == s.net.rank() ? kind::sender : kind::receiver), services_(s), options_(std::move(o)) {
  auto& op = participant_.declaration;
  op = actors::declare_edge(options_.name, sender, receiver, options_.dtype);
  participant_.configs = catalogue_of(op.title(), options_.configs);
  latest_ = options_.configs.front().get();
  auto can = options_.asked != nullptr ? *options_.asked : capabilities_of(options_, op, s.net);
  participant_.available = std::move(can.available);
  participant_.unavailable = std::move(can.missing);
  participant_.limits = std::move(can.limits);
  participant_.faults = std::move(can.faults);
  inexact_ = std::move(can.inexact);
  for (std::size_t i = 0; i < options_.configs.size(); ++i) {
    digests_.push_back(options_.configs[i]->digest());
    const bool needs_memory = options_.configs[i]->needs_memory();
    one_sided_ = one_sided_ || (needs_memory && s.net.one_sided());
    if (i == 0 || !participant_.available.test(i) || !needs_memory || one_sided_) continue;
    participant_.available.clear(i);
    participant_.unavailable.push_back(options_.configs[i]->id() +
                                       ": the transport cannot write into another rank's memory");
  }
  op.default_config = options_.configs.front()->id();
  op.default_digest = options_.configs.front()->digest();
  participant_.generation = generation_now();
  participant_.role = std::move(role);
  // What was the best way for pieces says nothing of a program whose messages have others: keys know of sizes alone.
  for (const actors::remembered_best& best : options_.remembered) {
    const auto is_it = [&](const config_ptr& c) { return c->goes_by_piece() && best.solution.starts_with(c->id()); };
    if (std::none_of(options_.configs.begin(), options_.configs.end(), is_it)) participant_.remembered.push_back(best);
  }
  participant_.policy = options_.policy;
  participant_.runs = this;
}

std::uint64_t edge_end::generation_now() const {
  const std::vector<rank_id> alone;
  return actors::first_generation(declaration(), services_.incarnations,
                                  options_.coupled == nullptr ? alone : *options_.coupled);
}

bool edge_end::is_current() const { return participant_.generation == generation_now(); }

bool edge_end::restarts_with(rank_id rank) const noexcept {
  const auto* const others = options_.coupled.get();
  return peer() == rank || (others != nullptr && std::find(others->begin(), others->end(), rank) != others->end());
}

agreement edge_end::agreed() noexcept { return {services_, participant_, failed_, options_.timeout_ns}; }

edge_end::~edge_end() { actors::unbind_participant(services_, participant_); }

void edge_end::start(actors::row_log& rows) {
  participant_.rows = &rows;
  rows.set_measuring(options_.policy == actors::tuning_policy::online);
  actors::spawn_participant(services_, participant_);
}

void edge_end::retire_participant() noexcept {
  actors::unbind_participant(services_, participant_);
  participant_.actor.stop();
}

void edge_end::reject(const error& why) noexcept {
  fail(why);
  actors::op_reject word;
  word.code = static_cast<std::uint8_t>(why.code());
  word.text = why.text();
  static_cast<void>(services_.mail.send(options_.peer, actors::number_of(declaration().id(), actors::part::participant),
                                        participant_.generation, word));
}

void edge_end::add_memory(const std::shared_ptr<actors::memory_region>& region) {
  if (!one_sided_) return;
  keep_memory(region);
  say_memory();
}

void edge_end::keep_memory(const std::shared_ptr<actors::memory_region>& region) {
  std::erase_if(memory_, [](const auto& m) { return m->where == actors::memory_region::state::withdrawn; });
  memory_.push_back(region);
  take_memory(region);
}

// What the one that has died had credits for was withdrawn.
void edge_end::hand_over(edge_end& next) const {
  for (const auto& region : memory_) {
    if (region->where == actors::memory_region::state::exposed) next.add_memory(region);
  }
}

// The pattern is made of whole words.
std::size_t edge_end::rehearsal_bytes() const noexcept {
  return (services_.net.wiring_bytes() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t) * sizeof(std::uint64_t);
}

bool edge_end::has_memory() const noexcept {
  return std::any_of(memory_.begin(), memory_.end(),
                     [](const auto& m) { return m->where == actors::memory_region::state::exposed; });
}

std::vector<std::uint64_t> edge_end::those_that_need(needs what) const {
  std::vector<std::uint64_t> some;
  for (const config_ptr& c : options_.configs) {
    if (c->what_it_needs() == what) some.push_back(c->digest());
  }
  return some;
}

void edge_end::check_guarded_caller() const { runtime::check_call(services_.ex, title()); }

void edge_end::check_place(std::span<const std::byte> buffer) const {
  const runtime::result<> there = options_.memory->check(buffer);
  if (!there) throw explained(there.code(), about(), there.reason().text());
}

actors::registered_memory edge_end::registered(std::span<std::byte> memory) {
  check_caller();
  check(memory);
  if (!one_sided_ || memory.empty()) return {};
  actors::registered_memory made(services_.net, memory);
  add_memory(made.region());
  return made;
}

// If the machine refuses, the rehearsal goes on without, so that both sides agree that it failed.
actors::registered_memory edge_end::memory_for(needs what, std::uint64_t digest, std::span<std::byte> scratch) {
  try {
    if (find(digest)->what_it_needs() != what || !one_sided_ || scratch.empty()) return {};
    actors::registered_memory made(services_.net, scratch);
    keep_memory(made.region());
    return made;
  } catch (const failure&) {}
  return {};
}

const paired_config* edge_end::search(std::uint64_t digest) noexcept {
  const auto at = std::find(digests_.begin(), digests_.end(), participant_.variant_of(digest));
  if (at == digests_.end()) return nullptr;
  return latest_ = options_.configs[static_cast<std::size_t>(at - digests_.begin())].get();
}

runtime::error_facts edge_end::about() const {
  runtime::error_facts facts = declaration().about(services_.net.rank());
  facts.role = participant_.role;
  facts.peer = options_.peer;
  return facts;
}

runtime::error_facts edge_end::about(std::uint64_t invocation, std::uint32_t tag) const {
  runtime::error_facts facts = about();
  facts.invocation = invocation;
  facts.tag = tag;
  return facts;
}

runtime::error_facts edge_end::about_next(std::uint64_t invocation, std::uint32_t tag, runtime::awaited unmet) const {
  runtime::error_facts facts = about(invocation, tag);
  facts.begun = false;
  facts.unmet = unmet;
  return facts;
}

failure edge_end::explained(errc code, const runtime::error_facts& about, const std::string& what) const {
  services_.about_to_fail(code);
  failure why = in_words(code, about, what);
  services_.call_failed(why.reason());
  return why;
}

failure edge_end::in_words(errc code, const runtime::error_facts& about, const std::string& what) const {
  const bool begun = about.invocation && about.begun;
  // What this rank's own device did to a call is why the peer has ended it, and not the other way round.
  const bool by_itself = begun && !said_by(options_.memory, code, {}).empty();
  if (failed_ && !begun)
    return failure(error::in_words(failed_->code(), about_call(failed_->about(), about), failed_->text() + "; " + what,
                                   failed_->began_with()));
  if (failed_ && !by_itself) return failure(while_under_way(*failed_, about));
  std::string text = what + said_by(options_.memory, code, what);
  if (code != errc::peer_failed) return failure({code, about, text});
  // The transport may know of a death before anybody has told this end.
  text += "; rank " + std::to_string(options_.peer) + " is gone; restart the job to continue";
  const runtime::root_cause cause{options_.peer, " is gone; restart the job to continue"};
  return failure({code, about, text, &cause});
}

runtime::waiting_call edge_end::waiting(std::string_view what) const {
  runtime::waiting_call w;
  w.what = what;
  w.op = declaration().title();
  w.id = declaration().id();
  w.generation = participant_.generation;
  return w;
}

void edge_end::ask_peer(std::uint32_t tag) const {
  actors::ask_what_it_does(services_, declaration(), participant_.generation, options_.peer, tag);
}

std::string edge_end::words_of_peer() const {
  return failed_ ? std::string() : actors::said_by_peers(services_, declaration(), {options_.peer});
}

void edge_end::record_unbegun(runtime::flight_event what, std::uint32_t tag, std::uint64_t invocation,
                              std::uint64_t bytes, time_ns began_ns) const {
  services_.flight.add({.op = declaration().id(),
                        .generation = participant_.generation,
                        .invocation = invocation,
                        .bytes = bytes,
                        .began_ns = began_ns,
                        .ended_ns = services_.clocks.local(services_.ex.now()),
                        .tag = tag,
                        .what = what});
}

void edge_end::report_failure(const part_receiver& in, std::uint64_t ran, errc why, const std::string& what) {
  // The sender's own failure is known there, unless it only knows that time ran out while this side was at it.
  const bool hung = in.sender_failure() == errc::timeout;
  if (failed_ || (in.sender_failure() != errc::none ? !hung : !actors::blames_config(why))) return;
  actors::nack n;
  n.tag = in.mark()->tag;
  n.invocation = in.invocation();
  n.digest = ran;
  n.bytes = in.total_bytes();
  n.code = static_cast<std::uint8_t>(hung ? errc::timeout : why);
  n.text = what;
  static_cast<void>(participant_.actor.try_send(std::move(n)));
}

// ---- the sending end --------------------------------------------------------------------------------------------------

edge_out::edge_out(actors::services& s, const edge_options& o, const tuning::plan_options& plan)
    : edge_end(s, o, s.net.rank(), o.peer, "sender"),
      assigned_(options_.configs.front()->digest(), options_.configs.front()->id(), options_.dtype,
                {s.net.rank(), options_.peer}, options_.policy, plan),
      sender_(s, participant_.declaration, participant_.generation, assigned_, options_.window) {
  coordinator_.declaration = participant_.declaration;
  coordinator_.generation = participant_.generation;
  coordinator_.configs = participant_.configs;
  coordinator_.assigned = &assigned_;
  if (one_sided()) sender_.allow_one_sided(those_that_need(needs::credit), those_that_need(needs::known_payload));
  // Also one that stands for another rank's, whose digest it has.
  if (!those_that_need(needs::like_pieces).empty())
    sender_.allow_pieces([this](std::uint64_t digest) {
      const paired_config* const config = find(digest);
      return config != nullptr && config->goes_by_piece();
    });
  // What goes by the piece does so with payloads in pieces alone.
  const auto has_it_whole = [this](const config_ptr& c) { return c->goes_by_piece() || c->goes_whole(short_bytes_); };
  if (std::all_of(options_.configs.begin(), options_.configs.end(), has_it_whole)) at_once_below_ = short_bytes_ + 1;
  // Payloads of a device are not read from here.
  if (options_.allowed.compare_trials && options_.memory == nullptr) sender_.compare_trials(std::move(inexact_));
  coordinator_.failed_there = [this](const actors::nack& n) { on_nack(n); };
  participant_.assigned = &assigned_;
  assigned_.ask_shapes([this](std::uint64_t digest, std::uint64_t bytes) {
    const paired_config* const config = find(digest);
    return config == nullptr ? std::string() : config->shape(bytes);
  });
  leads_ = actors::spawn_coordinator(services_, coordinator_);
  sender_.on_late_soon(services_.asked_before(options_.timeout_ns), [this](std::uint32_t tag) { ask_peer(tag); });
  sender_.on_ended([this] {
    fail({errc::fenced, about(),
          "rank " + std::to_string(options_.peer) +
              " has ended this generation of the op: it takes this rank for dead or restarted"});
  });
  start(sender_.rows());
}

void edge_out::retire() noexcept {
  retire_participant();
  actors::unbind_coordinator(services_, coordinator_);
  leads_.stop();
  sender_.retire();
}

edge_out::~edge_out() { actors::unbind_coordinator(services_, coordinator_); }

void edge_out::fail(const error& why) noexcept {
  failed_ = why;
  participant_.changed.tell();
  // Others may end this edge, too, where its peer lives and reads on.
  const errc code = why.code();
  const bool restarted =
      code == errc::peer_restarted && (why.began_with() == nullptr || why.began_with()->rank == peer());
  const bool gone = restarted || code == errc::peer_failed || code == errc::fenced;
  using reader = actors::one_sided_sender::reader;
  sender_.fail(code, gone ? reader::gone : reader::may_live);
}

// With the roles in conflict nobody is there to take what is under way.
void edge_out::on_rejected(const error& why) noexcept {
  fail(why);
  under_way_.for_each([&](under_way& send) { send.out.fail(why.code()); });
  wholes_.for_each([&](whole_send& send) { send.out->fail(why.code()); });
}

// Ends an invocation at its deadline. If nothing of it is in flight then, the config waits for something of its own.
struct edge_out::late_guard : runtime::timer {
  late_guard(edge_out& e, actors::part_sender& p, time_ns until) noexcept
      : timer(&on_late), edge(e), out(p), deadline_ns(until) {
    if (until != runtime::never) edge.services_.ex.arm(*this, edge.sender_.late_soon_at(until));
  }
  static void on_late(timer& self) noexcept {
    auto& mine = static_cast<late_guard&>(self);
    runtime::executor& ex = mine.edge.services_.ex;
    const bool moves = mine.out.in_flight() != 0;
    if (mine.deadline_ns <= ex.now()) return mine.out.fail(moves ? errc::timeout : errc::config_failed);
    if (moves && !has(mine.out.mark().flags, stamp_flags::rehearsal)) mine.edge.sender_.late_soon(mine.out.mark().tag);
    ex.arm(mine, mine.deadline_ns);
  }
  edge_out& edge;
  actors::part_sender& out;
  time_ns deadline_ns;
};

void edge_out::list_waiting(runtime::waiting_list& all) {
  const runtime::waiting_call of = waiting("send");
  const auto add = [&](const actors::outgoing& inv, const part_sender& out, std::uint64_t batch) {
    if (out.failed() != errc::none && out.in_flight() == 0) return;  // it is over
    runtime::waiting_call& w = all.calls.emplace_back(of);
    w.invocation = inv.invocation;
    w.tag = inv.mark.tag;
    w.bytes = inv.mark.total_bytes;
    w.since_ns = inv.began_ns;
    w.batch = batch;
    w.rehearsal = has(inv.mark.flags, stamp_flags::rehearsal);
    const bool moves = out.in_flight() != 0;
    if (moves) w.peers = {options_.peer};
    w.lacks = moves ? "its payload to be taken" : "its config";
  };
  under_way_.for_each([&](const under_way& send) { add(send.invocation, send.out, send.batch); });
  wholes_.for_each([&](const whole_send& send) { add(*send.invocation, *send.out, send.batch); });
  sender_.list_waiting(of, all);
}

void edge_out::take_memory(const std::shared_ptr<actors::memory_region>& region) {
  sender_.one_sided()->add_memory(region);
}

task<> edge_out::send_when_admitted(std::span<const std::byte> data, call_options call) {
  const time_ns until = deadline(call);
  std::optional<runtime::until_free> payload;
  if (may_wait_for_credit(call.tag, data))
    payload.emplace(*options_.memory, data, [this, &call] { sender_.readmit(call.tag); });
  const time_ns asked_ns = sender_.rows().clock();
  auto number = co_await sender_.admit(call.tag, data.size(), until, payload ? &*payload : nullptr, data.data());
  if (!number) {
    record_unbegun(runtime::flight_event::send_failed, call.tag, sender_.next_invocation(call.tag), data.size(),
                   asked_ns);
    runtime::error_facts facts = about_next(sender_.next_invocation(call.tag), call.tag,
                                            why_not_admitted(call.tag, data.size(), payload && !payload->is_over()));
    facts.whole_bytes = data.size();
    throw explained(number.code(), facts,
                    (failed_ ? "" : words_of(facts.unmet)) + "a send of " + std::to_string(data.size()) +
                        " bytes, tag " + std::to_string(call.tag) + ", had not begun: invocation " +
                        std::to_string(sender_.next_invocation(call.tag)) + " would have been the next one" +
                        (number.code() == errc::timeout ? words_of_peer() : ""));
  }
  payload.reset();
  if (call.watcher != nullptr) call.watcher->on_begun();
  actors::outgoing begun = sender_.begin(call.tag, data.size(), *number, call.trials, data.data(), call.pieces);
  begun.mark.more_type = call.type;
  actors::payload_pieces* const by_piece = packed_unless_by_piece(begun, call.pieces);
  show_payload(begun, data);
  co_await run(begun, data, until, by_piece, call.trials.batch);
}

runtime::awaited edge_out::why_not_admitted(std::uint32_t tag, std::uint64_t bytes, bool is_still_written) {
  using runtime::awaited;
  if (is_still_written) return awaited::kernels;
  return sender_.awaits_answer(tag, bytes) ? awaited::declaration : awaited::room;
}

std::string edge_out::words_of(runtime::awaited unmet) const {
  if (unmet == runtime::awaited::kernels) return "what kernels of this rank were to write was not there; ";
  const std::string peer = "rank " + std::to_string(options_.peer);
  if (unmet == runtime::awaited::room)
    return peer + " has no room: it has not posted the receives for what was sent before; ";
  return peer + " has not answered for this op, which it may not have declared yet, and of the " +
         std::to_string(sender_.allowance().most_bytes()) +
         " bytes that may be sent to it before it has declared their ops " +
         std::to_string(sender_.allowance().taken_bytes()) +
         " are taken; declare the op there earlier, or send less before that; ";
}

actors::payload_pieces* edge_out::pack(const actors::outgoing& inv, actors::payload_pieces& pieces) {
  const bool by_piece = find(inv.mark.digest)->goes_by_piece();
  if (!by_piece) pieces.packed_bytes += pieces.packed.size();
  if (!by_piece || services_.watcher != nullptr) pieces.gather();
  return by_piece ? &pieces : nullptr;
}

// A call whose own message goes well brings the news of an earlier one's.
task<> edge_out::send_and_tell(std::span<const std::byte> data, call_options call) {
  if (untold_.empty()) {  // another call has told it
    co_await send_when_admitted(data, call);
    co_return;
  }
  refusal earlier = std::move(untold_.front());
  untold_.erase(untold_.begin());
  std::exception_ptr thrown;
  try {
    co_await send_when_admitted(data, call);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown) {
    untold_.insert(untold_.begin(), std::move(earlier));
    std::rethrow_exception(thrown);
  }
  throw explained(earlier.code, about_refused(earlier),
                  words_of(earlier) + "; that message had left when this was heard, and the next one has been sent");
}

runtime::error_facts edge_out::about_refused(const refusal& r) const {
  runtime::error_facts facts = about(r.invocation, r.tag);
  facts.whole_bytes = r.bytes;
  return facts;
}

std::string edge_out::words_of(const refusal& r) const {
  return "rank " + std::to_string(options_.peer) + " did not take this message of tag " + std::to_string(r.tag) + ": " +
         r.why;
}

void edge_out::list_undelivered(std::vector<std::pair<rank_id, std::string>>& all) {
  if (delivered()) return;
  const auto [sent, unmatched] = sender_.delivery();
  const std::string receiver = "rank " + std::to_string(peer());
  all.emplace_back(peer(), declaration().title() + ", on rank " + std::to_string(services_.net.rank()) + ": " +
                               receiver + " has not taken " + std::to_string(unmatched) + " of the " +
                               std::to_string(sent) +
                               " messages that were sent to it; let it receive each message before it returns");
}

void edge_out::list_left_over(std::vector<std::string>& lines) {
  for (const refusal& r : untold_) lines.emplace_back(in_words(r.code, about_refused(r), words_of(r)).what());
  if (untold_more_ != 0)
    lines.push_back(declaration().title() + ": rank " + std::to_string(options_.peer) + " has refused " +
                    std::to_string(untold_more_) + " more messages like that");
}

// A send that is under way ends with it, any other one is told by the next.
void edge_out::on_refused(refusal r) {
  bool is_under_way = false;
  const auto end = [&](const actors::stamp& mark, part_sender& out) {
    const bool is_it = mark.tag == r.tag && mark.invocation == static_cast<std::uint32_t>(r.invocation);
    if (!is_it || has(mark.flags, stamp_flags::rehearsal)) return;
    is_under_way = true;
    out.fail(errc::buffer_too_small);  // which says nothing of the config
  };
  under_way_.for_each([&](under_way& send) { end(send.invocation.mark, send.out); });
  wholes_.for_each([&](whole_send& send) { end(send.out->mark(), *send.out); });
  auto& known = is_under_way ? refused_ : untold_;
  const auto same = [&](const refusal& other) { return other.tag == r.tag && other.invocation == r.invocation; };
  if (std::any_of(known.begin(), known.end(), same)) return;
  if (known.size() == most_refusals) {
    untold_more_ += is_under_way ? 0 : 1;
    return;
  }
  known.push_back(std::move(r));
  unusual_ = true;
}

std::optional<edge_out::refusal> edge_out::take_refusal(const actors::outgoing& inv) {
  const auto at = std::find_if(refused_.begin(), refused_.end(), [&](const refusal& r) {
    return r.tag == inv.mark.tag && r.invocation == inv.invocation;
  });
  if (at == refused_.end()) return std::nullopt;
  refusal mine = std::move(*at);
  refused_.erase(at);
  return mine;
}

bool edge_out::is_still_written(const actors::outgoing& inv, std::span<const std::byte> data) {
  const bool matters = sender_.rows().measuring() || has(inv.mark.flags, actors::stamp_flags::timed) ||
                       find(inv.mark.digest)->what_it_needs() == needs::known_payload;
  return matters && options_.memory->busy(data);
}

// Until the host has noticed nothing moves, which is the time of a config that waits for that: it counts from when kernels were last
// seen at work.
task<time_ns> edge_out::until_written(std::span<const std::byte> data) {
  const kernels_at_work kernels(memory(), data);
  // The device is asked before anybody's turn: what others did in this one may be longer ago than the kernels' end.
  time_ns seen_ns = sender_.rows().clock();
  time_ns turn_ns = seen_ns;
  while (kernels.outcome() == errc::pending) {
    seen_ns = std::exchange(turn_ns, sender_.rows().clock());
    co_await runtime::yield;
  }
  if (kernels.outcome() != errc::none) runtime::raise({kernels.outcome(), memory().words_of(kernels.outcome())});
  co_return seen_ns;
}

bool edge_out::send_at_once(std::span<const std::byte> data, const call_options& o) {
  if (data.size() >= at_once_below_ || unusual_) return false;
  const std::uint64_t number = sender_.try_admit(o.tag, data.size());
  if (number == actors::edge_sender::not_admitted) return false;
  actors::outgoing begun = sender_.begin(o.tag, data.size(), number, o.trials, data.data());
  begun.mark.more_type = o.type;
  show_payload(begun, data);
  if (!data.empty()) check_trial(begun);
  if (const errc sent = send_short(begun, data); sent != errc::none) [[unlikely]] {
    part_sender out(services_.net, peer(), begun.mark);
    out.fail(sent);
    end(begun, out, data.size());
  } else {
    sender_.end(begun, errc::none);
  }
  return true;
}

void edge_out::check_warmed(std::uint64_t digest) const {
  runtime::invariant(participant_.may_run(digest),
                     {"S3", "only what was warmed here is tried", {declaration().id(), services_.net.rank()}});
}

void edge_out::note_worked(actors::outgoing& inv, time_ns waited_ns) {
  inv.worked_ns = std::max<time_ns>(sender_.rows().clock() - inv.began_ns - waited_ns, 0);
}

task<> edge_out::run(actors::outgoing inv, std::span<const std::byte> data, time_ns until,
                     actors::payload_pieces* by_piece, std::uint64_t batch) {
  part_sender out(services_.net, options_.peer, inv.mark, inv.access);
  out.lies_in(by_piece);
  if (inv.timed()) out.count_waits(services_.ex);
  under_way mine(inv, out);
  mine.batch = batch;
  under_way_.push_back(mine);
  const late_guard guard(*this, out, until);
  std::optional<runtime::until_free> written;
  try {
    if (data.empty()) {
      co_await out.send(0, data);
    } else if (services_.ex.is_over(until)) {
      out.fail(errc::timeout);  // it had room in time, and was resumed too late: no fault of its config
    } else {
      check_trial(inv);
      if (waits_for_kernels(inv, data)) {
        if (find(inv.mark.digest)->what_it_needs() == needs::credit) {
          // Its copies are enqueued behind the kernels. What it is measured at begins when these end, as far as the host knows, which
          // is late by as much as it is for the end.
          written.emplace(memory(), data, [&] { inv.began_ns = sender_.rows().clock(); });
        } else if (has(inv.mark.flags, stamp_flags::timed)) {
          inv.began_ns = co_await until_written(data);
        } else {
          co_await memory().settled(data);
          inv.began_ns = sender_.rows().clock();
        }
      }
      const paired_config& config = *find(inv.mark.digest);
      if (config.puts_whole()) {
        out.start_put(0, data, {});
      } else {
        runtime::scope& here = co_await runtime::this_scope;
        const runtime::implementation half(here, title(), config.id());
        runtime::scope running(here, {.deadline = until, .inside = &half});
        running.spawn(config.send(out, data));
        co_await running.join();
      }
      if (out.has_put()) out.fence();  // at once: it is answered as soon as the last put has landed
    }
  } catch (...) {
    if (mine.why.empty()) mine.why = runtime::describe(std::current_exception()).what();
    out.fail(failure_of_config(std::current_exception()));
  }
  errc settled = co_await out.settle();
  if (out.has_put()) {  // a fence, and only then what lets the receiver have its buffer back
    if (out.sent_bytes() != data.size()) out.fail(errc::config_failed);
    if (!out.fenced()) {
      out.fence();
      settled = co_await out.settle();
    }
    out.announce();
    if (out.fence_failed()) after_failed_fence(out.fence_outcome());
  }
  static_cast<void>(settled);
  if (inv.timed()) note_worked(inv, out.waited_ns());
  end(inv, out, data.size(), mine.why);
}

// The peer may give its buffer back only when nothing comes any more. Where this rank's own device has failed it is this rank that has to
// go for that: the others see its connections end.
void edge_out::after_failed_fence(errc how) {
  if (how != errc::device_failed) return lose_peer();
  const std::string why =
      "its device failed before what it wrote into memory of rank " + std::to_string(options_.peer) + " was there";
  services_.give_up(services_.net.rank(), why);
}

void edge_out::lose_peer() {
  if (failed_) return;  // it is known what has become of it, and a new process may be in its place
  fail({errc::peer_failed, about(),
        "the fence after a put to rank " + std::to_string(options_.peer) +
            " failed, so that rank counts as dead; restart the job to continue"});
  sender_.one_sided()->say_ended();
  services_.give_up(options_.peer, "the fence after a put to it failed");
}

void edge_out::end_failed(const actors::outgoing& inv, part_sender& out, std::size_t bytes, std::string_view why) {
  out.fail(errc::config_failed);  // unless it has another reason already
  sender_.end(inv, out);
  if (const auto refused = take_refusal(inv))
    throw explained(refused->code, about_refused(*refused), words_of(*refused));
  runtime::error_facts facts = about(inv.invocation, inv.mark.tag);
  if (out.failed() == errc::timeout) facts.unmet = runtime::awaited::receive;
  facts.config = find(inv.mark.digest)->id();
  facts.done_bytes = out.sent_bytes();
  facts.whole_bytes = bytes;
  throw explained(out.failed(), facts,
                  "config " + facts.config + " to rank " + std::to_string(options_.peer) + " sent " +
                      std::to_string(out.sent_bytes()) + " of " + std::to_string(bytes) + " bytes" +
                      (out.failed() == errc::timeout ? ", which that rank has not taken: it has posted no receive, or "
                                                       "reads too slowly for this deadline"
                                                     : "") +
                      (why.empty() ? "" : "; " + std::string(why)) +
                      (out.failed() == errc::timeout ? words_of_peer() : ""));
}

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
    control.reset();  // what follows is waiting
    registered_scratch = memory_for(needs::known_payload, digest, scratch);
    // A rehearsal, which holds up nobody, waits for what it needs; without that it fails, here and on the other side.
    // An eighth longer than it must, at most: looking every 0.2 ms for seconds would cost the program.
    const time_ns began = services_.ex.now();
    const time_ns until = services_.ex.deadline_in(actors::warming_limit_ns / 2);
    for (time_ns now = began; !sender_.ready_to_rehearse(digest, scratch) && now < until; now = services_.ex.now()) {
      const time_ns pause = std::max(rehearsal_pause_ns, (now - began) / 8);
      auto slept = co_await runtime::sleep_until(std::min(until, services_.ex.deadline_in(pause)));
      if (!slept) break;
    }
    begun = true;
    // Over before its receiver gives up: that one then hears whose doing it was.
    const time_ns over = std::min(deadline({}), services_.ex.deadline_in(longest_rehearsal_ns));
    co_await run(sender_.begin_rehearsal(digest, scratch.size(), scratch.data()), scratch, over);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) co_return;
  if (!begun) give_up_rehearsal(digest);
  if (runtime::describe(thrown).code() == errc::config_failed) participant_.failed_here.push_back(digest);
  std::rethrow_exception(thrown);
}

// It has its number all the same, as it has at the receiver.
void edge_out::give_up_rehearsal(std::uint64_t digest) {
  const actors::outgoing inv = sender_.begin_rehearsal(digest, rehearsal_bytes());
  part_sender out(services_.net, options_.peer, inv.mark, inv.access);
  out.fail(errc::config_failed);
  sender_.end(inv, out);
}

void edge_out::on_nack(const actors::nack& n) noexcept {
  if (n.refused) return on_refused({n.tag, n.invocation, n.bytes, runtime::errc_of(n.code, errc::send_failed), n.text});
  under_way_.for_each([&](under_way& send) {
    if (send.invocation.invocation != n.invocation || send.invocation.mark.tag != n.tag ||
        send.invocation.mark.digest != n.digest || send.out.failed() != errc::none)
      return;
    send.why = "it failed on rank " + std::to_string(options_.peer) + ": " + n.text;
    send.out.fail(errc::config_failed);
  });
}

// ---- the receiving end ------------------------------------------------------------------------------------------------

edge_in::edge_in(actors::services& s, const edge_options& o)
    : edge_end(s, o, o.peer, s.net.rank(), "receiver"),
      receiver_(s, participant_.declaration, participant_.generation) {
  if (options_.memory != nullptr) receiver_.expect_slow_fetches();
  if (one_sided()) {
    receiver_.allow_one_sided(options_.memory);
    receiver_.on_ended([this](errc why) {
      const bool takes_us_for_dead = why == errc::peer_failed || why == errc::fenced;
      // Of whose restart it speaks this rank is yet to hear. Until then there is no other generation to rejoin.
      const bool restarted = why == errc::peer_restarted;
      fail({takes_us_for_dead ? errc::fenced
            : restarted       ? errc::peer_failed
                              : why,
            about(),
            "rank " + std::to_string(options_.peer) + " has ended this generation of the op" +
                (takes_us_for_dead ? ": it takes this rank for dead"
                 : restarted       ? ": it says that one of the op's ranks has restarted"
                                   : ", with " + std::string(runtime::name(why)))});
    });
  }
  if (options_.coupled != nullptr) receiver_.say_no_end();
  receiver_.on_late_soon(services_.asked_before(options_.timeout_ns), [this](std::uint32_t tag) { ask_peer(tag); });
  receiver_.on_overflow([this] { refuse_overflow(); });
  receiver_.on_too_many_tags([this] {
    reject({errc::bad_argument, about(),
            "this rank knows " + std::to_string(actors::most_tags) +
                " tags of this op already, of messages that came and of receives; use fewer"});
  });
  receiver_.on_refused([this](const part_receiver& in, errc why) { tell_refused(in, why); });
  start(receiver_.rows());
  if (services_.data.has_lost(declaration().id(), participant_.generation)) refuse_overflow();
}

edge_in::~edge_in() = default;

void edge_in::refuse_overflow() {
  reject(error::in_words(errc::full, about(),
                         declaration().title() + ": more than " + std::to_string(services_.early_bytes) +
                             " bytes came to rank " + std::to_string(services_.net.rank()) +
                             " before it declared its ops, joined their generations or posted the receives; do that "
                             "earlier, or send less, or larger parts, before it is done"));
}

std::vector<runtime::arrival> edge_in::retire() noexcept {
  retire_participant();
  return receiver_.retire();
}

void edge_in::list_waiting(runtime::waiting_list& all) { receiver_.list_waiting(waiting("receive"), all); }

void edge_in::take_memory(const std::shared_ptr<actors::memory_region>& region) { receiver_.add_memory(region); }

// For the sender to know whether there can be credits at all, which says what is amiss where none come. It may have no end of the edge
// yet, or not hear of it: so a few times, and again when it rehearses. The credits themselves say the same.
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
  receiver_.fail(why.code());
}

// Before the two ends have met each runs its own default. Another one in a stamp says that their declarations differ: the sender, who
// leads, compares them, and what it says names both. It is waited for half of a call's time, before the sender gives up its own.
task<> edge_in::until_runnable(part_receiver& in, std::uint64_t ran) {
  const time_ns until = services_.until(options_.timeout_ns / 2);
  while (runnable(ran) == nullptr && participant_.candidates.empty() && !failed_) {
    auto woken = co_await participant_.changed.next(until);
    if (woken) continue;
    if (woken.code() != errc::timeout) runtime::raise(woken.reason());
    in.fail(errc::declaration_mismatch);
    const paired_config* const theirs = find(ran);
    runtime::raise(
        {errc::declaration_mismatch, "the sender's default is " +
                                         (theirs == nullptr ? "a config that this rank does not list" : theirs->id()) +
                                         ", and this rank's default is " + options_.configs.front()->id() +
                                         "; the first one of the list, the default, must be the same on both ranks"});
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

// Within the time of its config.
void edge_in::unpack_unless_by_piece(part_receiver& in, std::uint64_t ran) {
  const paired_config* const config = find(ran);
  if (is_in_pieces(in) && config != nullptr && !config->goes_by_piece()) in.in_pieces()->scatter();
}

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

void edge_in::throw_failed(const part_receiver& in, std::uint64_t ran, std::string_view why) {
  if (why.empty() && in.failed() == errc::timeout) why = in.mismatch();  // of a message that would have come whole
  const paired_config* config = find(ran);
  const bool other_bytes = has(in.mark()->flags, stamp_flags::checked) && in.received_bytes() == in.total_bytes() &&
                           in.failed() == errc::config_failed && in.sender_failure() == errc::none && why.empty();
  const std::string what =
      (config == nullptr ? "an unknown config" : "config " + config->id()) + " received " +
      std::to_string(in.received_bytes()) + " of " + std::to_string(in.total_bytes()) + " bytes from rank " +
      std::to_string(options_.peer) +
      (in.sender_failure() == errc::none ? ""
                                         : ", where it ended with " + std::string(runtime::name(in.sender_failure()))) +
      (other_bytes ? "; they are other bytes than were sent, which the comparison of trials found" : "") +
      (why.empty() ? "" : "; " + std::string(why));
  report_failure(in, in.digest(), in.failed(), what);
  runtime::error_facts facts = about(in.invocation(), in.mark()->tag);
  if (in.failed() == errc::timeout) facts.unmet = in.all_here() ? runtime::awaited::config : runtime::awaited::payload;
  if (config != nullptr) facts.config = config->id();
  facts.done_bytes = in.received_bytes();
  facts.whole_bytes = in.total_bytes();
  throw explained(in.failed(), facts, what);
}

namespace {
// Behind `…, `, on either rank.
std::string why_refused(const part_receiver& in, errc why) {
  const actors::receive_room& takes = in.takes();
  const actors::stamp& came = in.stamp_of_refused();
  const std::string bytes = std::to_string(came.total_bytes) + " bytes";
  std::string text;
  if (why == errc::declaration_mismatch) {
    text = "which is for " + words_of_elements(takes.type) + ", and the message has " +
           words_of_elements(came.more_type) +
           (is_of_a_run(takes.type) ? "; give all stages the same microbatches"
                                    : "; give both ranks the same type, or send bytes");
  } else if (why == errc::buffer_too_small) {
    text = "which is too small for the message of " + bytes;
  } else {
    text = "where as many were expected, and the message has " + bytes;
  }
  return in.landed() ? text : text + "; nothing was written";
}
}  // namespace

void edge_in::tell_refused(const part_receiver& in, errc why) {
  const actors::stamp& s = in.stamp_of_refused();
  if (failed_ || has(s.flags, stamp_flags::rehearsal)) return;
  actors::nack n;
  n.tag = s.tag;
  n.invocation = in.invocation();
  n.digest = s.digest;
  n.bytes = s.total_bytes;
  n.code = static_cast<std::uint8_t>(why);
  n.refused = true;
  n.text = "its receive has a buffer of " + std::to_string(in.takes().most_bytes) + " bytes, " + why_refused(in, why);
  static_cast<void>(participant_.actor.try_send(std::move(n)));
}

// Nobody has been asked where there was too little time for it.
std::string edge_in::late_because() const {
  const std::string said = words_of_peer();
  return said.empty() ? ", or what it sends has another tag" : said;
}

void edge_in::throw_unmatched(const part_receiver& in, std::size_t capacity, std::uint32_t tag) {
  // What its sender has poisoned, or what is refused, has a number; what was sent stands in its sender's record.
  record_unbegun(runtime::flight_event::receive_failed, tag, in.invocation(),
                 in.refused() ? in.stamp_of_refused().total_bytes : capacity, in.posted_ns());
  if (!in.matched()) {
    runtime::error_facts facts = about_next(in.invocation(), tag, runtime::awaited::message);
    facts.own_bytes = capacity;
    throw explained(in.failed(), facts,
                    "a receive of up to " + std::to_string(capacity) + " bytes from rank " +
                        std::to_string(options_.peer) + ", tag " + std::to_string(tag) + ", was not met: invocation " +
                        std::to_string(in.invocation()) + " had not begun" +
                        (in.failed() == errc::timeout && !failed_ ? "; that rank is late" + late_because() : ""));
  }
  runtime::error_facts facts = about(in.invocation(), tag);
  facts.own_bytes = capacity;
  if (in.refused()) facts.whole_bytes = in.stamp_of_refused().total_bytes;
  const paired_config* const failed = in.failed() == errc::config_failed ? find(in.digest()) : nullptr;
  if (failed != nullptr) facts.config = failed->id();
  throw explained(in.failed(), facts,
                  "from rank " + std::to_string(options_.peer) + " into a buffer of " + std::to_string(capacity) +
                      " bytes" + (in.refused() ? ", " + why_refused(in, in.failed()) : ", tag " + std::to_string(tag)) +
                      (failed != nullptr ? "; config " + failed->id() + " failed at the sender" : ""));
}

bool edge_in::warmed(std::uint64_t digest) const noexcept { return participant_.may_run(digest); }

task<> edge_in::run(part_receiver& in, std::uint64_t digest, std::span<std::byte> into) {
  const paired_config* config = find(digest);
  if (config == nullptr)
    runtime::raise({errc::config_mismatch, "the stamp names a config that this rank does not have"});
  if (!into.empty()) co_await config->receive(in, into);
}

// Of a rehearsal that has failed at its sender, or of which nothing has come.
error edge_in::seen_at_receiver(const part_receiver& in, errc code) const {
  const std::string sender = "rank " + std::to_string(options_.peer) + ", which sends, ";
  if (in.sender_failure() != errc::none)
    return {code, sender + "ended its rehearsal with " + std::string(runtime::name(in.sender_failure()))};
  if (code == errc::timeout) return {code, sender + "has not begun its rehearsal in time"};
  return code;
}

// Takes the sender's next rehearsal. One before the `due` one says nothing of this config. Answers its number.
task<std::uint64_t> edge_in::rehearse_next(std::uint64_t due, std::uint64_t wanted, std::span<std::byte> scratch) {
  part_receiver in(receiver_, 0, scratch.size(), part_receiver::kind::rehearsal, nullptr, scratch.data());
  // An eighth longer than the sender has: that one speaks first.
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
  if ((thrown || askew) && outcome == errc::config_failed && in.sender_failure() == errc::none)
    participant_.failed_here.push_back(digest);
  if (askew) runtime::raise({errc::config_failed, std::string(in.mismatch())});
  if (thrown) runtime::raise(runtime::describe(thrown));
  if (outcome != errc::none) runtime::raise(seen_at_receiver(in, outcome));
  co_return in.invocation();
}

task<> edge_in::rehearse(std::uint64_t digest) {
  // Both ends number what they are asked to rehearse. Of an earlier one that this end had no memory for, or did not wait for any
  // longer, what the sender has sent or poisoned may still be here.
  const std::uint64_t due = rehearsals_++;
  const std::shared_ptr<runtime::memory_space::block> block = memory().make(rehearsal_bytes());
  const std::span<std::byte> scratch = block->bytes();
  if (has_memory()) say_memory();
  auto registered_scratch = memory_for(needs::credit, digest, scratch);
  registered_scratch.keep(block);
  std::uint64_t came = 0;
  do {
    came = co_await rehearse_next(due, digest, scratch);
  } while (came < due);
  const actors::busy_until_end control(services_, participant_.control_ns);
  const std::size_t wrong = co_await check_pattern(memory(), scratch, digest);
  if (wrong != scratch.size()) {
    participant_.failed_here.push_back(digest);
    runtime::raise({errc::config_failed, "the rehearsal brought wrong data at byte " + std::to_string(wrong)});
  }
  if (registered_scratch && find(digest)->what_it_needs() == needs::credit) receiver_.want_credits();
}

}  // namespace parley::ops
