#include <parley/pipeline.hpp>

#include <parley/compute.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/ops/edges/declared_edge.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/scope.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

time_ns pipeline_stage::modelled_ns(std::uint64_t, std::size_t) const { return 0; }
void pipeline_work::on_done(std::uint64_t) {}

task<> pipeline_stage::work(std::uint64_t microbatch, std::span<std::byte> activation) {
  auto step = [this, microbatch, activation] { forward(microbatch, activation); };
  co_await runtime::compute(step, modelled_ns(microbatch, activation.size()));
}

namespace {

// Receives an activation. Refuses one of another size (the stages' sizes differ then) or of another run. The sender gets the refusal.
task<> bring(edge_in& in, std::span<std::byte> into, std::uint16_t run) {
  call_options o;
  o.least_bytes = into.size();
  o.type = run;
  const std::uint64_t got = co_await in.receive(into, o);
  static_cast<void>(got);
}

task<> pass_on(edge_out& out, std::span<const std::byte> activation, std::uint16_t run) {
  call_options o;
  o.type = run;
  co_await out.send(activation, o);
}

// One of two buffers, with the messages of one microbatch. One buffer is computed on while the other moves.
struct slot {
  std::span<std::byte> bytes() const { return memory->bytes(); }
  std::shared_ptr<runtime::memory_space::block> memory;
  actors::registered_memory registered;
  std::optional<runtime::scope> arriving;
  std::optional<runtime::scope> leaving;
};
using slots = std::array<slot, 2>;

// Ends messages in flight, and waits until the transports have released the buffer.
task<> let_go(runtime::scope& moving) {
  moving.cancel();
  try {
    co_await moving.join();
  } catch (...) {  // the error that ended the run was thrown already
  }
}

task<> relay(edge_in* in, edge_out* out, std::span<const std::uint64_t> bytes, std::uint16_t run, pipeline_work& stage,
             runtime::op_title op, slots& both) {
  runtime::scope& here = co_await runtime::this_scope;
  if (in != nullptr && !bytes.empty()) both[0].arriving->spawn(bring(*in, both[0].bytes().first(bytes[0]), run));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    slot& now = both[i % 2];
    slot& next = both[(i + 1) % 2];
    co_await now.arriving->join();
    // The next activation is received into the other buffer as soon as the previous activation in that buffer has been sent.
    if (i + 1 < bytes.size()) {
      co_await next.leaving->join();
      if (in != nullptr) next.arriving->spawn(bring(*in, next.bytes().first(bytes[i + 1]), run));
    }
    const std::span<std::byte> activation = now.bytes().first(bytes[i]);
    {
      const runtime::implementation mine(here, op, "stage");
      runtime::scope running(here, {.inside = &mine});
      running.begin(stage.work(i, activation));
      co_await running.join();
    }
    if (out != nullptr) now.leaving->spawn(pass_on(*out, activation, run));
    stage.on_done(i);
  }
  for (slot& s : both) co_await s.leaving->join();
}

}  // namespace

agreement pipeline::incoming() const {
  if (in_ == nullptr) runtime::raise({runtime::errc::bad_argument, "the first stage of a pipeline receives nothing"});
  return in_->in().agreed();
}

agreement pipeline::outgoing() const {
  if (out_ == nullptr) runtime::raise({runtime::errc::bad_argument, "the last stage of a pipeline sends nothing"});
  return out_->out().agreed();
}

decision pipeline::decision(std::uint64_t bytes, rank_id peer) const {
  if (out_ != nullptr && out_->peer() == peer) return outgoing().decision(bytes);
  if (in_ != nullptr && in_->peer() == peer) return incoming().decision(bytes);
  runtime::raise({runtime::errc::bad_argument, "op " + name_ + ": rank " + std::to_string(peer) +
                                                   " is neither the stage before this one nor the one behind it"});
}

bool pipeline::rejoin() {
  const bool before = in_ != nullptr && in_->rejoin();
  const bool any = (out_ != nullptr && out_->rejoin()) || before;
  if (!any) return false;
  *runs_ = 0;
  around_->begin_anew();
  return true;
}

task<> pipeline::run(std::span<const std::uint64_t> bytes, pipeline_work& stage) {
  if (idle())
    runtime::raise({errc::bad_argument, "this rank is not a stage of the pipeline; check its handle's idle() first"});
  runtime::scope& here = co_await runtime::this_scope;
  const runtime::op_title title{"op", name_};
  runtime::check_call(here.where(), title);
  if (around_ != nullptr) around_->throw_refused();
  const std::uint64_t this_run = around_ == nullptr ? 0 : around_->begin_run();
  const runtime::finally run_ends([around = around_, this_run] {
    if (around != nullptr) around->end_run(this_run);
  });
  call_guard now(around_);
  const std::uint16_t number = type_of_run((*runs_)++, bytes.size());
  runtime::memory_space& space = memory_ == nullptr ? runtime::host_memory() : *memory_;
  edge_in* const in = in_ == nullptr ? nullptr : &in_->in();
  edge_out* const out = out_ == nullptr ? nullptr : &out_->out();
  slots both;
  std::exception_ptr thrown;
  try {
    const std::uint64_t largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
    for (slot& s : both) {
      s.memory = space.make(largest);
      if (in != nullptr) s.registered = in->registered(s.bytes());
      s.registered.keep(s.memory);
      if (out != nullptr && s.registered) out->add_memory(s.registered.region());
      if (out != nullptr && !s.registered) s.registered = out->registered(s.bytes());
      s.arriving.emplace(here);
      s.leaving.emplace(here);
    }
    co_await relay(in, out, bytes, number, stage, title, both);
  } catch (...) {
    thrown = std::current_exception();
  }
  for (slot& s : both) {
    if (s.arriving) co_await let_go(*s.arriving);
    if (s.leaving) co_await let_go(*s.leaving);
  }
  now.end(thrown);
}

pipeline::pipeline(rank& self, pipeline_options op) {
  op_host& host = op_host::of(self);
  check_catalogue(op.name, op.configs).value();
  if (op.stages.empty()) {
    for (rank_id r = 0; r < self.world_size(); ++r) op.stages.push_back(r);
  }
  const std::size_t none = op.stages.size();
  std::vector<std::size_t> stage_on(self.world_size(), none);
  for (std::size_t i = 0; i < op.stages.size(); ++i) {
    const rank_id r = op.stages[i];
    if (r < self.world_size() && stage_on[r] == none) {
      stage_on[r] = i;
      continue;
    }
    runtime::raise({errc::bad_argument,
                    "op " + op.name + ": stage " + std::to_string(i) + " is on rank " + std::to_string(r) +
                        (r >= self.world_size()
                             ? ", which is outside the world of " + std::to_string(self.world_size()) +
                                   "; ranks count from 0, and `parley run -n N PROGRAM`, or PROGRAM --sim N, starts N"
                             : ", which is stage " + std::to_string(stage_on[r]) + " already")});
  }
  name_ = op.name;
  if (stage_on[self.id()] == none) return;
  runs_ = std::make_shared<std::uint64_t>(0);
  stage_ = stage_on[self.id()];
  stages_ = op.stages.size();
  memory_ = op.memory;
  edge_options o = options_of(op, *host.settings_, host.machine_);
  o.budget_sharers = std::max<std::size_t>(stages_ - 1, 1);
  o.restart_group = std::make_shared<std::vector<rank_id>>(op.stages);
  if (stage_ > 0) {
    o.peer = op.stages[stage_ - 1];
    in_ = &host.declare(o, declared_edge::end::in);
    in_->make();
  }
  if (stage_ + 1 < stages_) {
    o.peer = op.stages[stage_ + 1];
    out_ = &host.declare(o, declared_edge::end::out);
    out_->make();
  }
  if (stages_ == 1) return;
  std::vector<declared_edge*> edges;
  std::string stages;
  for (const rank_id r : op.stages) stages += (stages.empty() ? "" : " ") + std::to_string(r);
  neighbours::options around{
      .op = op.name, .listed = {}, .timeout_ns = op.timeout.count(), .declared = {{"stages on ranks", stages}}};
  for (declared_edge* const e : {in_, out_}) {
    if (e == nullptr) continue;
    edges.push_back(e);
    around.listed.push_back(e->peer());
  }
  around_ = &*self.attach(std::make_unique<neighbours>(host.services_, std::move(edges), std::move(around)));
}

}  // namespace parley::ops
