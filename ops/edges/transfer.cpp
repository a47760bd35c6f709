#include <parley/transfer.hpp>

#include <parley/ops/core/op_host.hpp>
#include <parley/ops/edges/declared_edge.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>
#include <parley/rank.hpp>

#include <algorithm>
#include <set>

namespace parley::ops {

using runtime::errc;
using runtime::error;

namespace {

std::string listed(const std::vector<rank_id>& ranks) {
  std::string text;
  for (const rank_id r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text.empty() ? "none" : text;
}

/// A likely reason, to be appended to an error about an edge.
std::string hint_for(rank_id world_size) {
  return world_size == 1
             ? "; this rank was started alone: give -n 2 to `parley run` or `parley tune`, or --sim 2 to the "
               "program"
             : "";
}

}  // namespace

runtime::result<std::vector<std::pair<rank_id, rank_id>>> pair_up(const transfer_options& op, rank_id world_size) {
  const std::string title = "op " + op.name;
  if (const auto listed = check_catalogue(op.name, op.configs); !listed) return listed.reason();
  if (const auto timed = check_timeout(op.name, op.timeout); !timed) return timed.reason();
  auto edges = op.edges;
  if (edges.empty()) {
    if (!op.role) return error{errc::bad_argument, title + " has neither a role function nor edges"};
    std::vector<rank_id> senders;
    std::vector<rank_id> receivers;
    std::string others;
    for (rank_id r = 0; r < world_size; ++r) {
      switch (const role its = op.role(r)) {
        case role::sender: senders.push_back(r); break;
        case role::receiver: receivers.push_back(r); break;
        case role::idle: break;
        default: others += "; \"" + std::string(name(its)) + "\", which rank " + std::to_string(r) + " is, is neither";
      }
    }
    if (senders.size() != receivers.size() || senders.empty())
      return error{errc::role_conflict,
                   title + ": in a world of " + std::to_string(world_size) + " the senders are " + listed(senders) +
                       " and the receivers " + listed(receivers) + others +
                       "; each sender needs one receiver of its own, so change the role function or list the edges" +
                       hint_for(world_size)};
    for (std::size_t i = 0; i < senders.size(); ++i) edges.emplace_back(senders[i], receivers[i]);
  }
  std::set<std::pair<rank_id, rank_id>> seen;
  for (const auto& [from, to] : edges) {
    const std::string edge = title + ": edge " + std::to_string(from) + "->" + std::to_string(to);
    if (from >= world_size || to >= world_size)
      return error{errc::bad_argument, edge + " names a rank outside the world of " + std::to_string(world_size) +
                                           "; ranks count from 0" + hint_for(world_size)};
    if (from == to) return error{errc::bad_argument, edge + " is a self-send; a transfer needs two ranks"};
    if (!seen.emplace(from, to).second) return error{errc::role_conflict, edge + " is listed twice"};
  }
  return edges;
}

namespace {

constexpr std::uint32_t tuning_tag = 0xffffffffU;
constexpr std::uint64_t most_tuning_messages = 10'000;
constexpr time_ns tuning_pause_ns = 1'000'000;
constexpr time_ns credit_pause_ns = 20'000;
constexpr time_ns longest_for_credit_ns = 2'000'000;

// A put is tried only with a credit, and messages in quick succession leave the credit no time to arrive.
runtime::task<> until_credit(edge_out& edge, runtime::executor& ex, std::uint64_t bytes) {
  const time_ns until = ex.deadline_in(longest_for_credit_ns);
  while (!edge.knows_where(tuning_tag, bytes) && ex.now() < until) {
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(credit_pause_ns));
    if (!slept) runtime::raise(slept.reason());
  }
}

// Sends until each size is decided; an empty message ends the phase at the receiver.
runtime::task<> tune_out(edge_out& edge, runtime::executor& ex, std::vector<std::uint64_t> sizes_bytes) {
  call_options in_the_phase;
  in_the_phase.tag = tuning_tag;
  in_the_phase.trials.pace = actors::pacing::at_once;
  for (const std::uint64_t bytes : sizes_bytes) {
    const auto block = edge.memory().make(bytes);
    const std::span<std::byte> scratch = block->bytes();
    const auto memory = edge.registered(scratch);
    for (std::uint64_t i = 0; i < most_tuning_messages && bytes != 0; ++i) {
      co_await until_credit(edge, ex, bytes);
      co_await edge.send(scratch, in_the_phase);
      const actors::search* c = edge.assigned().find(bytes);
      if (c->is_decided()) break;
      if (c->where() == actors::search::stage::trying) continue;
      auto slept = co_await runtime::sleep_for(
          std::chrono::nanoseconds(tuning_pause_ns));  // the search waits for control messages, not for traffic
      if (!slept) runtime::raise(slept.reason());
    }
  }
  co_await edge.send({}, in_the_phase);
}

runtime::task<> tune_in(edge_in& edge, std::uint64_t largest_bytes) {
  const std::shared_ptr<runtime::memory_space::block> block = edge.memory().make(largest_bytes);
  const std::span<std::byte> scratch = block->bytes();
  auto memory = edge.registered(scratch);
  memory.keep(block);
  std::uint64_t got = 1;
  while (got != 0) got = co_await edge.receive(scratch, {.tag = tuning_tag});
}

}  // namespace

edge_out& transfer::edge_to(rank_id peer) const {
  for (declared_edge* e : outs_) {
    if (e->peer() == peer) return e->out();
  }
  throw_no_edge("does not send to rank", peer, "`to`");
}

edge_in& transfer::edge_from(rank_id peer) const {
  for (declared_edge* e : ins_) {
    if (e->peer() == peer) return e->in();
  }
  throw_no_edge("does not receive from rank", peer, "`from`");
}

agreement transfer::to(rank_id peer) const { return edge_to(peer).agreed(); }
agreement transfer::from(rank_id peer) const { return edge_from(peer).agreed(); }
agreement transfer::with(rank_id peer) const {
  const auto is_it = [peer](const declared_edge* e) { return e->peer() == peer; };
  if (std::any_of(outs_.begin(), outs_.end(), is_it)) return to(peer);
  if (std::any_of(ins_.begin(), ins_.end(), is_it)) return from(peer);
  throw_no_edge("has no messages with rank", peer, "the partner");
}
std::uint64_t transfer::generation_with(rank_id peer) const { return edge_to(peer).participant().generation; }

std::uint64_t transfer::copied_bytes() const noexcept {
  std::uint64_t all = 0;
  for (const auto* edges : {&outs_, &ins_}) {
    for (const declared_edge* e : *edges) all += e->copied_bytes();
  }
  return all;
}

runtime::task<> transfer::tune(std::vector<std::uint64_t> sizes_bytes) {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope edges(here);
  const std::uint64_t largest = sizes_bytes.empty() ? 0 : *std::max_element(sizes_bytes.begin(), sizes_bytes.end());
  for (declared_edge* e : outs_) edges.spawn(tune_out(e->out(), here.where(), sizes_bytes));
  for (declared_edge* e : ins_) edges.spawn(tune_in(e->in(), largest));
  co_await edges.join();
}

actors::registered_memory transfer::register_bytes(std::span<std::byte> memory) {
  actors::registered_memory made;
  const auto with = [&](edge_end& e) {
    if (made) {
      e.add_memory(made.region());
    } else {
      made = e.registered(memory);
    }
  };
  for (declared_edge* e : outs_) with(e->out());
  for (declared_edge* e : ins_) with(e->in());
  return made;
}

// `start` gets no scope from its caller, so the call itself cannot see that a config made it.
void transfer::check_caller() const { runtime::check_call(*where_, {"op", name_}); }

namespace {
// `it sends to ranks 1, 2 and receives from rank 3`
std::string partners_of(const std::vector<declared_edge*>& outs, const std::vector<declared_edge*>& ins) {
  const auto ranks = [](const std::vector<declared_edge*>& edges) {
    std::vector<rank_id> all;
    for (const declared_edge* e : edges) all.push_back(e->peer());
    return (all.size() == 1 ? "rank " : "ranks ") + listed(all);
  };
  if (outs.empty() && ins.empty()) return "no edge and no role of the op names this rank";
  const std::string sends = outs.empty() ? "" : "sends to " + ranks(outs);
  const std::string receives = ins.empty() ? "" : "receives from " + ranks(ins);
  return "it " + sends + (outs.empty() || ins.empty() ? "" : " and ") + receives;
}
}  // namespace

void transfer::throw_no_edge(const char* lacks, rank_id peer, const char* option) const {
  if (where_ == nullptr) runtime::raise({errc::bad_argument, "this handle is of no op; make one with its constructor"});
  runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " " + lacks + " " +
                                          std::to_string(peer) + "; check " + option + ": " +
                                          partners_of(outs_, ins_)});
}

agreement transfer::agreed() const {
  if (outs_.size() + ins_.size() == 1)
    return outs_.empty() ? ins_.front()->in().agreed() : outs_.front()->out().agreed();
  const std::string mine = "rank " + std::to_string(self_);
  runtime::raise({errc::bad_argument, "op " + name_ + ": " +
                                          (idle() ? mine + " has no decisions of this op: "
                                                  : "say which partner of " + mine + " is meant; ") +
                                          partners_of(outs_, ins_)});
}

bool transfer::rejoin() {
  bool any = false;
  for (declared_edge* e : outs_) any = e->rejoin() || any;
  for (declared_edge* e : ins_) any = e->rejoin() || any;
  return any;
}

void transfer::retune(std::optional<std::uint64_t> bytes, std::string_view why) const {
  for (declared_edge* e : outs_) e->out().agreed().retune(bytes, why);
  for (declared_edge* e : ins_) e->in().agreed().retune(bytes, why);
}

transfer::transfer(rank& self, const transfer_options& op)
    : transfer(op_host::of(self), op, pair_up(op, self.world_size()).value(), {}) {}

transfer::transfer(op_host& host, const transfer_options& op, const edge_list& edges,
                   const std::shared_ptr<const std::vector<rank_id>>& restart_group)
    : name_(op.name), where_(&host.where()), self_(host.id()) {
  for (const auto& [from, to] : edges) {
    edge_options o = options_of(op, *host.settings_, host.machine_);
    o.restart_group = restart_group;
    if (from == self_) {
      o.peer = to;
      outs_.push_back(&host.declare(std::move(o), declared_edge::end::out));
    } else if (to == self_) {
      o.peer = from;
      ins_.push_back(&host.declare(std::move(o), declared_edge::end::in));
    }
  }
}

}  // namespace parley::ops
