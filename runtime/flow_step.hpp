#pragma once
/// One thing that a flow does (dataflow.hpp): what it is, whom it waits for, and who waits for it.
///
///     class unpacking final : public flow_step {
///       std::string title() const override { return "unpacking"; }
///       task<> run() override { … }
///     };
///     flow_work work = flow.add(new_step<unpacking>(…), uses);
///
/// What `run` throws ends the step with it. Cancelled, or late, before its turn: `run` is never called. Either way who waits for
/// the step goes on only when all that it waited for itself has ended too.
#include <parley/runtime/buffer_order.hpp>
#include <parley/runtime/frame_pool.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/news.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/runtime/task.hpp>

#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <boost/smart_ptr/intrusive_ref_counter.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::runtime {

class dataflow;
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
  std::size_t open = 1;
  std::exception_ptr thrown;  // by the first that failed
  news told;

  void one_ended(const std::exception_ptr& by) noexcept;
};

/// Several steps, for who waits for all of them. One that nobody holds any more is forgotten by its steps.
struct flow_batch : flow_end, flow_counted<flow_batch> {
  struct part : list_hook {
    flow_batch* whole = nullptr;
    flow_step_ptr step;
  };
  explicit flow_batch(std::span<const flow_step_ptr> steps);
  std::span<const part> parts() const noexcept { return {parts_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<part[]> parts_;
};

/// Steps that must begin in the order in which they were added, such as messages that are matched by their order. It outlives
/// those of its steps that have not begun.
class begin_sequence {
  friend dataflow;
  friend flow_step;
  flow_step* last_ = nullptr;  // if it has not begun
};

class flow_step : private list_hook,
                  private task_observer,
                  public flow_end,
                  public flow_counted<flow_step>,
                  public frame_pool::pooled {
 public:
  virtual ~flow_step() = default;
  /// What it does, once its turn has come.
  virtual task<> run() = 0;
  /// `receive from rank 3, tag 0`: what errors call it.
  virtual std::string title() const = 0;
  /// For those that move data: how much.
  virtual std::uint64_t bytes() const noexcept { return 0; }

 protected:
  flow_step() noexcept : turn_(*this) {}
  /// For steps of a `begin_sequence`: the next one may begin.
  void note_begun() noexcept;
  /// It is not run, or was torn down: whoever else was told that it would happen has to hear that.
  virtual void on_abandoned() noexcept {}

 private:
  friend dataflow;
  friend flow_batch;
  friend class flow_work;
  friend class compute_queue;
  friend class intrusive_list<flow_step>;
  struct follower {
    flow_step_ptr step;
    bool needs_data;
  };
  void set_uses(std::span<const buffer_access> uses);
  std::span<const buffer_access> uses() const noexcept;
  void wait_for(flow_step& earlier, bool data);
  void begin_behind(begin_sequence& sequence);
  void wait_in_scope() noexcept;
  void begin() noexcept;
  task<> fail(std::exception_ptr why);
  void give_up(errc why) noexcept;
  std::exception_ptr blame() const;
  void tell_end() noexcept;
  void on_task_end(promise_base& ended) noexcept override;

  // While it waits for others.
  struct turn : waiter {
    explicit turn(flow_step& s) noexcept : waiter(&on_given_up), owner(s) {}
    static void on_given_up(waiter& self, errc why) noexcept;
    flow_step& owner;
  };
  enum class stage : std::uint8_t { waiting, going, ended };

  dataflow* flow_ = nullptr;
  flow_step_ptr held_;  // by the flow, until it is released
  buffer_access use_;   // the only one, or
  std::vector<buffer_access> uses_;
  std::vector<follower> followers_;
  begin_sequence* sequence_ = nullptr;
  flow_step_ptr next_begin_;
  intrusive_list<flow_batch::part> wholes_;  // what it is a part of
  flow_step_ptr to_blame_;                   // its input, which failed
  std::optional<scope> own_;
  turn turn_;
  std::size_t unmet_ = 0;
  stage stage_ = stage::waiting;
  bool begun_ = false;
  bool released_ = false;  // who waits for it may go on: it has ended, and so have all that it waited for
  bool seen_ = false;      // somebody was told of its failure
};

}  // namespace parley::runtime
