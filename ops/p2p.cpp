#include <parley/ops/p2p.hpp>

#include <parley/runtime/call_step.hpp>

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

std::vector<rank_id> named_or_first(const std::vector<rank_id>& named, std::size_t count) {
  if (!named.empty()) return named;
  std::vector<rank_id> first(count);
  std::iota(first.begin(), first.end(), rank_id{0});
  return first;
}

bool takes_part(const point_to_point& op, rank_id r) {
  if (!op.ranks.empty()) return std::find(op.ranks.begin(), op.ranks.end(), r) != op.ranks.end();
  const auto has = [r](const auto& e) { return e.first == r || e.second == r; };
  return op.edges.empty() || std::any_of(op.edges.begin(), op.edges.end(), has);
}

runtime::result<paired_transfer> pairs_of(const point_to_point& op, rank_id self, rank_id world_size) {
  const std::string title = "op " + op.name;
  if (const auto listed = check_catalogue(op.name, op.configs); !listed) return listed.reason();
  for (std::size_t i = 0; i < op.ranks.size(); ++i) {
    const rank_id r = op.ranks[i];
    const auto to_here = op.ranks.begin() + static_cast<std::ptrdiff_t>(i);
    const bool again = std::find(op.ranks.begin(), to_here, r) != to_here;
    if (r < world_size && !again) continue;
    return error{errc::bad_argument,
                 title + ": its ranks name rank " + std::to_string(r) +
                     (again ? " twice" : ", which is outside the world of " + std::to_string(world_size))};
  }
  paired_transfer mine{.name = op.name,
                       .configs = op.configs,
                       .capable = op.capable,
                       .dtype = op.dtype,
                       .timeout_ns = op.timeout_ns,
                       .memory = op.memory,
                       .allowed = op.allowed};
  for (const auto& [from, to] : op.edges) {
    const std::string edge = title + ": edge " + std::to_string(from) + "->" + std::to_string(to);
    if (from >= world_size || to >= world_size)
      return error{errc::bad_argument, edge + " names a rank outside the world of " + std::to_string(world_size)};
    if (!takes_part(op, from) || !takes_part(op, to))
      return error{errc::bad_argument, edge + " names a rank that is not one of the op's"};
    if (from != to && (from == self || to == self)) mine.edges.emplace_back(from, to);
  }
  if (!op.edges.empty() || !takes_part(op, self)) return mine;
  for (rank_id peer = 0; peer < world_size; ++peer) {
    if (peer == self || !takes_part(op, peer)) continue;
    mine.edges.emplace_back(self, peer);
    mine.edges.emplace_back(peer, self);
  }
  return mine;
}

namespace {

std::string title_of(const p2p_operation& o, const std::string& op) {
  const bool sends = o.what == p2p_operation::kind::send;
  return "op " + op + ": " + (sends ? "a send to rank " : "a receive from rank ") + std::to_string(o.peer) + ", tag " +
         std::to_string(o.tag);
}

call_options options_of(const p2p_operation& o, std::uint64_t batch, call_watcher& watcher) noexcept {
  call_options all;
  all.trials.batch = batch;
  all.tag = o.tag;
  all.timeout_ns = o.timeout_ns;
  all.watcher = &watcher;
  all.expected = o.expected;
  all.type = o.type;
  all.pieces = o.pieces;
  return all;
}

// A receive that is expected: streams wait for it by themselves.
runtime::flow_step::on_device awaited_in(const runtime::memory_space& memory, const p2p_operation& o) noexcept {
  if (o.expected == 0) return {};
  return {&memory, runtime::flow_step::on_device::kind::awaited};
}

// What its hooks hear of an operation.
class told_operation {
 protected:
  told_operation(const p2p_operation& o, const std::string& op) : operation_(o), op_(op) {}
  std::string words() const { return title_of(operation_, op_); }
  bool sends() const noexcept { return operation_.what == p2p_operation::kind::send; }
  void tell_abandoned(const std::exception_ptr& why) noexcept {
    if (operation_.hooks == nullptr || std::exchange(over_, true)) return;
    const std::string text = why ? runtime::describe(why).text() : words() + " was not done";
    operation_.hooks->on_given_up(operation_, {errc::cancelled, text});
  }
  void end_with(std::uint64_t moved) {
    over_ = true;
    moved_ = moved;
    if (!sends() && operation_.hooks != nullptr) operation_.hooks->after_receive(operation_, moved_);
  }
  void fail_with(const runtime::failure& f) {
    over_ = true;
    const bool given_up = f.code() == errc::timeout || f.code() == errc::cancelled;
    if (given_up && operation_.hooks != nullptr) operation_.hooks->on_given_up(operation_, f.reason());
  }
  const p2p_operation operation_;
  const std::string& op_;
  std::uint64_t moved_ = 0;

 private:
  bool over_ = false;
};

template <class Call, class Edge>
class p2p_step : public runtime::call_step<Call>, protected told_operation, private call_watcher {
 public:
  p2p_step(Edge& edge, const p2p_operation& o, std::uint64_t batch, const std::string& op)
      : told_operation(o, op), edge_(edge), batch_(batch) {}
  std::string title() const final { return words(); }
  std::uint64_t bytes() const noexcept final { return moved_; }

 protected:
  void on_abandoned() noexcept override { tell_abandoned(this->thrown); }
  template <class Result>
  void end_as(Result result) {
    std::uint64_t moved = 0;
    try {
      moved = result();
    } catch (const runtime::failure& f) {
      fail_with(f);
      throw;
    }
    end_with(moved);
  }
  Edge& edge_;

 private:
  void go() noexcept final { this->begin(edge_, operation_.bytes, options_of(operation_, batch_, *this)); }
  bool comes_after(const runtime::flow_step& earlier, const runtime::buffer_access& use) final {
    return this->is_computed_on(edge_.memory(), earlier, use);
  }
  void on_begun() noexcept final { this->note_begun(); }
  runtime::scope& scope_of_rest(runtime::scope&) noexcept final { return this->own_scope(); }
  const std::uint64_t batch_;
};

class send_step final : public p2p_step<send_call, edge_out> {
  using p2p_step::p2p_step;
  void take(send_call& over) override {
    end_as([&] {
      over.await_resume();
      return operation_.bytes.size();
    });
  }
};

class receive_step final : public p2p_step<receive_call, edge_in> {
  using p2p_step::p2p_step;
  void take(receive_call& over) override {
    end_as([&] { return over.await_resume(); });
  }
  on_device part_of_device(const runtime::buffer_access&) const noexcept override {
    return awaited_in(edge_.memory(), operation_);
  }
  void on_abandoned() noexcept override {
    p2p_step::on_abandoned();
    edge_.memory().came(operation_.expected, errc::cancelled);
  }
};

class step_to_itself final : public runtime::flow_step, private told_operation, private call_watcher {
 public:
  step_to_itself(self_edge& edge, const p2p_operation& o, const std::string& op) : told_operation(o, op), edge_(edge) {}
  std::string title() const override { return words(); }
  std::uint64_t bytes() const noexcept override { return moved_; }
  task<> run() override {
    const call_options o = options_of(operation_, 0, *this);
    std::uint64_t moved = operation_.bytes.size();
    try {
      if (sends()) {
        co_await edge_.send(operation_.bytes, o);
      } else {
        moved = co_await edge_.receive(operation_.bytes, o);
      }
    } catch (const runtime::failure& f) {
      fail_with(f);
      throw;
    }
    end_with(moved);
  }
  on_device part_of_device(const runtime::buffer_access&) const noexcept override {
    return awaited_in(edge_.memory(), operation_);
  }

 private:
  bool comes_after(const flow_step& earlier, const runtime::buffer_access& use) override {
    return is_computed_on(edge_.memory(), earlier, use);
  }
  void on_begun() noexcept override { note_begun(); }
  void on_abandoned() noexcept override {
    tell_abandoned(thrown);
    if (!sends()) edge_.memory().came(operation_.expected, errc::cancelled);
  }
  self_edge& edge_;
};

// A short message that the transport did not take.
class not_sent final : public runtime::flow_step {
 public:
  not_sent(const p2p_operation& o, const std::string& op, std::exception_ptr why)
      : title_(title_of(o, op)), why_(std::move(why)) {}  // NOLINT(bugprone-throw-keyword-missing): it is kept
  std::string title() const override { return title_; }

 private:
  void go() noexcept override { end(std::move(why_)); }
  std::string title_;
  std::exception_ptr why_;
};

}  // namespace

runtime::flow_step_ptr p2p_end::step_for(const p2p_operation& o, std::uint64_t batch) {
  if (o.peer == self_) return runtime::new_step<step_to_itself>(to_itself_, o, name_);
  if (o.what == p2p_operation::kind::send) return runtime::new_step<send_step>(pairs_.edge_to(o.peer), o, batch, name_);
  return runtime::new_step<receive_step>(pairs_.edge_from(o.peer), o, batch, name_);
}

// A short message that waits for nothing needs no step. Throws what it has failed with.
bool p2p_end::leaves_at_once(const runtime::dataflow& flow, const p2p_operation& o, std::uint64_t batch,
                             const runtime::buffer_access& use, const runtime::step_options& how) {
  if (o.what != p2p_operation::kind::send || o.peer == self_ || o.pieces != nullptr) return false;
  if (!flow.may_begin(use, how)) return false;
  call_options call;
  call.tag = o.tag;
  call.type = o.type;
  call.trials.batch = batch;
  return pairs_.edge_to(o.peer).send_at_once(o.bytes, call);
}

// Throws where this rank has no such pair.
void p2p_end::check_pair(const p2p_operation& o) {
  if (o.pieces != nullptr && (o.peer == self_ || memory_.has_streams()))
    runtime::raise(
        {errc::bad_argument, title_of(o, name_) + ": pieces are for messages between ranks, in host memory"});
  if (o.peer == self_) return;
  if (o.what == p2p_operation::kind::send) {
    static_cast<void>(pairs_.edge_to(o.peer));
  } else {
    static_cast<void>(pairs_.edge_from(o.peer));
  }
}

p2p_end::sequences::map::value_type& p2p_end::sequences::find_or_make(std::uint64_t key) {
  if (const auto known = all_.find(key); known != all_.end()) return *known;
  if (all_.size() >= sweep_at_) {
    std::erase_if(all_, [](const auto& s) { return s.second.idle(); });
    sweep_at_ = std::max<std::size_t>(64, 2 * all_.size());
  }
  return *all_.try_emplace(key).first;
}

runtime::begin_sequence& p2p_end::sequence_of(const p2p_operation& o) {
  const std::uint64_t key = (std::uint64_t{o.peer} << 32U) | o.tag;
  return o.what == p2p_operation::kind::send ? sends_[key] : receives_[key];
}

// The device's order: before the host knows anything, and whichever config moves a message.
void p2p_end::order_behind(const batch_options& how, std::span<p2p_operation> batch) {
  for (const p2p_operation& o : batch) check_pair(o);  // before anything is expected
  try {
    for (p2p_operation& o : batch) {
      memory_.after(o.bytes, how.stream);
      if (o.what == p2p_operation::kind::receive) o.expected = memory_.expect(o.bytes);
    }
    for (const p2p_operation& o : batch) {
      if (o.what == p2p_operation::kind::receive && !how.ahead) memory_.wait_on(o.bytes, how.stream);
    }
  } catch (const runtime::failure& f) {
    for (const p2p_operation& o : batch) memory_.came(o.expected, errc::cancelled);
    runtime::raise({f.code(), "op " + name_ + ", on rank " + std::to_string(self_) + ": " + f.reason().text()});
  }
}

runtime::flow_work p2p_end::start(runtime::dataflow& flow, std::span<const p2p_operation> batch,
                                  const batch_options& o) {
  boost::container::small_vector<p2p_operation, 8> in_order;
  if (o.stream != nullptr) {
    in_order.assign(batch.begin(), batch.end());
    order_behind(o, in_order);
    batch = in_order;
  }
  boost::container::small_vector<runtime::flow_part, 16> parts;
  for (const p2p_operation& operation : batch) check_pair(operation);
  ++batches_;
  for (const p2p_operation& operation : batch) {
    const bool sends = operation.what == p2p_operation::kind::send;
    const auto use = sends ? runtime::buffer_use::read : runtime::buffer_use::write;
    const runtime::buffer_access whole{operation.bytes, use};
    const runtime::step_options how{services_.patient(o.timeout_ns), o.after, &sequence_of(operation)};
    runtime::flow_part& part = parts.emplace_back();
    try {
      if (leaves_at_once(flow, operation, batches_, whole, how)) {
        part.bytes = operation.bytes.size();
        continue;
      }
      part.step = step_for(operation, batches_);
    } catch (const runtime::failure&) {
      part.step = runtime::new_step<not_sent>(operation, name_, std::current_exception());
    }
    if (operation.pieces == nullptr) {
      flow.put(part.step, {&whole, 1}, how);
      continue;
    }
    std::vector<runtime::buffer_access> uses{runtime::writes(operation.bytes)};  // what it is packed to on its way
    for (const std::span<std::byte> each : operation.pieces->all) uses.push_back({each, use});
    flow.put(part.step, uses, how);
  }
  return flow.together(parts);
}

std::vector<declared_edge*> p2p::edges() const {
  if (idle()) return {};
  std::vector<declared_edge*> all = end_->pairs().outs_;
  all.insert(all.end(), end_->pairs().ins_.begin(), end_->pairs().ins_.end());
  return all;
}

p2p_end& p2p::end() const {
  if (end_ == nullptr)
    runtime::raise({errc::bad_argument, "op " + name_ + ": this rank has no part in it; it may not start batches"});
  return *end_;
}

}  // namespace parley::ops
