#pragma once
/// One thing that a flow does (dataflow.hpp): what it is, whom it waits for, and who waits for it. `step_graph` has those of one flow.
///
///     class unpacking final : public flow_step {
///       std::string title() const override { return "unpacking"; }
///       task<> run() override { … }
///     };
///     flow_work work = flow.add(new_step<unpacking>(…), uses);
///
/// What `run` throws ends the step with it. One that needs no coroutine overrides `go` instead, which costs a fifth of it; what is a
/// single call has that done for it (call_step.hpp). Cancelled, or late, before its turn: neither is ever called. Either way who waits
/// for the step goes on only when all that it waited for itself has ended too.
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/dataflow/buffer_order.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <boost/smart_ptr/intrusive_ref_counter.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::runtime {

class step_graph;
class flow_step;

/// A flow, its steps, and all that points at them belong to one thread: their counts need no atomics.
template <class T>
using flow_counted = boost::intrusive_ref_counter<T, boost::thread_unsafe_counter>;
using flow_step_ptr = boost::intrusive_ptr<flow_step>;

template <class Step, class... Arguments>
boost::intrusive_ptr<Step> new_step(Arguments&&... arguments) {
  return boost::intrusive_ptr<Step>(new Step(std::forward<Arguments>(arguments)...));
}

/// The end of one step, or of several together.
struct flow_end {
  /// Somebody who waits for it.
  struct awaited : list_hook {
    explicit awaited(waiter& w) noexcept : who(w) {}
    waiter& who;
  };
  std::size_t open = 1;
  std::exception_ptr thrown;  // by the first that failed
  intrusive_list<awaited> awaiting;

  void one_ended(const std::exception_ptr& by) noexcept {
    if (by && !thrown) thrown = by;
    if (--open != 0) return;
    while (!awaiting.empty()) awaiting.pop_front().who.wake(errc::none);
  }
};

/// One of several that are waited for together: a step, or what was over at once and needed none.
struct flow_part {
  flow_step_ptr step{};
  std::uint64_t bytes = 0;  ///< that were moved without one
};

/// Several steps, for who waits for all of them. One that nobody holds any more is forgotten by its steps.
struct flow_batch final : flow_end, flow_counted<flow_batch> {
  struct part : list_hook {
    flow_batch* whole = nullptr;
    flow_part is;
  };
  static boost::intrusive_ptr<flow_batch> of(std::span<const flow_part> parts);
  flow_batch(const flow_batch&) = delete;
  flow_batch& operator=(const flow_batch&) = delete;
  ~flow_batch() { std::destroy_n(first(), size_); }
  std::span<const part> parts() const noexcept { return {first(), size_}; }
  // Its parts lie behind it.
  static void operator delete(flow_batch* over, std::destroying_delete_t) noexcept {
    const std::size_t bytes = bytes_for(over->size_);
    over->~flow_batch();
    frame_pool::release(over, bytes);
  }

 private:
  explicit flow_batch(std::span<const flow_part> parts) noexcept;
  static constexpr std::size_t bytes_for(std::size_t size) noexcept { return sizeof(flow_batch) + size * sizeof(part); }
  part* first() noexcept { return reinterpret_cast<part*>(this + 1); }
  const part* first() const noexcept { return reinterpret_cast<const part*>(this + 1); }
  std::size_t size_;
};

/// Steps that must begin in the order in which they were added, such as messages that are matched by their order. It outlives
/// those of its steps that have not begun.
class begin_sequence {
 public:
  /// Whether none of its steps is still to begin.
  bool idle() const noexcept { return last_ == nullptr; }

 private:
  friend step_graph;
  friend flow_step;
  flow_step* last_ = nullptr;  // if it has not begun
};

/// Computations in one order, as a stream of a GPU has them. After a failure nothing more of it runs.
class compute_queue {
 public:
  compute_queue() noexcept = default;
  compute_queue(const compute_queue&) = delete;
  compute_queue& operator=(const compute_queue&) = delete;

 private:
  friend step_graph;
  friend class dataflow;
  friend class flow_work;
  std::vector<flow_step_ptr> tail_;  // what the next one comes after
};

class flow_step : private list_hook,
                  private ready_call,
                  public flow_end,
                  public flow_counted<flow_step>,
                  public frame_pool::pooled {
 public:
  virtual ~flow_step() = default;
  /// What it does, once its turn has come.
  virtual task<> run();
  /// `receive from rank 3, tag 0`: what errors call it.
  virtual std::string title() const = 0;
  /// For those that move data: how much.
  virtual std::uint64_t bytes() const noexcept { return 0; }

  /// What the streams of a device have to do with it: they do it, or they wait for its end by themselves.
  struct on_device {
    const memory_space* memory = nullptr;  ///< of that device; null: nothing
    enum class kind : std::uint8_t {
      computed,  ///< messages that touch the memory come after that by themselves
      read,      ///< computed with it: those into it do not
      held,      ///< computed, and the stream waits for this step's turn: no messages do
      awaited,
    } what = kind::computed;
  };
  /// In the memory that `use` names.
  virtual on_device part_of_device(const buffer_access& /*use*/) const noexcept { return {}; }

  /// Whether a step waits for this one.
  bool has_followers() const noexcept { return !followers_.empty(); }
  /// Calls `visit(later, may_begin)` for each step that waits for this one: one that may begin waits with its end alone.
  template <class Visit>
  void visit_followers(const Visit& visit) const {
    for (const follower& f : followers_) visit(*f.step, f.how == follower::waits::to_be_released);
  }
  /// Of its `begin_sequence`: that one begins once this one has begun. Null: none.
  const flow_step* next_to_begin() const noexcept { return next_begin_.get(); }

 protected:
  flow_step() noexcept : ready_call(&on_ready), turn_(*this) {}
  /// Instead of `run`: does it, or begins it, at once. It must come to call `end`; before that it may ask to be called by the ready queue,
  /// as `on_turn`, one time and another, by `go_on_later` or by giving `as_continuation` away.
  virtual void go() noexcept;
  virtual void on_turn() noexcept {}
  void go_on_later() noexcept;
  continuation as_continuation() noexcept { return static_cast<ready_call&>(*this); }
  /// Nothing of it may be touched after this.
  void end() noexcept;
  void end(std::exception_ptr failed) noexcept {
    thrown = std::move(failed);
    end();
  }
  /// While `go` is under way: its waits end with `why`. Those in `own_scope` do so by themselves.
  virtual void on_cancelled(errc /*why*/) noexcept {}
  /// Where its waits belong: the flow's scope, or one of its own.
  scope& home() noexcept;
  /// One of its own, made when it is first needed: what runs there is cancelled with this step alone.
  scope& own_scope() noexcept;

  /// Whether a device, or the step itself, sees to it that this, with what `use` names, comes after `earlier`: the flow need not then.
  virtual bool comes_after(const flow_step& /*earlier*/, const buffer_access& /*use*/) { return false; }
  /// Of a step whose buffers lie in `memory`, where messages come after what kernels do with them.
  static bool is_computed_on(const memory_space& memory, const flow_step& earlier, const buffer_access& use) noexcept {
    const on_device part = earlier.part_of_device(use);
    return part.memory == &memory && part.what == on_device::kind::computed;
  }
  bool has_to_wait() const noexcept { return unmet_ != 0; }
  /// Whether a step that `comes_after` answered for has not been released yet: `on_passed` is called once none is left, unless this one
  /// has ended by then.
  bool is_behind() const noexcept { return behind_ != 0; }
  virtual void on_passed() noexcept {}
  /// For steps of a `begin_sequence`: the next one may begin.
  void note_begun() noexcept;
  /// It is not run, for what `thrown` says, or was torn down: whoever else was told that it would happen has to hear that.
  virtual void on_abandoned() noexcept {}
  /// It is torn down while it is under way: what it has begun must not touch it, or any buffer, any more.
  virtual void on_torn_down() noexcept {}

 private:
  friend step_graph;
  friend flow_batch;
  friend class flow_work;
  friend class intrusive_list<flow_step>;
  struct follower {
    flow_step_ptr step;
    bool needs_data;
    enum class waits : std::uint8_t { to_begin, to_be_released } how;
  };
  // What a coroutine or a deadline needs, and other steps do without.
  struct own_place final : task_observer, frame_pool::pooled {
    own_place(flow_step& s, scope& parent, scope::options o) noexcept : owner(s), inside(parent, o) {}
    void on_task_end(promise_base& ended) noexcept override;
    flow_step& owner;
    scope inside;
  };
  struct named_buffer {
    buffer_access access;
    buffer_order<flow_step_ptr>::mark at{};
  };
  void set_uses(std::span<const buffer_access> uses) {
    if (uses.size() == 1) {
      use_.access = uses[0];
    } else {
      for (const buffer_access& each : uses) uses_.push_back({each});
    }
  }
  std::span<named_buffer> uses() noexcept { return uses_.empty() ? std::span(&use_, 1) : std::span(uses_); }
  void wait_for(flow_step& earlier, bool data);
  void stay_behind(flow_step& earlier);
  void begin_behind(begin_sequence& sequence);
  void let_next_begin() noexcept;
  void wait_in_scope() noexcept;
  void begin() noexcept;
  void give_up(errc why, bool is_queued) noexcept;
  void cancel(errc why) noexcept;
  void tear_down() noexcept;
  std::exception_ptr blame() const;
  void tell_end() noexcept;
  static void on_ready(ready_call& self) noexcept;

  // While it waits for others, and then until it begins.
  struct turn : waiter {
    explicit turn(flow_step& s) noexcept : waiter(&on_given_up), owner(s) {}
    static void on_given_up(waiter& self, errc why) noexcept;
    flow_step& owner;
  };
  enum class stage : std::uint8_t { waiting, due, going, given_up, ended };

  step_graph* flow_ = nullptr;
  flow_step_ptr held_;  // by the flow, until it is released
  named_buffer use_;    // the only one, or
  std::vector<named_buffer> uses_;
  std::vector<follower> followers_;
  begin_sequence* sequence_ = nullptr;
  flow_step_ptr next_begin_;
  intrusive_list<flow_batch::part> wholes_;  // what it is a part of
  flow_step_ptr to_blame_;                   // its input, which failed
  std::unique_ptr<own_place> own_;
  turn turn_;
  std::size_t unmet_ = 0;
  std::size_t behind_ = 0;       // so many that it need not wait for with its begin, but is not released before
  errc cancelled_ = errc::none;  // alone
  stage stage_ = stage::waiting;
  bool begun_ = false;
  bool torn_ = false;      // with its flow
  bool released_ = false;  // who waits for it may go on: it has ended, and so have all that it waited for
  bool seen_ = false;      // somebody was told of its failure
};

/// How a step is put into its flow.
struct step_options {
  time_ns timeout_ns = never;      ///< from now, waiting for others included
  compute_queue* after = nullptr;  ///< it begins after what is in there now
  begin_sequence* sequence = nullptr;
};

/// The steps of one flow that have not been released, and whom each waits for. A flow is one (dataflow.hpp).
class step_graph {
 public:
  step_graph(const step_graph&) = delete;
  step_graph& operator=(const step_graph&) = delete;

  executor& where() const noexcept { return all_.where(); }
  /// For one of several that are waited for `together`, or that nobody waits for.
  void put(const flow_step_ptr& step, std::span<const buffer_access> uses, const step_options& o = {});
  /// Whether a step that is put now would begin at once: what is over as soon as it has begun needs none then.
  bool may_begin(const buffer_access& use, const step_options& o) const {
    return all_.where().resuming() && (o.after == nullptr || o.after->tail_.empty()) &&
           (o.sequence == nullptr || o.sequence->last_ == nullptr) && is_free(use);
  }
  /// Whether a step that is put now would have nobody to wait for.
  bool is_free(const buffer_access& use) const { return order_.is_free(use); }
  class [[nodiscard]] joiner : private list_hook {
   public:
    explicit joiner(step_graph& joined) noexcept : joined_(joined) {}
    bool await_ready() const noexcept { return joined_.running_ == 0; }
    template <class P>
    void await_suspend(std::coroutine_handle<P> h) noexcept {
      waiting_ = h;
      joined_.joiners_.push_back(*this);
      wait_.begin(h.promise().home->meter());
    }
    void await_resume() {
      wait_.end();
      joined_.throw_unseen();
    }

   private:
    friend step_graph;
    friend class intrusive_list<joiner>;
    step_graph& joined_;
    std::coroutine_handle<> waiting_;
    work_meter::wait wait_;
  };
  /// Until nothing runs any more. Not cancellable: cancelling the flow is what ends it.
  joiner join() noexcept { return joiner(*this); }
  void cancel(errc why = errc::cancelled) noexcept { all_.cancel(why); }
  void stop_at_failure() noexcept { stops_at_failure_ = true; }
  std::size_t running() const noexcept { return running_; }
  /// What to say of a failure that was met while it ran: where that may only be what a failure of this rank's has made others do, what
  /// one of its own steps, which nobody has awaited, has failed with before.
  std::exception_ptr cause_of(std::exception_ptr thrown) const;

 protected:
  explicit step_graph(scope& parent) noexcept : all_(parent) {}
  explicit step_graph(executor& ex) noexcept : all_(ex) {}
  ~step_graph();

 private:
  friend flow_step;
  void note_end(flow_step& step) noexcept;
  void begin(flow_step& step) noexcept;
  void one_met(flow_step& step) noexcept;
  void one_passed(flow_step& step) noexcept;
  void release_if_free(flow_step& step) noexcept;
  void release(flow_step& step) noexcept;
  void let_go(flow_step& step) noexcept;
  void throw_unseen();

  static constexpr std::size_t most_unseen = 64;
  scope all_;
  buffer_order<flow_step_ptr> order_;
  intrusive_list<flow_step> live_;  // not released yet
  intrusive_list<flow_step::turn> beginning_;
  bool is_beginning_ = false;
  intrusive_list<flow_step> releasing_;
  bool is_releasing_ = false;
  std::size_t running_ = 0;
  intrusive_list<joiner> joiners_;
  std::vector<flow_step_ptr> failed_;
  bool stops_at_failure_ = false;
  std::exception_ptr stopped_by_;
};

}  // namespace parley::runtime
