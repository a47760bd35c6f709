#include <parley/ops/kernels/role_end.hpp>

#include <parley/actors/agreement/ended.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/core/op_results.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/time/work_meter.hpp>

#include <exception>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

namespace {

constexpr time_ns decided_within_ns = 30'000'000'000;

// The name includes the role, because results of one role say nothing about another.
actors::op_declaration declare(const role_options& o, rank_id self) {
  actors::op_declaration d;
  d.name = o.name + "/" + o.role;
  d.scheme = "alone";
  d.participants = {{self, o.role}};
  d.leader = self;
  d.default_config = o.configs.front()->id();
  d.default_digest = o.configs.front()->digest();
  return d;
}

std::vector<actors::remembered_best> recall(rank& self, const actors::op_declaration& op,
                                            const tuning::catalogue& configs) {
  std::vector<std::string> ids;
  for (const auto& c : configs.entries()) ids.push_back(c.id);
  op_memory memory = recall_op(self.remembered(), op, ids);
  for (std::string& w : memory.warnings) actors::warn(self.services(), std::move(w));
  return std::move(memory.entries);
}

}  // namespace

role_end::role_end(rank& self, const role_options& o)
    : services_(self.services()), configs_(o.configs),
      assigned_(o.configs.front()->digest(), o.configs.front()->id(), {}, {self.id()}, self.settings().policy,
                self.settings().plan),
      rows_(services_.ex) {
  auto& op = participant_.declaration;
  op = declare(o, self.id());
  participant_.generation = actors::first_generation(op, services_.incarnations);
  participant_.role = o.role;
  participant_.configs = catalogue_of(op.title(), configs_);
  const tuning::constraints allowed = tuning::both(o.constraints, self.settings().constraints);
  auto can = capabilities_of(op.title(), self.id(), &self.machine(), configs_, {}, allowed,
                             [](const role_function_config& c) { return c.demands(); });
  if (allowed.compare_trials && configs_.size() > 1) {
    const char* const why = "NUMERICAL_CHECK is on, but a call runs only one function, so nothing can be compared";
    leave_default(can, configs_, why);
    actors::warn(services_, op.title() + ": " + why + "; only its default runs");
  }
  participant_.available = std::move(can.available);
  participant_.unavailable = std::move(can.missing);
  participant_.limits = std::move(can.limits);
  participant_.faults = std::move(can.faults);
  participant_.remembered = recall(self, op, participant_.configs);
  participant_.policy = self.settings().policy;
  participant_.runs = this;
  participant_.rows = &rows_;
  participant_.assigned = &assigned_;
  coordinator_.declaration = op;
  coordinator_.generation = participant_.generation;
  coordinator_.configs = participant_.configs;
  coordinator_.assigned = &assigned_;
}

void role_end::start() {
  actors::spawn_coordinator(services_, coordinator_);
  actors::spawn_participant(services_, participant_);
  started_ = true;
}

role_end::~role_end() {
  if (!started_) return;
  actors::unbind_participant(services_, participant_);
  actors::unbind_coordinator(services_, coordinator_);
}

agreement role_end::agreed() noexcept { return {services_, participant_, failed_, decided_within_ns}; }

// Not rehearsed: on scratch data, the function might wait for a partner that does not take part in the rehearsal.
task<> role_end::rehearse(std::uint64_t) { co_return; }

void role_end::fail(const error& why) noexcept {
  failed_ = why;
  participant_.changed.tell();
}

task<> role_end::run(std::span<std::byte> data) {
  const runtime::op_title title{"role op", participant_.declaration.name};
  runtime::check_call(services_.ex, title);
  if (failed_) throw failure(*failed_);
  const std::uint64_t n = next_++;
  const auto chosen = assigned_.choose(data.size(), 0, n, services_.ex.now());
  actors::stamp mark;  // as if the call were a message
  mark.op = participant_.declaration.id();
  mark.generation = participant_.generation;
  mark.digest = chosen.digest;
  mark.total_bytes = data.size();
  mark.flags = chosen.flags;
  const role_function_config_ptr config = configs_[*participant_.configs.find(chosen.digest)];
  const time_ns began_ns = services_.ex.precise_now();
  runtime::scope& here = co_await runtime::this_scope;
  runtime::work_meter meter(services_.ex);
  std::exception_ptr thrown;
  {
    const runtime::implementation mine(here, title, config->id());
    runtime::scope measured(here, {.meter = &meter, .inside = &mine});
    measured.spawn(config->run(data));
    try {
      co_await measured.join();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  const time_ns worked_ns = meter.worked_ns();
  if (!thrown) {
    end(mark, n, began_ns, worked_ns, nullptr);
    co_return;
  }
  const error why = runtime::describe(thrown);
  end(mark, n, began_ns, worked_ns, &why);
  std::rethrow_exception(thrown);
}

// A row gets the charged time; the flight recorder gets the elapsed time.
void role_end::end(const actors::stamp& mark, std::uint64_t invocation, time_ns began_ns, time_ns worked_ns,
                   const error* thrown) {
  const errc outcome = thrown == nullptr ? errc::none : thrown->code();
  const auto ran = mark.digest;
  services_.flight.add(
      {.op = mark.op,
       .generation = mark.generation,
       .invocation = invocation,
       .digest = ran,
       .bytes = mark.total_bytes,
       .began_ns = began_ns,
       .ended_ns = services_.ex.precise_now(),
       .what = outcome == errc::none ? runtime::flight_event::sent : runtime::flight_event::send_failed,
       .flags = static_cast<std::uint8_t>(static_cast<unsigned>(mark.flags) & 7U)});
  if (!is_plain(mark.flags))
    actors::note_trial(rows_,
                       {.mark = mark, .invocation = invocation, .ran = ran, .began_ns = began_ns, .outcome = outcome},
                       began_ns + worked_ns);
  if (thrown == nullptr) {
    if (ran == participant_.declaration.default_digest) assigned_.note_default(mark.total_bytes, worked_ns);
    return;
  }
  services_.call_failed(*thrown);
  if (actors::blames_config(outcome))
    assigned_.quarantine(mark.total_bytes, ran, services_.ex.now(), "it threw " + thrown->what());
}

role_op::role_op(rank& self, const role_options& o) : end_(&*self.attach(std::make_unique<role_end>(self, o))) {
  end_->start();
}

const std::string& role_op::role() const noexcept {
  static const std::string none = "idle";
  return idle() ? none : end_->as_participant()->role;
}

task<> role_op::run(std::span<std::byte> data) { return end_or_raise().run(data); }

agreement role_op::agreed() const { return end_or_raise().agreed(); }

const actors::search* role_op::search_of(std::uint64_t bytes) const { return end_or_raise().assigned().find(bytes); }

role_end& role_op::end_or_raise() const {
  if (idle()) runtime::raise({errc::bad_argument, "an idle rank has no operation to run"});
  return *end_;
}

}  // namespace parley::ops
