#include <parley/ops/leased/symmetric_end.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/ops/core/call_error.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/ops/core/scratch_guard.hpp>
#include <parley/rank.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

task<> communicator::in_turn(runtime::device_stream, const std::function<void()>& launch) {
  launch();
  co_return;
}

namespace {

constexpr std::size_t largest_id_bytes = 64 << 10;

actors::trial_path path_of(const symmetric_options& op) {
  using path = actors::trial_path;
  if (op.rehearse == nullptr) return path::leased;
  return op.rehearse->beside_calls() ? path::rehearsals : path::between_calls;
}

const char* scheme_of(const symmetric_options& op) {
  switch (path_of(op)) {
    case actors::trial_path::leased: return "lease, trials on calls";
    case actors::trial_path::between_calls: return "lease, rehearsed between calls";
    case actors::trial_path::rehearsals: break;
  }
  return "lease, rehearsed";
}

tuning::plan_options plan_for(const symmetric_options& op, tuning::plan_options plan) {
  if (path_of(op) == actors::trial_path::rehearsals) return plan;
  // Trials on the user's calls cost the user time, and the budget pays for all of them at once (N2). So there is one round, which is long
  // enough for a decision.
  plan.probe_repetitions = std::max(plan.probe_repetitions, plan.enough_repetitions);
  plan.maximum_rounds = 1;
  return plan;
}

}  // namespace

task<> symmetric_config::capture(symmetric_call, std::span<std::byte>, runtime::device_stream) const {
  runtime::raise({errc::unavailable, "config " + id() + " cannot be captured"});
}

runtime::result<actors::op_declaration> declaration_of(const symmetric_options& op, rank_id world_size) {
  const std::string title = "op " + op.name;
  if (const auto timed = check_timeout(op.name, op.timeout); !timed) return timed.reason();
  actors::op_declaration d;
  d.name = op.name;
  d.scheme = scheme_of(op);
  d.dtype = op.dtype;
  for (rank_id r = 0; op.ranks.empty() && r < world_size; ++r) d.participants.push_back({r, "member"});
  for (const rank_id r : op.ranks) {
    const auto same = [&](const auto& p) { return p.rank == r; };
    if (r >= world_size || std::any_of(d.participants.begin(), d.participants.end(), same))
      return error{errc::bad_argument, title + ": member " + std::to_string(r) + " is outside the world of " +
                                           std::to_string(world_size) + " or listed twice"};
    d.participants.push_back({r, "member"});
  }
  if (op.configs.empty())
    return error{errc::bad_argument, title + " has an empty catalogue; list at least its default config"};
  for (std::size_t i = 0; i < op.configs.size(); ++i) {
    if (op.configs[i] == nullptr)
      return error{errc::bad_argument, title + ": config " + std::to_string(i) + " of its catalogue is null"};
  }
  if (op.replayed && !op.configs.front()->can_be_captured())
    return error{errc::bad_argument, title + ": its calls are replayed, and its default " + op.configs.front()->id() +
                                         " cannot be captured; put one first that can"};
  if (op.replayed) d.scheme += ", replayed";
  d.leader = d.participants.front().rank;
  // Members that list each other in different orders still declare the same op. But their schemes differ, so they get an error.
  const auto by_rank = [](const auto& a, const auto& b) { return a.rank < b.rank; };
  if (!std::is_sorted(d.participants.begin(), d.participants.end(), by_rank)) {
    d.scheme += ", in the order";
    for (const auto& p : d.participants) d.scheme += " " + std::to_string(p.rank);
    std::sort(d.participants.begin(), d.participants.end(), by_rank);
  }
  d.default_config = op.configs.front()->id();
  d.default_digest = op.configs.front()->digest();
  return d;
}

std::string why_not_compared(const symmetric_options& op) {
  if (op.rehearse == nullptr)
    return "an op that tries candidates on its own calls cannot compare their results; give the op a "
           "communicator_source (symmetric_options::rehearse)";
  if (!tuning::number_type_of(op.dtype))
    return "the op does not name its number type; set symmetric_options::dtype to f32, bf16, i32 or the like";
  return {};
}

namespace {
std::size_t alignment_of(const symmetric_options& op) {
  std::size_t most = tuning::size_of(tuning::number_type_of(op.dtype).value_or(tuning::number_type::bytes));
  for (const symmetric_config_ptr& c : op.configs) most = std::max(most, c->alignment());
  return most;
}

// Clears the low bits, which count the generations of such an op.
std::uint64_t first_of(const actors::op_declaration& op, const runtime::incarnations& of_world) {
  return actors::first_generation(op, of_world) & ~actors::generation_counter;
}
}  // namespace

symmetric_end::own_state::own_state(actors::services& s, const symmetric_options& op,
                                    const symmetric_settings& settings) {
  declaration = declaration_of(op, s.net.world_size()).value();
  generation = first_of(declaration, s.incarnations);
  role = "member";
  configs = catalogue_of(declaration.title(), op.configs);
  auto can = capabilities_of(declaration.title(), s.net.rank(), settings.on, op.configs, op.can_run, op.constraints,
                             [](const symmetric_config& c) { return c.demands(); });
  for (std::size_t i = 1; i < op.configs.size() && op.replayed; ++i) {
    if (op.configs[i]->can_be_captured() || !can.available.test(i)) continue;
    can.available.clear(i);
    can.missing.push_back(op.configs[i]->id() + ": the op's calls are replayed, and it cannot be captured");
  }
  if (const std::string why = why_not_compared(op); op.constraints.compare_trials && !why.empty())
    leave_default(can, op.configs, "NUMERICAL_CHECK is on, and " + why);
  available = std::move(can.available);
  unavailable = std::move(can.missing);
  limits = std::move(can.limits);
  faults = std::move(can.faults);
  remembered = settings.remembered;
  policy = settings.policy;
}

namespace {

std::vector<rank_id> ranks_of(const actors::op_declaration& op) {
  std::vector<rank_id> ranks;
  for (const auto& p : op.participants) ranks.push_back(p.rank);
  return ranks;
}

actors::coordinator_state coordinator_of(const actors::participant_state& mine) {
  actors::coordinator_state c;
  c.declaration = mine.declaration;
  c.generation = mine.generation;
  c.configs = mine.configs;
  return c;
}

}  // namespace

symmetric_end::leading::leading(actors::services& s, const symmetric_options& op, const symmetric_settings& settings,
                                const actors::participant_state& mine)
    : assigned(mine.declaration.default_digest, mine.declaration.default_config, op.dtype, ranks_of(mine.declaration),
               settings.policy, plan_for(op, settings.plan)),
      state(coordinator_of(mine)),
      leases(
          s, state,
          [source = op.rehearse] {
            auto id = source == nullptr ? std::vector<std::byte>() : source->make_id();
            if (id.size() > largest_id_bytes)
              runtime::raise({errc::bad_argument, "the id of a communicator is larger than 64 KiB"});
            return id;
          },
          path_of(op)) {
  state.assigned = &assigned;
  assigned.compare_calls_alone();
  if (path_of(op) == actors::trial_path::between_calls) assigned.trials_are_extra();
  if (op.constraints.compare_trials && why_not_compared(op).empty()) leases.compare_candidates();
}

symmetric_end::symmetric_end(actors::services& s, symmetric_options op, symmetric_settings settings)
    : op_end(kind::without_headers), services_(s), op_(std::move(op)), settings_(std::move(settings)),
      participant_(s, op_, settings_), rows_(s.ex, s.clocks.skew()), leases_(s, participant_, *this) {
  members_ = op_.ranks.empty() ? ranks_of(participant_.declaration) : op_.ranks;
  participant_.runs = this;
  participant_.rows = &rows_;
  leases_.on_generation_ended([this](const std::string& why) {
    if (failed_ && failed_->code() != errc::closed) return;  // more than a generation is lost already
    failed_ = error{errc::closed, declaration().about(services_.net.rank()),
                    "its generation has ended, " + why +
                        "; recover as after a lost communicator, then call rejoin on every member"};
    participant_.changed.tell();
    running_.for_each([](running& r) { r.within.cancel(errc::closed); });
  });
  if (participant_.declaration.leader == s.net.rank()) {
    lead_ = std::make_unique<leading>(s, op_, settings_, participant_);
    participant_.assigned = &lead_->assigned;
    lead_->actor = actors::spawn_coordinator(s, lead_->state);
    lead_->leases.start();
    leases_.on_new_key([this](std::uint64_t bytes) { lead_->leases.key_seen(bytes); });
  }
  actors::spawn_participant(s, participant_);
}

symmetric_end::~symmetric_end() { retire(); }

void symmetric_end::retire() noexcept {
  if (std::exchange(retired_, true)) return;
  actors::unbind_participant(services_, participant_);
  participant_.actor.stop();
  leases_.retire();
  if (lead_ != nullptr) {
    actors::unbind_coordinator(services_, lead_->state);
    lead_->actor.stop();
    lead_->leases.retire();
  }
}

bool symmetric_end::is_current() const {
  return participant_.generation == first_of(declaration(), services_.incarnations);
}

std::unique_ptr<symmetric_end> symmetric_end::next_generation(std::shared_ptr<communicator> over) {
  retire();
  symmetric_options op = op_;
  op.communicator = std::move(over);
  // This end lives as long as its rank, but must not keep objects of a library or a device. Calls in flight hold their own references.
  abandon();
  op_.communicator.reset();
  if (!leases_.is_rehearsing()) {
    scratch_.reset();
    reference_ = std::vector<std::byte>();
  }
  return std::make_unique<symmetric_end>(services_, std::move(op), settings_);
}

bool symmetric_end::ends_with(rank_id r) const noexcept {
  return std::find(members_.begin(), members_.end(), r) != members_.end();
}

bool symmetric_end::owes_messages() const noexcept {
  if (failed_) return false;
  return participant_.owed != 0 || (lead_ != nullptr && (lead_->state.owed != 0 || lead_->leases.owes_messages()));
}

const symmetric_config* symmetric_end::find(std::uint64_t digest) const noexcept {
  const auto index = participant_.configs.find(participant_.variant_of(digest));
  return index ? op_.configs[*index].get() : nullptr;
}

symmetric_call symmetric_end::call_of(std::uint64_t invocation, std::uint64_t bytes, communicator* over,
                                      symmetric_call::stream on) const noexcept {
  symmetric_call call;
  call.self = services_.net.rank();
  call.members = members_;
  call.bytes = bytes;
  call.invocation = invocation;
  call.communicator = over;
  call.on = on;
  call.replayed = op_.replayed && on == symmetric_call::stream::rehearsal;
  return call;
}

runtime::error_facts symmetric_end::about(std::uint64_t invocation, std::uint64_t bytes) const {
  runtime::error_facts facts = declaration().about(services_.net.rank());
  facts.invocation = invocation;
  facts.own_bytes = bytes;
  return facts;
}

failure symmetric_end::explained(errc code, const runtime::error_facts& about, const std::string& what,
                                 const std::vector<rank_id>& asked) const {
  services_.about_to_fail(code);
  failure why = in_words(code, about, what, asked);
  services_.call_failed(why.reason());
  return why;
}

failure symmetric_end::in_words(errc code, const runtime::error_facts& about, const std::string& what,
                                const std::vector<rank_id>& asked) const {
  if (failed_) return failure(while_in_flight(*failed_, about));
  std::string text = what;
  const bool unmet = asked.empty() && participant_.candidates.empty();
  if (code == errc::timeout) text += actors::said_by_peers(services_, declaration(), unmet ? members_ : asked);
  return failure({code, about, text});
}

// ---- calls ------------------------------------------------------------------------------------------------------------

symmetric_end::late_soon::late_soon(symmetric_end& mine, std::uint64_t call_bytes, time_ns until, time_ns span)
    : timer(&ask), end(mine), bytes(call_bytes) {
  const time_ns before_ns = end.services_.asked_before(span);
  if (before_ns != 0 && until != runtime::never) end.services_.ex.arm(*this, until - before_ns);
}

// At its gate, a call asks the members that it waits for. After the gate it asks all members, up to a limit, because a config does not
// say which members it waits for.
void symmetric_end::late_soon::ask(timer& self) noexcept {
  constexpr std::size_t most_asked = 16;
  auto& mine = static_cast<late_soon&>(self);
  const symmetric_end& end = mine.end;
  try {
    std::vector<rank_id> all = mine.begun ? std::vector<rank_id>() : end.leases_.awaited(mine.bytes);
    if (all.empty()) all = end.members_;
    std::erase(all, end.services_.net.rank());
    if (all.size() > most_asked) all.resize(most_asked);
    mine.asked = std::move(all);
  } catch (...) {}  // out of memory: asks no member
  const std::uint32_t key = tuning::size_bucket::of(mine.bytes).index();
  for (const rank_id r : mine.asked)
    actors::ask_what_it_does(end.services_, end.declaration(), end.participant_.generation, r, key);
}

std::string symmetric_end::progress_in_words(std::uint32_t key) const {
  return "has made " + std::to_string(leases_.calls_begun(key)) + " calls of it of that size";
}

task<> symmetric_end::run(std::span<std::byte> data, symmetric_call_options call) {
  return run(nullptr, data, call.bytes != 0 ? call.bytes : data.size(), call.timeout.count());
}

task<> symmetric_end::run(symmetric_caller& caller, symmetric_call_options call) {
  return run(&caller, {}, call.bytes, call.timeout.count());
}

task<> symmetric_end::run(symmetric_caller* caller, std::span<std::byte> data, std::uint64_t bytes,
                          time_ns timeout_ns) {
  runtime::check_call(services_.ex, title());
  runtime::scope& here = co_await runtime::this_scope;
  const runtime::work_meter::wait uncharged(here.meter());
  if (const auto there = memory().check(data, alignment_of(op_)); !there)
    runtime::raise({there.code(), declaration().about(services_.net.rank()), there.reason().text()});
  const time_ns span_ns = timeout_ns != 0 ? timeout_ns : op_.timeout.count();
  const time_ns until = services_.until(span_ns);
  late_soon asks(*this, bytes, until, span_ns);
  const time_ns asked_ns = rows_.clock();
  auto begun = co_await leases_.start(bytes, until);
  if (!begun) {
    record_unbegun(bytes, asked_ns);
    runtime::error_facts facts = about(leases_.next_invocation(bytes), bytes);
    facts.unmet = leases_.unmet(bytes);
    if (!failed_) facts.peer = leases_.late(bytes);
    throw explained(begun.code(), facts, "the call has not begun: it waited " + leases_.missing(bytes), asks.asked);
  }
  asks.begun = true;
  const actors::leased l = *begun;
  const bool timed = l.what.of != actors::lease::part::steady || (lead_ != nullptr && lead_->assigned.measuring());
  const auto clock = [this, timed] {
    rows_.set_measuring(timed);
    return rows_.clock();
  };
  time_ns start_ns = clock();
  errc outcome = errc::none;
  std::string text;
  const symmetric_config* const config = find(l.what.digest);
  if (failed_) {  // since the gate let the call go
    outcome = failed_->code();
    text = "it had not begun";
  } else if (config == nullptr || !participant_.may_run(l.what.digest)) {
    runtime::blame({"S3", "only what was warmed here is leased", {declaration().id(), services_.net.rank()}},
                   declaration().leader);
    outcome = errc::config_mismatch;
    text = "the lease names a config that was not warmed here";
  } else {
    std::exception_ptr thrown;
    const std::shared_ptr<communicator> over = op_.communicator;
    const symmetric_call now = call_of(l.what.invocation, bytes, over.get(), symmetric_call::stream::user);
    try {
      if (caller == nullptr) {
        co_await implement([&] { return config->run(now, data); }, *config, until, l, start_ns);
      } else {
        co_await implement([&] { return caller->prepare(now, *config); }, *config, until, l, start_ns);
        if (timed) start_ns = clock();
        co_await implement([&] { return caller->call(now, *config); }, *config, until, l, start_ns);
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    if (thrown) {
      const error why = runtime::describe(thrown);
      const bool ended = why.code() == errc::cancelled || why.code() == errc::timeout || failed_;
      outcome = ended ? why.code() : errc::config_failed;
      text = "config " + config->id() + ": " + why.what();
    }
  }
  const time_ns end_ns = clock();
  record(l, start_ns, end_ns, outcome);
  leases_.ended(l, start_ns, end_ns, outcome, text);
  if (outcome == errc::none) co_return;
  runtime::error_facts facts = about(l.what.invocation, bytes);
  if (config != nullptr) facts.config = config->id();
  if (outcome == errc::timeout) facts.unmet = runtime::awaited::config;
  throw explained(outcome, facts, text, asks.asked);
}

template <class Start>
task<> symmetric_end::implement(Start start, const symmetric_config& config, time_ns until, const actors::leased& l,
                                time_ns since_ns) {
  runtime::scope& here = co_await runtime::this_scope;
  const runtime::implementation mine(here, title(), config.id());
  running me(here, until, mine, l, since_ns);
  running_.push_back(me);
  me.within.spawn(start());
  co_await me.within.join();
  // A config that ends normally after it was cancelled may have left out half of its work.
  if (me.within.cancelled() != errc::none) runtime::raise(me.within.cancelled());
}

void symmetric_end::list_waiting(runtime::waiting_list& all) {
  runtime::waiting_call of;
  of.what = "call";
  of.op = declaration().title();
  of.id = declaration().id();
  of.generation = leases_.generation();
  running_.for_each([&](const running& r) {
    runtime::waiting_call& w = all.calls.emplace_back(of);
    w.invocation = r.of.what.invocation;
    w.tag = r.of.key;
    w.bytes = r.of.bytes;
    w.since_ns = r.since_ns;
    const symmetric_config* const config = find(r.of.what.digest);
    w.lacks = "its config, which may wait for the other members";
    if (config != nullptr) w.op += " (config " + config->id() + ")";
  });
  leases_.list_waiting(of, all);
}

void symmetric_end::record_unbegun(std::uint64_t bytes, time_ns asked_ns) {
  services_.flight.add({.op = declaration().id(),
                        .generation = leases_.generation(),
                        .invocation = leases_.next_invocation(bytes),
                        .bytes = bytes,
                        .began_ns = asked_ns,
                        .ended_ns = rows_.clock(),
                        .tag = tuning::size_bucket::of(bytes).index(),
                        .what = runtime::flight_event::send_failed});
}

void symmetric_end::record(const actors::leased& l, time_ns start_ns, time_ns end_ns, errc outcome) {
  services_.flight.add(
      {.op = declaration().id(),
       .generation = leases_.generation(),
       .invocation = l.what.invocation,
       .digest = l.what.digest,
       .bytes = l.bytes,
       .began_ns = start_ns,
       .ended_ns = end_ns,
       .tag = l.key,
       .what = outcome == errc::none ? runtime::flight_event::sent : runtime::flight_event::send_failed,
       .flags = static_cast<std::uint8_t>(l.what.of == actors::lease::part::steady ? 0 : 1)});
  if (lead_ == nullptr || outcome != errc::none) return;
  // The cost of leased trials is predicted from the default's time.
  if (l.what.digest == declaration().default_digest && lead_->assigned.measuring())
    lead_->assigned.note_default(l.bytes, end_ns - start_ns);
  if (l.what.of == actors::lease::part::steady &&
      lead_->assigned.note_call(l.bytes, l.what.digest, end_ns - start_ns, services_.ex.now()) &&
      lead_->state.look_again)
    lead_->state.look_again();
}

void symmetric_end::fail(const error& why) noexcept {
  const bool first = !failed_;
  // `fenced` replaces an earlier error, because this rank's earlier losses no longer count, and `peer_restarted`, because a new process has
  // come. After `closed`, every error replaces it, because then more than a generation is lost.
  if (first || why.code() == errc::fenced || why.code() == errc::peer_restarted || failed_->code() == errc::closed)
    failed_ = why;
  participant_.changed.tell();
  if (!first) return;
  if (lead_ != nullptr) lead_->leases.stop();
  leases_.fail(why.code());
  running_.for_each([&](running& r) { r.within.cancel(why.code()); });
  abandon();
}

// If this rank is fenced, or has lost a member, it cannot continue in the same place.
bool symmetric_end::rejoin(std::shared_ptr<communicator> over) {
  if (failed_ && failed_->code() != errc::closed) return false;
  if (!leases_.rejoin()) return false;
  op_.communicator = std::move(over);
  failed_.reset();
  return true;
}

// ---- rehearsals -------------------------------------------------------------------------------------------------------

task<> symmetric_end::rehearse(std::uint64_t digest) {
  const symmetric_config* const config = find(digest);
  if (config == nullptr) runtime::raise({errc::config_mismatch, "a config that this rank does not have"});
  co_await config->warm();
}

task<> symmetric_end::connect(std::vector<std::byte> id) {
  if (op_.rehearse == nullptr) co_return;
  auto made = co_await op_.rehearse->connect(std::move(id));
  if (made == nullptr) runtime::raise({errc::bad_argument, "its communicator_source returned no communicator"});
  if (failed_) {
    made->abort();
    runtime::raise(*failed_);
  }
  rehearsing_over_ = std::move(made);
}

task<> symmetric_end::run_scratch(actors::rehearsal_run run, std::uint64_t bytes, std::string& unlike) {
  const symmetric_config* const config = find(run.digest);
  if (config == nullptr || !participant_.may_run(run.digest))
    runtime::raise({errc::config_mismatch, "a config that was not warmed here"});
  co_await make_scratch(bytes);
  const scratch_guard guard(memory(), scratch_->bytes());
  const std::span<std::byte> scratch = guard.buffer();
  const auto type = tuning::number_type_of(op_.dtype);
  const bool compared = run.what != actors::rehearsal_run::kind::timed && type.has_value();
  if (compared) co_await fill_scratch(scratch, *type);
  const std::shared_ptr<communicator> over = rehearsing_over_;
  if (op_.rehearse != nullptr && over == nullptr)
    runtime::raise({errc::cancelled, "its communicator for rehearsals has been given up"});
  const symmetric_call call = call_of(run.index, bytes, over.get(), symmetric_call::stream::rehearsal);
  runtime::scope& here = co_await runtime::this_scope;
  {
    const runtime::implementation mine(here, title(), config->id());
    runtime::scope own(here, {.inside = &mine});
    own.begin(config->run(call, scratch));
    co_await own.join();
  }
  try {
    co_await guard.check();
  } catch (...) {
    scratch_.reset();  // the next run begins with an intact guard
    throw;
  }
  if (compared) co_await compare_scratch(run, scratch, *type, unlike);
}

runtime::memory_space& symmetric_end::memory() const noexcept {
  return op_.memory != nullptr ? *op_.memory : runtime::host_memory();
}

// Each compared run begins with the same numbers. They differ between members, so that a sum shows whether each member's part is in it.
task<> symmetric_end::fill_scratch(std::span<std::byte> scratch, tuning::number_type type) {
  std::vector<std::byte> numbers(scratch.size());
  const auto me = std::find(members_.begin(), members_.end(), services_.net.rank());
  tuning::fill_with_numbers(type, numbers, static_cast<std::uint64_t>(me - members_.begin()));
  co_await memory().copy(scratch, numbers);
}

task<> symmetric_end::compare_scratch(actors::rehearsal_run run, std::span<std::byte> scratch, tuning::number_type type,
                                      std::string& unlike) {
  std::vector<std::byte> came(scratch.size());
  co_await memory().copy(came, scratch);
  scratch_.reset();  // the next timed run begins with zeros
  if (run.what == actors::rehearsal_run::kind::reference) {
    reference_ = std::move(came);
    co_return;
  }
  if (reference_.size() != came.size())
    runtime::raise({errc::config_failed, "the default has no results to compare with"});
  const tuning::numerical_check within = tuning::tolerance_of(op_.constraints);
  if (const auto bad = tuning::first_unlike(type, came, reference_, within))
    unlike = "its results differ from the default's: " + tuning::sentence(*bad, within);
}

// Filled with zeros, which are valid numbers of every type.
task<> symmetric_end::make_scratch(std::uint64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes) + guard_bytes;
  if (scratch_ != nullptr && scratch_->bytes().size() == size) co_return;
  auto made = memory().make(size);
  if (op_.memory != nullptr) {
    const std::vector<std::byte> zeros(size);
    co_await memory().copy(made->bytes(), zeros);
  }
  const scratch_guard guard(memory(), made->bytes());
  co_await guard.set();
  scratch_ = std::move(made);
}

void symmetric_end::abandon() noexcept {
  if (rehearsing_over_ != nullptr) rehearsing_over_->abort();
  rehearsing_over_.reset();
}

bool symmetric::rejoin(std::shared_ptr<communicator> over) {
  if (idle()) return false;
  symmetric_end& mine = end_or_raise();
  return mine.is_current() ? mine.rejoin(std::move(over)) : place_.rejoin(std::move(over));
}

agreement symmetric::agreed() const { return end_or_raise().agreed(); }

task<> symmetric::run_bytes(std::span<std::byte> data, symmetric_call_options call) const {
  return end_or_raise().run(data, call);
}

symmetric_end& symmetric::end_or_raise() const {
  if (idle())
    runtime::raise({errc::bad_argument, "op " + name_ + " has no part for this rank; it is not among its members"});
  return *place_;
}

symmetric::symmetric(rank& self, symmetric_options op) {
  op_host& host = op_host::of(self);
  const auto d = declaration_of(op, self.world_size()).value();
  name_ = op.name;
  const auto me = [&self](const auto& p) { return p.rank == self.id(); };
  if (std::none_of(d.participants.begin(), d.participants.end(), me)) {
    host.note_idle(op.name);
    return;
  }
  host.check_new(d);
  op.constraints = tuning::both(op.constraints, host.settings_->constraints);
  if (const std::string why = why_not_compared(op); op.constraints.compare_trials && !why.empty())
    host.results_.warn({d.title() + ": NUMERICAL_CHECK is on, and " + why + "; only its default runs"});
  symmetric_settings own{host.settings_->policy, host.settings_->plan, host.remember(d, op.configs), &host.machine_};
  auto end = std::make_unique<symmetric_end>(host.services_, std::move(op), std::move(own));
  place_ = {host, host.add(std::move(end))};
  self_ = self.id();
  host.note_group(d);
  host.end_if_lost();
}

}  // namespace parley::ops
