#pragma once
/// One step of a flow (dataflow.hpp): what it does, what it waits for, and what waits for it. `step_graph` holds the steps of one flow.
///
///     class unpacking final : public flow_step {
///       std::string title() const override { return "unpacking"; }
///       task<> run() override { … }
///     };
///     flow_work work = flow.add(new_step<unpacking>(…), uses);
///
/// An exception from `run` ends the step, and is the step's failure. A step that needs no coroutine overrides `go` instead, which costs a
/// fifth as much; a step that is a single call derives from `call_step` (call_step.hpp). If a step is cancelled or late before its turn,
/// neither is called. In each case, the steps that wait for this one go on only when all that this one waited for has ended, too.
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

/// A flow, its steps, and all that points at them belong to one thread, so that their reference counts need no atomics.
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

/// One of several parts that are waited for together: a step, or an operation that was over at once and needed no step.
struct flow_part {
  flow_step_ptr step{};
  std::uint64_t bytes = 0;  ///< moved without a step
};

/// Several steps that are waited for together. When nobody holds the batch any more, its steps forget it.
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

/// Steps that must begin in the order in which they were added, such as messages that are matched by their order. Must outlive
/// those of its steps that have not begun.
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
  std::vector<flow_step_ptr> tail_;  // the next one waits for these
};

class flow_step : private list_hook,
                  private ready_call,
                  public flow_end,
                  public flow_counted<flow_step>,
                  public frame_pool::pooled {
 public:
  virtual ~flow_step() = default;
  /// Does the step's work, once its turn has come.
  virtual task<> run();
  /// The step's name in errors, such as `receive from rank 3, tag 0`.
  virtual std::string title() const = 0;
  /// Bytes that the step has moved; 0 for steps that move no data.
  virtual std::uint64_t bytes() const noexcept { return 0; }

  /// How a device's streams take part in the step: they do it, or they wait for its end by themselves.
  struct on_device {
    const memory_space* memory = nullptr;  ///< of that device; null: no device has a part in it
    enum class kind : std::uint8_t {
      computed,  ///< a kernel writes the memory; the device orders messages after it
      read,      ///< a kernel only reads the memory; the host orders messages into it
      held,      ///< computed, but the stream waits for this step's turn; the host orders messages
      awaited,
    } what = kind::computed;
  };
  /// For the memory that `use` names.
  virtual on_device part_of_device(const buffer_access& /*use*/) const noexcept { return {}; }

  /// True if a step waits for this one.
  bool has_followers() const noexcept { return !followers_.empty(); }
  /// Calls `visit(later, may_begin)` for each step that waits for this one. `may_begin`: only its release waits, not its begin.
  template <class Visit>
  void visit_followers(const Visit& visit) const {
    for (const follower& f : followers_) visit(*f.step, f.how == follower::waits::to_be_released);
  }
  /// The step that begins once this one has begun, of the same `begin_sequence`; null: none.
  const flow_step* next_to_begin() const noexcept { return next_begin_.get(); }

 protected:
  flow_step() noexcept : ready_call(&on_ready), turn_(*this) {}
  /// Called instead of `run`: does the work, or starts it, at once. The step must call `end` at some time. Before that it may ask the ready
  /// queue to call `on_turn`, more than once: by `go_on_later`, or by giving `as_continuation` away.
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
  /// Called when the step is cancelled after `go`: its waits must end with `why`. Waits in `own_scope` end by themselves.
  virtual void on_cancelled(errc /*why*/) noexcept {}
  /// The scope that the step's waits belong to: the flow's, or the step's own.
  scope& home() noexcept;
  /// A scope of the step's own, made when it is first needed. Cancelling this step alone cancels what runs there.
  scope& own_scope() noexcept;

  /// Returns true if a device, or the step itself, orders this step's use of the memory after `earlier`; the flow then does not.
  virtual bool comes_after(const flow_step& /*earlier*/, const buffer_access& /*use*/) { return false; }
  /// True if `earlier` is a computation on `memory`'s device that orders later messages of the buffer in `use` by itself.
  static bool is_computed_on(const memory_space& memory, const flow_step& earlier, const buffer_access& use) noexcept {
    const on_device part = earlier.part_of_device(use);
    return part.memory == &memory && part.what == on_device::kind::computed;
  }
  bool has_to_wait() const noexcept { return unmet_ != 0; }
  /// True while a step for which `comes_after` returned true has not been released. `on_passed` is called when the last of them is
  /// released, unless this step has ended by then.
  bool is_behind() const noexcept { return behind_ != 0; }
  virtual void on_passed() noexcept {}
  /// For steps of a `begin_sequence`: lets the next one begin.
  void note_begun() noexcept;
  /// Called when the step does not run, for the reason in `thrown`, or is torn down. Override it to tell those who expect the step.
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
  // Only steps with a coroutine or a deadline have one.
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
  named_buffer use_;    // if it is the only one
  std::vector<named_buffer> uses_;
  std::vector<follower> followers_;
  begin_sequence* sequence_ = nullptr;
  flow_step_ptr next_begin_;
  intrusive_list<flow_batch::part> wholes_;  // the step's places in batches
  flow_step_ptr to_blame_;                   // the step that should have written this one's input, and failed
  std::unique_ptr<own_place> own_;
  turn turn_;
  std::size_t unmet_ = 0;
  std::size_t behind_ = 0;       // how many steps it may begin before, but is not released before
  errc cancelled_ = errc::none;  // of this step alone
  stage stage_ = stage::waiting;
  bool begun_ = false;
  bool torn_ = false;      // its flow was destroyed
  bool released_ = false;  // followers may go on: this step has ended, and so has all that it waited for
  bool seen_ = false;      // somebody received its failure
};

/// Options of a step in its flow.
struct step_options {
  time_ns timeout_ns = never;      ///< from now on; waiting for other steps counts
  compute_queue* after = nullptr;  ///< the step begins after all that this queue has now
  begin_sequence* sequence = nullptr;
};

/// The steps of one flow that have not been released, and what each of them waits for. A flow derives from this (dataflow.hpp).
class step_graph {
 public:
  step_graph(const step_graph&) = delete;
  step_graph& operator=(const step_graph&) = delete;

  executor& where() const noexcept { return all_.where(); }
  /// Adds a step that is waited for as a part of `together`, or not at all.
  void put(const flow_step_ptr& step, std::span<const buffer_access> uses, const step_options& o = {});
  /// True if a step that is added now would begin at once. An operation that ends as it begins needs no step then.
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
  /// The failure to report for `thrown`, which the program caught while the flow ran. If `thrown` may only follow, by way of other ranks,
  /// from a failure of this rank, returns that one: of a step that nobody has awaited, or of the step that stopped the flow.
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
