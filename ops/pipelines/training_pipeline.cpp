#include <parley/training_pipeline.hpp>

#include <parley/ops/core/neighbours.hpp>
#include <parley/ops/edges/message_options.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/time/work_meter.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace parley::ops {

using runtime::buffer_access;
using runtime::errc;
using runtime::task;
using kind = pipeline_action::kind;

namespace {

std::uint64_t hash_of(std::string_view text) noexcept {
  std::uint64_t h = text.size();
  for (const char c : text) h = runtime::mix(h ^ static_cast<unsigned char>(c));
  return h;
}

}  // namespace

task<> pipeline_stages::work(pipeline_action a, pipeline_memory m) {
  auto step = [this, a, m] {
    if (a.what == kind::forward) {
      forward(a.stage, a.microbatch, m.in, m.out);
    } else {
      backward(a.stage, a.microbatch, m);
    }
  };
  co_await runtime::compute(step, modelled_ns(a));
}

// Memory of finished microbatches, kept for the next ones: making and registering new memory would take longer than a stage.
class training_pipeline::buffers {
 public:
  struct piece {
    std::span<std::byte> bytes() const { return memory ? memory->bytes() : std::span<std::byte>{}; }
    std::shared_ptr<runtime::memory_space::block> memory;
    actors::registered_memory registered;
    std::uint64_t last_pass = 0;  // the last pass that used it
  };
  buffers(runtime::memory_space* where, const p2p& messages, neighbours& n)
      : space_(where == nullptr ? runtime::host_memory() : *where), messages_(messages), around_(n) {}

  runtime::memory_space& space() const noexcept { return space_; }
  void fit(piece& p, std::uint64_t bytes) {
    if (p.bytes().size() == bytes) return;
    if (const auto same = free_.find(bytes); same != free_.end()) {
      p = std::move(same->second);
      free_.erase(same);
    } else {
      p.memory = space_.make(bytes);
      p.registered = messages_.registered(p.bytes());
      p.registered.keep(p.memory);
    }
  }
  void keep(piece&& p) {
    if (!p.memory || p.registered.lost()) return;
    p.last_pass = passes_;
    free_.emplace(p.bytes().size(), std::move(p));
  }
  /// Frees memory that no pass has used for a while, because the sizes of microbatches may change.
  void end_pass() {
    ++passes_;
    std::erase_if(free_, [this](const auto& f) { return f.second.last_pass + longest_unused < passes_; });
  }
  neighbours& around() const noexcept { return around_; }
  /// The terms that this rank compares with a neighbour, in its first pass of each generation.
  term_comparison& terms_with(rank_id peer) { return compared_[peer]; }

 private:
  static constexpr std::uint64_t longest_unused = 8;  // passes
  runtime::memory_space& space_;
  p2p messages_;
  neighbours& around_;
  std::map<rank_id, term_comparison> compared_;
  std::multimap<std::uint64_t, piece> free_;
  std::uint64_t passes_ = 0;
};

namespace {
std::vector<actors::declared_term> terms_of(const training_pipeline_options& op) {
  constexpr std::size_t most_rows = 64;
  constexpr std::size_t most_bytes = 200;  // shown of each row; a longer row is cut, and its hash follows
  const std::string schedule = text_of(op.schedule);
  std::vector<actors::declared_term> all{{"stages", std::to_string(op.schedule.stages)},
                                         {"microbatches", std::to_string(op.schedule.microbatches)}};
  std::string ranks;
  for (const rank_id r : op.ranks) ranks += (ranks.empty() ? "" : " ") + std::to_string(r);
  all.push_back({"ranks", ranks});
  std::size_t row = 0;
  for (std::size_t at = 0; at < schedule.size() && row < most_rows; ++row) {
    const std::size_t end = std::min(schedule.find('\n', at), schedule.size());
    std::string text = schedule.substr(at, end - at);
    if (text.size() > most_bytes) text = text.substr(0, most_bytes) + "... (" + std::to_string(hash_of(text)) + ")";
    all.push_back({"row " + std::to_string(row) + " of the schedule", text});
    at = end + 1;
  }
  return all;
}
}  // namespace

training_pipeline::training_pipeline(rank& self, const training_pipeline_options& op) {
  const auto wrong = [&](const std::string& what) {
    runtime::raise({errc::bad_argument, "op " + op.name + ": " + what});
  };
  if (const auto sound = check(op.schedule); !sound) wrong(sound.reason().text());
  auto whole = std::make_shared<training_pipeline_options>(op);
  const std::size_t parts = op.schedule.ranks.size();
  if (op.ranks.empty() && parts > self.world_size())
    wrong("its schedule is for " + std::to_string(parts) + " ranks, and the world has " +
          std::to_string(self.world_size()) + "; start more, or change the schedule");
  whole->ranks = named_or_first(op.ranks, parts);
  if (whole->ranks.size() != parts)
    wrong("its schedule is for " + std::to_string(parts) + " ranks, and " + std::to_string(whole->ranks.size()) +
          " are named");
  p2p_options messages = messages_of(op, whole->ranks);
  std::set<std::pair<rank_id, rank_id>> edges;
  for (std::uint32_t stage = 0; stage + 1 < op.schedule.stages; ++stage) {
    const rank_id from = whole->ranks[op.schedule.rank_of(stage)];
    const rank_id to = whole->ranks[op.schedule.rank_of(stage + 1)];
    edges.insert({from, to});
    edges.insert({to, from});
  }
  if (edges.empty()) edges.insert({whole->ranks[0], whole->ranks[0]});
  messages.edges.assign(edges.begin(), edges.end());
  title_ = "op " + op.name;
  messages_ = p2p(self, messages);
  const auto mine = std::find(whole->ranks.begin(), whole->ranks.end(), self.id());
  if (mine == whole->ranks.end()) return;
  place_ = static_cast<rank_id>(mine - whole->ranks.begin());
  neighbours::options around{
      .op = op.name, .listed = {}, .timeout_ns = op.timeout.count(), .declared = terms_of(*whole)};
  for (const auto& [from, to] : edges) {
    if (from == self.id()) around.listed.push_back(to);
  }
  auto& neighbourhood =
      *self.attach(std::make_unique<neighbours>(self.services(), messages_.edges(), std::move(around)));
  free_ = std::make_shared<training_pipeline::buffers>(whole->memory, messages_, neighbourhood);
  op_ = std::move(whole);
}

// One pass on this rank. A microbatch of a stage keeps its buffers from its forward to its backward computation. The buffers outlive the
// flow.
class training_pipeline::pass {
 public:
  pass(const training_pipeline& t, training_work& stages)
      : op_(*t.op_), self_(t.op_->ranks[t.place_]), title_(t.title_), messages_(t.messages_), free_(*t.free_),
        stages_(stages), on_device_(stages.waits_on_device()) {}

  static task<> run(runtime::dataflow& flow, pass& self, const std::vector<pipeline_action>& actions) {
    self.flow_ = &flow;
    const time_ns began = flow.where().precise_now();
    self.meet_neighbours();
    for (const pipeline_action& a : actions) ++self.held_of(a).to_come;
    auto to_receive = actions.begin();
    for (auto a = actions.begin(); a != actions.end(); ++a) {
      // If the sender enqueues work ahead on its device, it must know a message's destination before the device begins to compute the
      // message. So receives are posted ahead.
      for (auto until = self.horizon(a, actions.end()); to_receive < until; ++to_receive) {
        if (!to_receive->computes() && !to_receive->sends()) self.receive(*to_receive);
      }
      if (a->computes()) {
        co_await self.compute(*a);
      } else if (a->sends()) {
        self.send(*a);
      }
      self.note_done(*a);
    }
    co_await flow.join();
    for (auto& [key, h] : self.held_) co_await self.recycle(key, h);
    self.free_.end_pass();
    self.report.elapsed_ns = flow.where().precise_now() - began;
  }
  // Adds the waiting step to a timeout's text, because the message itself does not know which step waits for it.
  std::exception_ptr in_words(std::exception_ptr thrown) const {
    if (!waits_) return thrown;
    const runtime::error why = runtime::describe(thrown);
    if (why.code() != errc::timeout) return thrown;
    std::string text = title_ + ", " + text_of(waits_->step) + ", which waits for rank " +
                       std::to_string(waits_->peer) + ": " + why.text();
    return std::make_exception_ptr(
        runtime::failure(runtime::error::in_words(why.code(), why.about(), std::move(text), why.began_with())));
  }
  pipeline_report report;
  time_ns busy_forward_ns = 0;
  time_ns busy_backward_ns = 0;

 private:
  struct held {
    buffers::piece in;
    buffers::piece out;
    buffers::piece gradient_out;
    buffers::piece gradient_in;
    runtime::flow_work leaving[2];  // the activation, the gradient
    runtime::flow_work coming[2];
    std::uint32_t to_come = 0;  // its remaining actions in the list
    std::array<buffers::piece*, 4> pieces() { return {&in, &out, &gradient_out, &gradient_in}; }
  };
  held& held_of(const pipeline_action& a) {
    held& h = held_[{a.stage, a.microbatch}];
    return h;
  }
  // Counts a microbatch's remaining actions, because a schedule may list its sends long after its computations.
  void note_done(const pipeline_action& a) {
    if (--held_of(a).to_come == 0) finished_.emplace_back(a.stage, a.microbatch);
  }
  std::uint64_t in_bytes(std::uint32_t stage) const { return stage == 0 ? 0 : stages_.activation_bytes(stage - 1); }
  std::uint64_t out_bytes(std::uint32_t stage) const { return stages_.activation_bytes(stage); }
  bool last(std::uint32_t stage) const noexcept { return stage + 1 == op_.schedule.stages; }

  // The terms that neighbours must have in common. With different schedules they would wait for each other's messages.
  enum term : std::size_t {
    of_schedule,  // a hash of its text
    of_stages,
    of_microbatches,
    of_activations,  // a hash of the sizes of all activations that pass between the two
    of_first_size    // the first few of these sizes follow, for the text of an error
  };
  static constexpr std::size_t named_sizes = 4;
  /// The stages whose activations pass between this rank and `peer`.
  std::vector<std::uint32_t> stages_before(rank_id peer) const {
    std::vector<std::uint32_t> all;
    for (std::uint32_t stage = 0; stage + 1 < op_.schedule.stages; ++stage) {
      const rank_id before = op_.ranks[op_.schedule.rank_of(stage)];
      const rank_id behind = op_.ranks[op_.schedule.rank_of(stage + 1)];
      if ((before == self_ && behind == peer) || (before == peer && behind == self_)) all.push_back(stage);
    }
    return all;
  }
  // Runs along with the first pass. Only steps that wait for a neighbour anyway wait for the comparison with it.
  void meet_neighbours() {
    const pipeline_schedule& s = op_.schedule;
    free_.around().throw_refused();
    std::map<rank_id, term_comparison::numbers> mine;
    for (const rank_id peer : std::set<rank_id>(op_.ranks.begin(), op_.ranks.end())) {
      const std::vector<std::uint32_t> between = peer == self_ ? std::vector<std::uint32_t>() : stages_before(peer);
      if (between.empty()) continue;
      free_.around().expect(peer);
      if (free_.space().has_streams() || !free_.terms_with(peer).due(messages_, peer)) continue;
      term_comparison::numbers& with = mine[peer];
      with = {hash_of(text_of(s)), s.stages, s.microbatches, 0};
      with.resize(of_first_size + named_sizes);
      for (std::size_t i = 0; i < between.size(); ++i) {
        const std::uint64_t bytes = stages_.activation_bytes(between[i]);
        with[of_activations] = runtime::mix(with[of_activations] ^ runtime::mix(between[i] + 1) ^ bytes);
        if (i < named_sizes) with[of_first_size + i] = bytes;
      }
    }
    constexpr std::uint32_t tag = 0xfffffffe;  // beyond those of activations
    static constexpr char compares[] =
        "; this message compares the schedules of the two ranks, before their first run: see "
        "whether both run the op";
    for (auto& [peer, numbers] : mine) {
      auto check = [this, from = peer](std::span<const std::uint64_t> here, std::span<const std::uint64_t> there) {
        check_terms(from, here, there);
      };
      compared_[peer] = free_.terms_with(peer).start(*flow_, messages_,
                                                     {.peer = peer, .tag_out = tag, .tag_in = tag, .remark = compares},
                                                     std::move(numbers), std::move(check));
    }
  }
  void check_terms(rank_id peer, std::span<const std::uint64_t> mine, std::span<const std::uint64_t> theirs) const {
    if (std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end())) return;
    const std::string who = title_ + ": rank " + std::to_string(peer) + " and this rank " + std::to_string(self_) + " ";
    const auto words = [](std::span<const std::uint64_t> t) {
      return std::to_string(t[of_stages]) + " stages and " + std::to_string(t[of_microbatches]) + " microbatches";
    };
    std::string what = "use different sizes for what passes between them";
    const std::vector<std::uint32_t> between = stages_before(peer);
    for (std::size_t i = 0; i < std::min(between.size(), named_sizes); ++i) {
      const std::uint64_t here = mine[of_first_size + i];
      const std::uint64_t there = theirs[of_first_size + i];
      if (here == there) continue;
      what = "use different sizes for what stage " + std::to_string(between[i]) +
             " passes on: " + std::to_string(there) + " and " + std::to_string(here) + " bytes";
      break;
    }
    what += "; give all ranks the same activation_bytes";
    if (mine[of_schedule] != theirs[of_schedule])
      what = "run schedules that differ" +
             (words(mine) == words(theirs) ? ", with other actions, both of " + words(mine)
                                           : ", of " + words(theirs) + " and of " + words(mine)) +
             "; give all ranks the same, as parley::text_of(schedule) shows it";
    runtime::raise(runtime::error::in_words(errc::declaration_mismatch, {.op = op_.name, .rank = self_, .peer = peer},
                                            who + what));
  }

  struct route {
    rank_id peer;
    std::uint32_t tag;
    bool forward;
  };
  route route_of(const pipeline_action& a) const {
    const bool forward = a.what == kind::send_forward || a.what == kind::receive_forward;
    const bool up = a.what == kind::send_forward || a.what == kind::receive_backward;
    const std::uint32_t other = up ? a.stage + 1 : a.stage - 1;
    return {op_.ranks[op_.schedule.rank_of(other)], (std::min(a.stage, other) << 1U) | (forward ? 0U : 1U), forward};
  }

  void send(const pipeline_action& a) {
    held& h = held_of(a);
    const route to = route_of(a);
    ++report.sent;
    const auto what = (to.forward ? h.out : h.gradient_in).bytes();
    // On a device, the data is not computed yet. The send starts when its computation begins, so the receiver has time to send a credit.
    runtime::compute_queue before;
    if (enqueued_.size() > 1) enqueued_[enqueued_.size() - 2].wait_on(before);
    h.leaving[to.forward ? 0 : 1] =
        messages_.start(*flow_, {p2p::isend(what, {.to = to.peer, .tag = to.tag})}, {.after = &before});
  }

  void receive(const pipeline_action& a) {
    held& h = held_of(a);
    const route from = route_of(a);
    buffers::piece& into = from.forward ? h.in : h.gradient_out;
    free_.fit(into, from.forward ? in_bytes(a.stage) : out_bytes(a.stage));
    const std::uint64_t expected = on_device_ ? free_.space().expect(into.bytes()) : 0;
    h.coming[from.forward ? 0 : 1] =
        messages_.start(*flow_, {p2p::irecv(into.bytes(), {.from = from.peer, .tag = from.tag, .expected = expected})});
  }

  using actions_at = std::vector<pipeline_action>::const_iterator;
  // Returns the end of the actions whose receives are started before `at` is done.
  actions_at horizon(actions_at at, actions_at end) const {
    std::size_t computations = on_device_ ? receives_ahead : 0;
    for (++at; at != end && computations != 0; ++at) {
      if (at->computes()) --computations;
    }
    return at;
  }

  // Waits for the input. On a device, waits until at most one computation is enqueued. That limits memory, and how far one rank can get
  // ahead of another.
  task<> may_begin(const pipeline_action& a, held& h) {
    if (!on_device_) {
      co_await came(a, h);
      co_return;
    }
    for (const runtime::flow_work& coming : h.coming) {
      if (coming.size() != 0 && coming.done()) co_await coming;  // throws its error
    }
    if (enqueued_.size() < computations_ahead) co_return;
    const runtime::flow_work oldest = std::move(enqueued_.front());
    enqueued_.pop_front();
    co_await oldest;
  }

  // Notes a computation. It ends with the work that was just enqueued on the device, not with later work for the same memory.
  task<> note_enqueued(const pipeline_memory& m) {
    std::span<const std::byte> last = m.gradient_out.empty() ? m.out : m.gradient_out;
    if (!m.gradient_in.empty()) last = m.gradient_in;
    enqueued_.push_back(flow_->compute({}, [this, last] { return free_.space().settled(last); }));
    co_await runtime::yield;
  }

  task<> came(const pipeline_action& a, held& h) {
    const bool forward = a.what == kind::forward;
    const runtime::flow_work& coming = h.coming[forward ? 0 : 1];
    if (coming.size() == 0) co_return;
    const std::uint32_t other = forward ? a.stage - 1 : a.stage + 1;
    const rank_id peer = op_.ranks[op_.schedule.rank_of(other)];
    waits_ = {.step = a, .peer = peer};
    const auto compared = compared_.find(peer);
    if (compared != compared_.end()) co_await compared->second;
    co_await coming;
    waits_.reset();
    free_.around().heard(peer);
    check_came(a, coming.bytes(), (forward ? h.in : h.gradient_out).bytes().size());
  }

  // The time of a stage's work, without its waits for other ranks.
  task<time_ns> time_of_work(pipeline_action a, pipeline_memory memory) {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::work_meter meter(here.where());
    const runtime::implementation mine(here, {"op", op_.name}, "stage");
    runtime::scope measured(here, {.meter = &meter, .inside = &mine});
    measured.spawn(stages_.work(a, memory));
    co_await measured.join();
    if (on_device_) co_await note_enqueued(memory);
    co_return meter.worked_ns();
  }

  task<> compute(pipeline_action a) {
    held& h = held_of(a);
    const bool forward = a.what == kind::forward;
    co_await may_begin(a, h);
    if (forward) {
      free_.fit(h.out, out_bytes(a.stage));
      report.most_alive = std::max(report.most_alive, ++alive_[a.stage]);
    } else {
      free_.fit(h.gradient_in, in_bytes(a.stage));
    }
    pipeline_memory memory{.in = h.in.bytes(), .out = h.out.bytes(), .gradient_out = {}, .gradient_in = {}};
    if (!forward) {
      memory.gradient_out = h.gradient_out.bytes();
      memory.gradient_in = h.gradient_in.bytes();
    }
    const time_ns took = co_await time_of_work(a, memory);
    report.busy_ns += took;
    (forward ? busy_forward_ns : busy_backward_ns) += took;
    if (forward) co_return;
    --alive_[a.stage];
    co_await let_go();
  }

  // The microbatch's messages have ended, but kernels may still use its memory.
  task<> recycle(std::pair<std::uint32_t, std::uint32_t> key, held& h) {
    if (on_device_) {
      co_await came({key.first, kind::forward, key.second}, h);
      co_await came({key.first, kind::backward, key.second}, h);
    }
    for (buffers::piece* p : h.pieces()) {
      if (p->memory) co_await free_.space().settled(p->bytes());
      free_.keep(std::move(*p));
    }
  }

  // Recycles the memory of microbatches when all their actions have ended. It does not wait for sends that the peer has not received yet,
  // because the peer may receive them only after this rank's next actions. The check of schedules also assumes that sends delay no rank.
  task<> let_go() {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> still;
    for (const auto& key : finished_) {
      held& h = held_[key];
      if (h.leaving[0].done() && h.leaving[1].done()) {
        co_await recycle(key, h);
        held_.erase(key);
      } else {
        still.push_back(key);
      }
    }
    finished_ = std::move(still);
  }

  void check_came(const pipeline_action& a, std::uint64_t came, std::uint64_t expected) const {
    if (came == expected) return;
    runtime::raise({errc::bad_argument, title_ + ", " + text_of(a) + ": " + std::to_string(came) +
                                            " bytes came where " + std::to_string(expected) +
                                            " were expected; give all ranks the same activation_bytes"});
  }

  static constexpr std::size_t computations_ahead = 2;
  static constexpr std::size_t receives_ahead = 1;
  const training_pipeline_options& op_;
  const rank_id self_;
  const std::string& title_;
  p2p messages_;
  buffers& free_;
  training_work& stages_;
  const bool on_device_;                     // computations are enqueued before their inputs are here
  std::deque<runtime::flow_work> enqueued_;  // computations that the device has not ended
  runtime::dataflow* flow_ = nullptr;
  struct waiting {
    pipeline_action step;
    rank_id peer;
  };
  std::optional<waiting> waits_;  // set while a step waits for a message
  std::map<std::pair<std::uint32_t, std::uint32_t>, held> held_;
  std::map<rank_id, runtime::flow_work> compared_;                 // in this pass
  std::vector<std::pair<std::uint32_t, std::uint32_t>> finished_;  // their sends may be in flight
  std::map<std::uint32_t, std::uint32_t> alive_;
};

bool training_pipeline::rejoin() { return !idle() && ops::rejoin(messages_, &free_->around()); }

task<pipeline_report> training_pipeline::run(training_work& stages) {
  if (idle()) runtime::raise({errc::bad_argument, title_ + ": this rank has no part in it"});
  messages_.check_caller();
  neighbours& around = free_->around();
  const runtime::finally run_ends([&around, this_run = around.begin_run()] { around.end_run(this_run); });
  pass mine(*this, stages);
  call_guard now(&around);
  std::exception_ptr thrown;
  try {
    co_await runtime::with_dataflow(&pass::run, std::ref(mine), std::cref(op_->schedule.ranks[place_]));
  } catch (...) {
    thrown = mine.in_words(std::current_exception());
  }
  now.end(thrown);
  pipeline_report& report = mine.report;
  const auto computed = static_cast<double>(std::max<time_ns>(report.busy_ns, 1));
  report.idle_share = 1 - computed / static_cast<double>(std::max<time_ns>(report.elapsed_ns, 1));
  const pipeline_times mean{static_cast<double>(std::max<time_ns>(mine.busy_forward_ns, 1)),
                            static_cast<double>(std::max<time_ns>(mine.busy_backward_ns, 1))};
  report.ideal_idle_share = estimate(op_->schedule, mean).ranks[place_].idle_share;
  co_return report;
}

}  // namespace parley::ops
