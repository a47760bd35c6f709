// The common part of both ends of an edge.
#include <parley/ops/edges/edge_end.hpp>

#include <parley/actors/inquiries.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::failure;

capabilities capabilities_of(const edge_options& o, const actors::op_declaration& op, const runtime::link& net) {
  auto found = capabilities_of(op.title(), net.rank(), o.on, o.configs, o.can_run, o.constraints,
                               [](const paired_config& c) { return c.demands(); });
  std::vector<const op_config*> plain;
  for (const auto& c : o.configs) plain.push_back(c.get());
  ask_each(found, plain, "the check whether it works over this rank's link", [&](std::size_t i) {
    const auto works = o.configs[i]->works_over(net, o.memory);
    return works ? std::string() : works.reason().text();
  });
  return found;
}

errc failure_of_config(const std::exception_ptr& thrown) {
  const errc code = runtime::describe(thrown).code();
  // A device failure is not the config's fault.
  const bool says_itself = code == errc::cancelled || code == errc::config_mismatch || code == errc::device_failed;
  return says_itself ? code : errc::config_failed;
}

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
  // Skips remembered configs that send by the piece. Keys contain the size alone, and this program's messages may have other pieces.
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
                                  options_.restart_group == nullptr ? alone : *options_.restart_group);
}

bool edge_end::is_current() const { return participant_.generation == generation_now(); }

bool edge_end::restarts_with(rank_id rank) const noexcept {
  const auto* const others = options_.restart_group.get();
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

// Skips withdrawn memory: the process that died had credits for it.
void edge_end::hand_over(edge_end& next) const {
  for (const auto& region : memory_) {
    if (region->where == actors::memory_region::state::exposed) next.add_memory(region);
  }
}

// Rounded up, because the pattern consists of whole words.
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

// If the machine refuses, the rehearsal continues without registered memory and fails, so that both sides agree that it failed.
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
  // The sender knows its own failures. But if it timed out, it does not know that this side's config was still running, so report that.
  const bool hung = in.sender_failure() == errc::timeout && !in.taken_back();
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

}  // namespace parley::ops
