#pragma once
/// One step of a flow (dataflow.hpp): its work, the steps that it waits for, and the steps that wait for it. `step_graph` holds the steps
/// of one flow.
///
///     class unpacking final : public flow_step {
///       std::string title() const override { return "unpacking"; }
///       task<> run() override { … }
///     };
///     flow_work work = flow.add(new_step<unpacking>(…), uses);
///
/// An exception from `run` ends the step, and is the step's failure. A step that needs no coroutine overrides `go` instead, which costs a
/// fifth as much; a step that is a single call derives from `call_step` (call_step.hpp). If a step is cancelled or times out before its
/// turn, neither `run` nor `go` is called. In each case, the steps that wait for this one continue only when everything that this one
/// waited for has also ended.
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

/// A flow, its steps, and all pointers to them belong to one thread, so their reference counts need no atomics.
template <class T>
using flow_counted = boost::intrusive_ref_counter<T, boost::thread_unsafe_counter>;
using flow_step_ptr = boost::intrusive_ptr<flow_step>;

template <class Step, class... Arguments>
boost::intrusive_ptr<Step> new_step(Arguments&&... arguments) {
  return boost::intrusive_ptr<Step>(new Step(std::forward<Arguments>(arguments)...));
}

/// The end of one step, or of several together.
struct flow_end {
  /// One wait for this end.
  struct awaited : list_hook {
    explicit awaited(waiter& w) noexcept : who(w) {}
    waiter& who;
  };
  std::size_t open = 1;
  std::exception_ptr thrown;  // of the first step that failed
  intrusive_list<awaited> awaiting;

  void one_ended(const std::exception_ptr& by) noexcept {
    if (by && !thrown) thrown = by;
    if (--open != 0) return;
    while (!awaiting.empty()) awaiting.pop_front().who.wake(errc::none);
  }
};

/// One of several parts that are waited for together: a step, or an operation that ended at once and needed no step.
struct flow_part {
  flow_step_ptr step{};
  std::uint64_t bytes = 0;  ///< bytes moved by such an operation
};

/// Several steps that are waited for together. When the last handle of the batch is gone, its steps forget the batch.
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
  // The parts lie behind this object, in the same block.
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

/// Steps that must begin in the order in which they were added, such as messages that are matched by their order. Must outlive its steps
/// that have not begun.
class begin_sequence {
 public:
  /// True if all of its steps have begun.
  bool idle() const noexcept { return last_ == nullptr; }

 private:
  friend step_graph;
  friend flow_step;
  flow_step* last_ = nullptr;  // the last step added; null: it has begun
};

/// Computations that run in one order, as in a stream of a GPU. After a failure no more of them run.
class compute_queue {
 public:
  compute_queue() noexcept = default;
  compute_queue(const compute_queue&) = delete;
  compute_queue& operator=(const compute_queue&) = delete;

 private:
  friend step_graph;
  friend class dataflow;
  friend class flow_work;
  std::vector<flow_step_ptr> tail_;  // the next step waits for these
};

class flow_step : private list_hook,
                  private ready_call,
                  public flow_end,
                  public flow_counted<flow_step>,
                  public frame_pool::pooled {
 public:
  virtual ~flow_step() = default;
  /// Called at the step's turn: does the step's work.
  virtual task<> run();
  /// The step's name in errors, such as `receive from rank 3, tag 0`.
  virtual std::string title() const = 0;
  /// Bytes that the step has moved; 0 for steps that move no data.
  virtual std::uint64_t bytes() const noexcept { return 0; }

  /// The part of a device's streams in a step: they execute it, or they wait for its end.
  struct on_device {
    const memory_space* memory = nullptr;  ///< memory of that device; null: no device takes part
    enum class kind : std::uint8_t {
      computed,  ///< a kernel writes the memory; the device orders messages after it
      read,      ///< a kernel only reads the memory; the host orders messages into it
      held,      ///< computed, but the stream waits for this step's turn; the host orders messages
      awaited,
    } what = kind::computed;
  };
  /// The device's part for the memory in `use`.
  virtual on_device part_of_device(const buffer_access& /*use*/) const noexcept { return {}; }

  /// True if a step waits for this one.
  bool has_followers() const noexcept { return !followers_.empty(); }
  /// Calls `visit(later, may_begin)` for each step that waits for this one. `may_begin`: `later` may begin before, and only its release
  /// waits.
  template <class Visit>
  void visit_followers(const Visit& visit) const {
    for (const follower& f : followers_) visit(*f.step, f.how == follower::waits::to_be_released);
  }
  /// The next step of the same `begin_sequence`, which begins once this one has begun; null: none.
  const flow_step* next_to_begin() const noexcept { return next_begin_.get(); }

 protected:
  flow_step() noexcept : ready_call(&on_ready), turn_(*this) {}
  /// Called instead of `run`: does the work, or starts it, at once. The step must call `end` at some time. Before that the ready queue may
  /// call `on_turn`, even several times, if the step calls `go_on_later` or passes `as_continuation` to a wait.
  virtual void go() noexcept;
  virtual void on_turn() noexcept {}
  void go_on_later() noexcept;
  continuation as_continuation() noexcept { return static_cast<ready_call&>(*this); }
  /// Ends the step. The step must not be touched after this.
  void end() noexcept;
  void end(std::exception_ptr failed) noexcept {
    thrown = std::move(failed);
    end();
  }
  /// Called when the step is cancelled after `go`. An override must end the step's own waits with `why`. Waits in
  /// `own_scope` need not be ended.
  virtual void on_cancelled(errc /*why*/) noexcept {}
  /// The scope that the step's waits belong to: the flow's, or the step's own.
  scope& home() noexcept;
  /// The step's own scope, made at the first use. Cancelling this step cancels the tasks in this scope.
  scope& own_scope() noexcept;

  /// Returns true if a device, or the step itself, orders this step's use of the memory after `earlier`; then the flow does not order them.
  virtual bool comes_after(const flow_step& /*earlier*/, const buffer_access& /*use*/) { return false; }
  /// True if `earlier` is a computation on `memory`'s device and the device itself orders later messages of the buffer in `use` after it.
  static bool is_computed_on(const memory_space& memory, const flow_step& earlier, const buffer_access& use) noexcept {
    const on_device part = earlier.part_of_device(use);
    return part.memory == &memory && part.what == on_device::kind::computed;
  }
  bool has_to_wait() const noexcept { return unmet_ != 0; }
  /// True while a step for which `comes_after` returned true has not been released. `on_passed` is called when the last of them is
  /// released, unless this step has ended by then.
  bool is_behind() const noexcept { return behind_ != 0; }
  virtual void on_passed() noexcept {}
  /// For steps of a `begin_sequence`: lets the next step begin.
  void note_begun() noexcept;
  /// Called when the step does not run, for the reason in `thrown`, or is torn down. Override it to inform code that expects the step.
  virtual void on_abandoned() noexcept {}
  /// Called when the flow is destroyed before this step is released: the step's operations must not touch it or a buffer any more.
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
  // Allocated only for steps with a coroutine or a deadline.
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

  // The step's wait for other steps, and then for its begin.
  struct turn : waiter {
    explicit turn(flow_step& s) noexcept : waiter(&on_given_up), owner(s) {}
    static void on_given_up(waiter& self, errc why) noexcept;
    flow_step& owner;
  };
  enum class stage : std::uint8_t { waiting, due, going, given_up, ended };

  step_graph* flow_ = nullptr;
  flow_step_ptr held_;  // the flow's reference, until the step is released
  named_buffer use_;    // the step's buffer, if it has only one
  std::vector<named_buffer> uses_;
  std::vector<follower> followers_;
  begin_sequence* sequence_ = nullptr;
  flow_step_ptr next_begin_;
  intrusive_list<flow_batch::part> wholes_;  // the step's places in batches
  flow_step_ptr to_blame_;                   // the failed step that should have written this step's input
  std::unique_ptr<own_place> own_;
  turn turn_;
  std::size_t unmet_ = 0;
  std::size_t behind_ = 0;       // number of steps that delay its release, but not its begin
  errc cancelled_ = errc::none;  // of this step alone
  stage stage_ = stage::waiting;
  bool begun_ = false;
  bool torn_ = false;      // its flow was destroyed
  bool released_ = false;  // followers may begin: this step and everything that it waited for have ended
  bool seen_ = false;      // its failure was received
};

/// Options of a step in its flow.
struct step_options {
  time_ns timeout_ns = never;      ///< from now on, including waits for other steps
  compute_queue* after = nullptr;  ///< the step begins after everything that is in this queue now
  begin_sequence* sequence = nullptr;
};

/// The unreleased steps of one flow, and the steps that each of them waits for. A flow derives from this class (dataflow.hpp).
class step_graph {
 public:
  step_graph(const step_graph&) = delete;
  step_graph& operator=(const step_graph&) = delete;

  executor& where() const noexcept { return all_.where(); }
  /// Adds a step without making a handle for it. It can be waited for only as a part of `together`.
  void put(const flow_step_ptr& step, std::span<const buffer_access> uses, const step_options& o = {});
  /// True if a step that is added now would begin at once. Then an operation that ends at once needs no step.
  bool may_begin(const buffer_access& use, const step_options& o) const {
    return all_.where().resuming() && (o.after == nullptr || o.after->tail_.empty()) &&
           (o.sequence == nullptr || o.sequence->last_ == nullptr) && is_free(use);
  }
  /// True if a step that is added now would have no step to wait for.
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
  /// Waits until all steps have ended. The wait cannot be cancelled: cancel the flow instead.
  joiner join() noexcept { return joiner(*this); }
  void cancel(errc why = errc::cancelled) noexcept { all_.cancel(why); }
  void stop_at_failure() noexcept { stops_at_failure_ = true; }
  std::size_t running() const noexcept { return running_; }
  /// The failure to report for `thrown`, which the program caught while the flow ran. `thrown` may be only a consequence, through other
  /// ranks, of an earlier failure on this rank. If so, returns that failure: of a step that was not awaited, or of the step that stopped
  /// the flow.
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
