#include <parley/ops/edges/p2p_end.hpp>

#include <parley/news.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/ops/edges/declared_edge.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/dataflow/call_step.hpp>
#include <parley/runtime/finally.hpp>

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

bool takes_part(const p2p_options& op, rank_id r) {
  if (!op.ranks.empty()) return std::find(op.ranks.begin(), op.ranks.end(), r) != op.ranks.end();
  const auto has = [r](const auto& e) { return e.first == r || e.second == r; };
  return op.edges.empty() || std::any_of(op.edges.begin(), op.edges.end(), has);
}

/// Returns the pairs of rank `self`. If the options are wrong, returns the same `bad_argument` on all ranks.
runtime::result<transfer_options> pairs_of(const p2p_options& op, rank_id self, rank_id world_size) {
  const std::string title = "op " + op.name;
  if (const auto listed = check_catalogue(op.name, op.configs); !listed) return listed.reason();
  if (const auto timed = check_timeout(op.name, op.timeout); !timed) return timed.reason();
  for (std::size_t i = 0; i < op.ranks.size(); ++i) {
    const rank_id r = op.ranks[i];
    const auto to_here = op.ranks.begin() + static_cast<std::ptrdiff_t>(i);
    const bool again = std::find(op.ranks.begin(), to_here, r) != to_here;
    if (r < world_size && !again) continue;
    return error{errc::bad_argument,
                 title + ": its ranks name rank " + std::to_string(r) +
                     (again ? " twice" : ", which is outside the world of " + std::to_string(world_size))};
  }
  transfer_options mine{.name = op.name,
                        .configs = op.configs,
                        .constraints = op.constraints,
                        .can_run = op.can_run,
                        .memory = op.memory,
                        .timeout = op.timeout,
                        .dtype = op.dtype};
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

std::string title_of(const p2p_operation& o, const std::string& op) {
  const bool sends = o.what == p2p_operation::kind::send;
  return "op " + op + ": " + (sends ? "a send to rank " : "a receive from rank ") + std::to_string(o.peer) + ", tag " +
         std::to_string(o.tag);
}

call_options options_of(const p2p_operation& o, std::uint64_t batch, call_watcher& watcher) noexcept {
  call_options all;
  all.trials.batch = batch;
  all.tag = o.tag;
  all.timeout_ns = o.timeout.count();
  all.watcher = &watcher;
  all.expected = o.expected;
  all.type = o.type;
  all.pieces = o.pieces;
  return all;
}

// If a receive is expected, streams wait for it by themselves.
runtime::flow_step::on_device awaited_in(const runtime::memory_space& memory, const p2p_operation& o) noexcept {
  if (o.expected == 0) return {};
  return {&memory, runtime::flow_step::on_device::kind::awaited};
}

bool have_in_common(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Tells the hooks of an operation how it ends.
class told_operation {
 public:
  // The arguments of a step. Its operation is the `number`-th one of its peer, tag and kind.
  struct posted {
    p2p_end& end;
    const runtime::dataflow& flow;
    const p2p_operation& operation;
    std::uint64_t number;
    const std::string& op;
  };

 protected:
  told_operation(const posted& p, const runtime::flow_step& step) : operation_(p.operation), op_(p.op), end_(p.end) {
    describe_in(open_, p, step);
    if (sends()) end_.note_open_send(open_);
  }
  void describe_in(p2p_end::open_message& m, const posted& p, const runtime::flow_step& step) const noexcept {
    m.operation = &operation_;
    m.number = p.number;
    m.step = &step;
    m.flow = &p.flow;
  }
  std::string words() const { return title_of(operation_, op_); }
  bool sends() const noexcept { return operation_.what == p2p_operation::kind::send; }
  void tell_abandoned(const std::exception_ptr& why) noexcept {
    open_.unlink();
    if (operation_.hooks == nullptr || std::exchange(over_, true)) return;
    operation_.hooks->on_left_out(
        operation_, why ? runtime::describe(why) : runtime::error{errc::cancelled, words() + " was not done"});
  }
  void end_with(std::uint64_t moved) {
    open_.unlink();
    over_ = true;
    moved_ = moved;
    if (!sends() && operation_.hooks != nullptr) operation_.hooks->after_receive(operation_, moved_);
  }
  void fail_with(const runtime::failure& f) {
    open_.unlink();
    over_ = true;
    const bool given_up = f.code() == errc::timeout || f.code() == errc::cancelled;
    if (given_up && operation_.hooks != nullptr) operation_.hooks->on_given_up(operation_, f.reason());
  }

  // A receive must not wait for a send that may itself wait for this receive, through a circle of ranks. Nor must it wait for a step that
  // waits for such a send, such as an earlier receive into that memory. In both cases it receives into a temporary buffer instead.
  bool goes_beside(const runtime::flow_step& earlier) {
    if (sends() || operation_.pieces != nullptr) return false;
    const auto* const sent = dynamic_cast<const told_operation*>(&earlier);
    const bool is_send = sent != nullptr && sent->sends();
    const bool may_wait = !is_send || sent->end_.may_wait_for(sent->open_, operation_.peer);
    if (may_wait && !end_.is_held_up(earlier)) return false;
    is_beside_ = true;
    return true;
  }
  bool is_beside() const noexcept { return is_beside_; }
  void tell_passed() noexcept {
    if (passed_ != nullptr) passed_->tell();
  }
  // `is_behind()` says whether a send still reads the memory.
  template <class Edge, class Behind>
  task<std::uint64_t> receive_beside(Edge& edge, call_options o, Behind is_behind) {
    errc outcome = errc::cancelled;
    const runtime::finally over([&, expected = std::exchange(o.expected, 0)] {
      edge.memory().came(expected, outcome);
      passed_ = nullptr;
    });
    runtime::news passed;
    passed_ = &passed;
    const runtime::result<> there = edge.memory().check(operation_.bytes);
    if (!there) runtime::raise({there.code(), words() + ": " + there.reason().text()});
    const auto beside = edge.memory().make(operation_.bytes.size());
    const std::uint64_t moved = co_await edge.receive(beside->bytes(), o);
    while (is_behind()) {
      auto woken = co_await passed.next(runtime::never);
      if (!woken)
        runtime::raise(
            {woken.code(), words() + ": its message arrived, but a send was still reading the memory for it"});
    }
    co_await edge.memory().copy(operation_.bytes.first(moved), beside->bytes().first(moved));
    end_.note_copied(moved);
    outcome = errc::none;
    co_return moved;
  }

  const p2p_operation operation_;
  const std::string& op_;
  std::uint64_t moved_ = 0;

 private:
  p2p_end& end_;
  p2p_end::open_message open_;
  bool over_ = false;
  bool is_beside_ = false;
  runtime::news* passed_ = nullptr;  // set while it receives into a temporary buffer
};

template <class Call, class Edge>
class p2p_step : public runtime::call_step<Call>, public told_operation, private call_watcher {
 public:
  p2p_step(const posted& p, Edge& edge, std::uint64_t batch) : told_operation(p, *this), edge_(edge), batch_(batch) {}
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
      if (f.code() != errc::timeout || *operation_.remark == 0) throw;
      const runtime::error& why = f.reason();
      throw runtime::failure(
          runtime::error::in_words(errc::timeout, why.about(), why.text() + operation_.remark, why.began_with()));
    }
    end_with(moved);
  }
  call_options options() noexcept { return options_of(operation_, batch_, *this); }
  Edge& edge_;

 private:
  void go() noexcept final {
    if (is_beside()) [[unlikely]]
      return runtime::call_step<Call>::go();
    this->begin(edge_, operation_.bytes, options());
  }
  bool comes_after(const runtime::flow_step& earlier, const runtime::buffer_access& use) final {
    return this->is_computed_on(edge_.memory(), earlier, use) || goes_beside(earlier);
  }
  void on_passed() noexcept final { tell_passed(); }
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
  task<> run() override {
    const auto is_behind = [this] { return this->is_behind(); };
    try {
      moved_ = co_await receive_beside(edge_, options(), is_behind);
    } catch (const runtime::failure& f) {
      fail_with(f);
      throw;
    }
    end_with(moved_);
  }
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

class step_to_itself final : public runtime::flow_step, public told_operation, private call_watcher {
 public:
  step_to_itself(const posted& p, self_edge& edge) : told_operation(p, *this), edge_(edge) {
    describe_in(to_itself_, p, *this);
    p.end.note_open_to_itself(to_itself_);
  }
  std::string title() const override { return words(); }
  std::uint64_t bytes() const noexcept override { return moved_; }
  task<> run() override {
    const call_options o = options_of(operation_, 0, *this);
    const auto is_behind = [this] { return this->is_behind(); };
    std::uint64_t moved = operation_.bytes.size();
    try {
      if (sends()) {
        co_await edge_.send(operation_.bytes, o);
      } else if (is_beside()) {
        moved = co_await receive_beside(edge_, o, is_behind);
      } else {
        moved = co_await edge_.receive(operation_.bytes, o);
      }
    } catch (const runtime::failure& f) {
      to_itself_.unlink();
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
    return is_computed_on(edge_.memory(), earlier, use) || goes_beside(earlier);
  }
  void on_passed() noexcept override { tell_passed(); }
  void on_begun() noexcept override { note_begun(); }
  void on_met() noexcept override { to_itself_.unlink(); }
  void on_abandoned() noexcept override {
    to_itself_.unlink();
    tell_abandoned(thrown);
    if (!sends()) edge_.memory().came(operation_.expected, errc::cancelled);
  }
  self_edge& edge_;
  p2p_end::open_message to_itself_;
};

// A message that failed when it was started, such as a short one that the transport did not accept.
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

runtime::flow_step_ptr p2p_end::step_for(const runtime::dataflow& flow, const p2p_operation& o, std::uint64_t number) {
  const told_operation::posted posted{*this, flow, o, number, name_};
  if (o.peer == self_) return runtime::new_step<step_to_itself>(posted, to_itself_);
  if (o.what == p2p_operation::kind::send)
    return runtime::new_step<send_step>(posted, pairs_.edge_to(o.peer), batches_);
  return runtime::new_step<receive_step>(posted, pairs_.edge_from(o.peer), batches_);
}

// Sends a short message at once if it need not wait for anything; then the message needs no step. Throws the error of the send.
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

// Throws if this rank has no such pair.
p2p_end::with p2p_end::check_pair(const p2p_operation& o) {
  if (o.pieces != nullptr && (o.peer == self_ || memory_.has_streams()))
    runtime::raise(
        {errc::bad_argument, title_of(o, name_) + ": pieces are for messages between ranks, in host memory"});
  if (o.peer == self_) return with::itself;
  if (o.what == p2p_operation::kind::send) {
    static_cast<void>(pairs_.edge_to(o.peer));
  } else {
    static_cast<void>(pairs_.edge_from(o.peer));
  }
  return with::peer;
}

p2p_end::sequences::counted p2p_end::sequences::count(const std::vector<declared_edge*>& peers, std::uint32_t tag,
                                                      std::uint64_t number) const {
  counted all;
  const auto add = [&](const line& one) {
    ++all.known;
    if (one.posted > number) ++all.posted;
  };
  if (all_.size() < peers.size()) {
    for (const auto& [key, one] : all_) {
      const auto is_of = [of = key](const declared_edge* e) { return e->peer() == peer_of(of); };
      if (tag_of(key) == tag && std::any_of(peers.begin(), peers.end(), is_of)) add(one);
    }
    return all;
  }
  for (const declared_edge* each : peers) {
    if (const line* const one = find(key_of(each->peer(), tag)); one != nullptr) add(*one);
  }
  return all;
}

p2p_end::matching p2p_end::receive_for(const open_message& sent, rank_id from) const {
  const line* const same = receives_.find(key_of(from, sent.operation->tag));
  if (same == nullptr) return matching::unknown;
  return same->posted > sent.number ? matching::posted : matching::awaited;
}

// Infers from this rank's own receives whether the peer has posted the receive for `sent`. This assumes that all ranks do the same. Then,
// once this rank has posted as many receives of a tag and number as sends, the peers have also posted the receives for these sends.
p2p_end::matching p2p_end::receive_for(const open_message& sent) const {
  const p2p_operation& o = *sent.operation;
  const matching peers = receive_for(sent, o.peer);
  // A rank knows its own receives.
  if (o.peer == self_) return peers == matching::posted ? peers : matching::awaited;
  if (peers == matching::awaited) return peers;
  const auto received = receives_.count(pairs_.ins_, o.tag, sent.number);
  if (received.known == 0) return matching::unknown;
  if (received.posted == 0) return matching::awaited;
  return received.posted >= sends_.count(pairs_.outs_, o.tag, sent.number).posted ? matching::posted
                                                                                  : matching::awaited;
}

// A long send ends when its peer has posted the receive for it. If all ranks do the same, the peer's receive may wait in turn for such a
// send, and so on around all ranks: then no rank ever ends. A receive that waits only for sends whose receives were posted before it cannot
// close such a circle, because along the circle the receives would have to be earlier and earlier.
bool p2p_end::may_wait_for(const open_message& sent, rank_id source) const {
  if (receive_for(sent) != matching::posted) return false;
  return sent.operation->peer == self_ || receive_for(sent, source) != matching::awaited;
}

bool p2p_end::is_held_up(const runtime::flow_step& earlier) {
  if (!std::exchange(has_found_held_up_, true)) find_held_up();
  return !held_up_.empty() && held_up_.contains(&earlier);
}

// If this rank only sends under a tag, for instance because it computes for another rank, that rank receives the result independently of
// what this rank receives next. So computations that wait for such a send count as free to end, and only messages that wait for it count
// as held up.
void p2p_end::find_held_up() {
  held_up_.clear();
  if (open_sends_.empty()) return;
  boost::container::small_vector<const runtime::flow_step*, 16> of_unknown;
  open_sends_.for_each([&](open_message& sent) {
    if (!sent.step->has_followers()) return;
    if (may_wait_for(sent, posted_from_)) return sent.unlink();  // it stays so
    if (receive_for(sent) == matching::unknown) {
      of_unknown.push_back(sent.step);
    } else {
      add_held_up_by(*sent.step, ways::all);
    }
  });
  for (const runtime::flow_step* sent : of_unknown) add_held_up_by(*sent, ways::messages);
}

void p2p_end::add_held_up_by(const runtime::flow_step& sent, ways through) {
  boost::container::small_vector<const runtime::flow_step*, 16> to_visit{&sent};
  const auto add = [&](const runtime::flow_step& later, bool may_begin) {
    for (const runtime::flow_step* one = &later; one != nullptr; one = may_begin ? nullptr : one->next_to_begin()) {
      if (through == ways::messages && dynamic_cast<const told_operation*>(one) == nullptr) return;
      const bool is_new = held_up_.insert(one).second;
      if (is_new) to_visit.push_back(one);
      if (!is_new && one != &later) return;
    }
  };
  while (!to_visit.empty()) {
    const runtime::flow_step* const one = to_visit.back();
    to_visit.pop_back();
    one->visit_followers(add);
  }
}

// True if a send of the batch to this rank itself waits for a receive from this rank itself.
bool p2p_end::may_close_circle(const runtime::dataflow& flow, std::span<const p2p_operation> batch) {
  bool receives = false;
  for (const p2p_operation& o : batch) {
    if (o.peer != self_) continue;
    if (o.what == p2p_operation::kind::receive) {
      receives = true;
      continue;
    }
    const auto waits_for = [&](const open_message& m) {
      return m.flow == &flow && m.operation->what == p2p_operation::kind::receive &&
             have_in_common(m.operation->bytes, o.bytes);
    };
    if (receives || open_to_itself_.find_if(waits_for) != nullptr) return true;
  }
  return false;
}

// Throws if a send to this rank itself depends on the data of its own receive, perhaps through other messages: it would never end.
void p2p_end::check_circles(const runtime::dataflow& flow, std::span<const p2p_operation> batch) {
  constexpr std::size_t most_looked_at = 256;
  struct posted {
    const p2p_operation* operation;
    std::size_t place;  // among all of these
    bool is_of_flow;    // messages of other flows wait for nothing here
    bool is_new;
  };
  struct message {
    std::optional<posted> sent;
    std::optional<posted> received;
    bool ends = false;
  };
  std::map<std::pair<std::uint32_t, std::size_t>, message> all;  // by tag and number
  std::map<std::uint32_t, std::size_t> sends;
  std::map<std::uint32_t, std::size_t> receives;
  std::size_t count = 0;
  const auto add = [&](const p2p_operation& o, bool is_of_flow, bool is_new) {
    const bool sent = o.what == p2p_operation::kind::send;
    (sent ? all[{o.tag, sends[o.tag]++}].sent : all[{o.tag, receives[o.tag]++}].received) =
        posted{&o, count++, is_of_flow, is_new};
  };
  open_to_itself_.for_each([&](const open_message& m) {
    if (count <= 2 * most_looked_at) add(*m.operation, m.flow == &flow, false);
  });
  if (count > 2 * most_looked_at) return;
  for (const p2p_operation& o : batch) {
    if (o.peer != self_) continue;
    if (!memory_.check(o.bytes)) return;  // it fails with the reason when it begins
    add(o, true, true);
  }
  std::erase_if(all, [](const auto& m) { return !m.second.sent || !m.second.received; });
  if (all.size() > most_looked_at) return;
  const auto waits = [&](const message& m) {
    return std::any_of(all.begin(), all.end(), [&](const auto& other) {
      const posted& before = *other.second.received;
      return !other.second.ends && before.is_of_flow && m.sent->is_of_flow && before.place < m.sent->place &&
             have_in_common(before.operation->bytes, m.sent->operation->bytes);
    });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& [key, m] : all) {
      if (m.ends || waits(m)) continue;
      m.ends = moved = true;
    }
  }
  for (const auto& [key, m] : all) {
    if (m.ends || !m.sent->is_new) continue;
    runtime::raise(
        {errc::bad_argument,
         title_of(*m.sent->operation, name_) +
             ", this rank itself: it sends what an earlier receive brings, but that receive waits for this send; " +
             "list the send first to exchange in place"});
  }
}

p2p_end::sequences::map::value_type& p2p_end::sequences::find_or_make(std::uint64_t key) {
  if (const auto known = all_.find(key); known != all_.end()) return *known;
  if (all_.size() >= sweep_at_) {
    std::erase_if(all_, [](const auto& s) { return s.second.order.idle(); });
    sweep_at_ = std::max<std::size_t>(64, 2 * all_.size());
  }
  return *all_.try_emplace(key).first;
}

p2p_end::line& p2p_end::line_of(const p2p_operation& o) {
  const std::uint64_t key = key_of(o.peer, o.tag);
  return o.what == p2p_operation::kind::send ? sends_[key] : receives_[key];
}

// Orders the messages on the device before the host starts any of them. So the order holds for every config that moves a message.
void p2p_end::order_behind(const batch_options& how, std::span<p2p_operation> batch) {
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
    runtime::raise({f.code(), {.op = name_, .rank = self_}, f.reason().text()});
  }
}

runtime::flow_work p2p_end::start(runtime::dataflow& flow, std::span<const p2p_operation> batch,
                                  const batch_options& o) {
  check_caller();
  bool is_with_itself = false;
  for (const p2p_operation& operation : batch) is_with_itself |= check_pair(operation) == with::itself;
  if (is_with_itself && may_close_circle(flow, batch)) check_circles(flow, batch);
  boost::container::small_vector<p2p_operation, 8> in_order;
  if (o.stream != nullptr) {
    in_order.assign(batch.begin(), batch.end());
    order_behind(o, in_order);
    batch = in_order;
  }
  boost::container::small_vector<runtime::flow_part, 16> parts;
  ++batches_;
  for (const p2p_operation& operation : batch) {
    const bool sends = operation.what == p2p_operation::kind::send;
    const auto use = sends ? runtime::buffer_use::read : runtime::buffer_use::write;
    const runtime::buffer_access whole{operation.bytes, use};
    line& among = line_of(operation);
    const runtime::step_options how{services_.patient(o.timeout.count()), o.after, &among.order};
    runtime::flow_part& part = parts.emplace_back();
    try {
      if (leaves_at_once(flow, operation, batches_, whole, how)) {
        part.bytes = operation.bytes.size();
        ++among.posted;
        continue;
      }
      part.step = step_for(flow, operation, among.posted);
      has_found_held_up_ = false;
      posted_from_ = operation.peer;
    } catch (const runtime::failure&) {
      part.step = runtime::new_step<not_sent>(operation, name_, std::current_exception());
    }
    if (operation.pieces == nullptr) {
      flow.put(part.step, {&whole, 1}, how);
    } else {
      std::vector<runtime::buffer_access> uses{runtime::writes(operation.bytes)};  // the packed buffer
      for (const std::span<std::byte> each : operation.pieces->all) uses.push_back({each, use});
      flow.put(part.step, uses, how);
    }
    ++among.posted;  // after `put`: a receive does not count as posted before itself
  }
  return flow.together(parts);
}

std::vector<declared_edge*> p2p::edges() const {
  if (idle()) return {};
  std::vector<declared_edge*> all = end_->pairs().outs_;
  all.insert(all.end(), end_->pairs().ins_.begin(), end_->pairs().ins_.end());
  return all;
}

runtime::flow_work p2p::start(runtime::dataflow& flow, std::span<const p2p_operation> batch, const batch_options& o) {
  return end().start(flow, batch, o);
}

void p2p::check_caller() const {
  if (!idle()) end().check_caller();
}

namespace {
task<> exchange_in(runtime::dataflow& flow, p2p* messages, const std::vector<p2p_operation>* batch, batch_options o) {
  auto moving = messages->start(flow, *batch, o);
  co_await moving;
}
}  // namespace

task<> p2p::exchange_all(std::vector<p2p_operation> batch, batch_options o) {
  p2p messages = *this;
  co_await runtime::with_dataflow(exchange_in, &messages, &batch, o);
}

agreement p2p::to(rank_id peer) const { return end().pairs().to(peer); }
agreement p2p::from(rank_id peer) const { return end().pairs().from(peer); }
decision p2p::decision(std::uint64_t bytes, rank_id peer) const { return end().pairs().decision(bytes, peer); }
bool p2p::rejoin() const { return !idle() && end().pairs().rejoin(); }
std::size_t p2p::known_tags() const { return end().known_tags(); }
std::uint64_t p2p::generation_with(rank_id peer) const { return end().generation_with(peer); }

void p2p::retune(std::optional<std::uint64_t> bytes, std::string_view why) const { end().pairs().retune(bytes, why); }

task<> p2p::tune(std::vector<std::uint64_t> sizes_bytes) { return end().pairs().tune(std::move(sizes_bytes)); }

std::uint64_t p2p::copied_bytes() const {
  return end().pairs().copied_bytes() + end().to_itself().copied_bytes() + end().copied_bytes();
}

actors::registered_memory p2p::register_bytes(std::span<std::byte> memory) const {
  return end().pairs().registered(memory);
}

const actors::op_declaration& p2p_end::declaration() const noexcept {
  static const actors::op_declaration none;
  return none;
}

p2p_end& p2p::end() const {
  if (end_ == nullptr)
    runtime::raise({errc::bad_argument, "op " + name_ + ": this rank has no part in it; it may not start batches"});
  return *end_;
}

p2p::p2p(rank& self, const p2p_options& op) : name_(op.name) {
  op_host& host = op_host::of(self);
  const transfer_options mine = pairs_of(op, self.id(), self.world_size()).value();
  std::shared_ptr<const std::vector<rank_id>> restart_group;
  if (!op.restart_group.empty()) restart_group = std::make_shared<const std::vector<rank_id>>(op.restart_group);
  transfer pairs(host, mine, mine.edges, restart_group);
  if (takes_part(op, self.id())) end_ = &host.add(std::make_unique<p2p_end>(std::move(pairs), host.services_, op));
}

}  // namespace parley::ops
