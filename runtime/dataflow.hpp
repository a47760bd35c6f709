#pragma once
/// Steps that run when what they read is there and nobody needs what they overwrite any more: found from the buffers that each
/// one names, in the order in which the program made them.
///
///     scope& here = co_await this_scope;
///     dataflow flow(here);
///     auto came = exchange.start(flow, {exchange.isend(x, {.to = next}), exchange.irecv(y, {.from = previous})});
///     flow.compute({reads(x), writes(t)}, [&] { t = twice(x); });          // beside the exchange
///     auto sum = flow.compute({reads(y), reads(t), writes(out)}, [&] { out = y + t; });    // once y and t are there
///     co_await sum;                                                        // the host wait; or co_await came[1]
///     co_await flow.join();
///
/// A step waits for the last one that wrote what it reads, and for all that use what it writes. Names must be complete: what a
/// step touches without naming it is not ordered. Steps that have nothing in common run at once, in any order.
///
/// The second wait is in order with a compute queue, for computations that name no buffers:
///
///     compute_queue queue;
///     came.wait_on(queue);                                       // what is put into the queue from now on comes after it
///     flow.compute({}, kernel, {.queue = &queue});               // ... in the order of the queue
///
/// Failure: a step whose input failed does not run, and fails with a text that names the step to blame. A step that only has to
/// come after a failed one runs. `join` throws the first failure that nobody was told of. Cancellation: of one work, or of the
/// flow, ends the waits inside its steps; they still have to be joined, as in a scope. One that ends
/// unjoined, as when an exception passes, is torn down like a scope; `with_dataflow` joins whatever happens, and one made over an
/// executor joins in its destructor. Buffers outlive the flow: make them before it, and outside of the body of `with_dataflow`.
#include <parley/runtime/buffer_order.hpp>
#include <parley/runtime/compute.hpp>
#include <parley/runtime/error.hpp>
#include <parley/runtime/news.hpp>
#include <parley/runtime/run.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::runtime {

class dataflow;

template <std::ranges::contiguous_range B>
buffer_access reads(const B& buffer) {
  return {std::as_bytes(std::span(buffer)), buffer_use::read};
}
template <std::ranges::contiguous_range B>
buffer_access writes(const B& buffer) {
  return {std::as_bytes(std::span(buffer)), buffer_use::write};
}
/// Reads and writes.
template <std::ranges::contiguous_range B>
buffer_access updates(const B& buffer) {
  return {std::as_bytes(std::span(buffer)), buffer_use::update};
}

/// The end of one step, or of several together.
struct flow_end {
  std::size_t open = 1;
  std::exception_ptr thrown;  // by the first that failed
  news told;
};

/// Something that a flow does. It is made by `std::make_shared` and given to `dataflow::add`.
class flow_step : private list_hook, public flow_end, public std::enable_shared_from_this<flow_step> {
 public:
  virtual ~flow_step() = default;
  /// What it does, once its turn has come.
  virtual task<> run() = 0;
  /// `receive from rank 3, tag 0`: what errors call it.
  virtual std::string title() const = 0;
  /// For those that move data: how much.
  virtual std::uint64_t bytes() const noexcept { return 0; }

 protected:
  /// For steps of a `begin_sequence`: the next one may begin.
  void note_begun() noexcept;

 private:
  friend dataflow;
  friend class flow_work;
  friend class compute_queue;
  friend class intrusive_list<flow_step>;
  struct follower {
    std::shared_ptr<flow_step> step;
    bool needs_data;
  };
  void wait_for(flow_step& earlier, bool data);
  void one_met() noexcept;
  void end() noexcept;

  std::vector<buffer_access> uses_;
  std::vector<follower> followers_;
  std::shared_ptr<flow_step> next_begin_;
  std::vector<std::shared_ptr<flow_end>> wholes_;  // what it is a part of
  std::shared_ptr<flow_step> to_blame_;            // its input, which failed
  std::optional<scope> own_;
  news ready_;
  std::size_t unmet_ = 0;
  bool begun_ = false;
  bool seen_ = false;  // somebody was told of its failure
};

/// Steps that must begin in the order in which they were added, such as messages that are matched by their order.
class begin_sequence {
  friend dataflow;
  std::weak_ptr<flow_step> last_;
};

/// What was started: one step, or a batch of several. Dropping it changes nothing: the flow joins.
class [[nodiscard]] flow_work {
 public:
  flow_work() noexcept = default;
  flow_work(flow_work&&) noexcept = default;
  flow_work& operator=(flow_work&&) noexcept = default;

  std::size_t size() const noexcept { return steps_.size(); }
  /// One of a batch, by its place.
  flow_work operator[](std::size_t i) const;
  bool done() const noexcept { return end_ == nullptr || end_->open == 0; }
  /// One turn of the loop; then whether it has ended. For code that is no coroutine.
  bool test();
  /// Drives the loop until it has ended; throws what it failed with. For code that is no coroutine.
  void wait();
  result<> outcome();
  /// Of receives and sends, once they have ended: how much came or went.
  std::uint64_t bytes() const noexcept;
  /// Ends its waits with `why`; it ends when the transports have let go.
  void cancel(errc why = errc::cancelled) noexcept;
  /// What is put into `queue` from now on begins after this has ended.
  void wait_on(class compute_queue& queue) const;

  class [[nodiscard]] awaiter {
   public:
    explicit awaiter(const flow_work& of) : of_(of), waiting_(of.end_->told.next(never)) {}
    bool await_ready() const noexcept { return of_.done(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      return waiting_.await_suspend(caller);
    }
    void await_resume() const {
      if (!of_.done()) raise(waiting_.await_resume().reason());
      of_.take();
    }

   private:
    const flow_work& of_;
    news::waiting waiting_;
  };
  /// Until all of it has ended; throws the first failure.
  awaiter operator co_await() const {
    if (end_ == nullptr) raise({errc::bad_argument, "there is nothing to wait for: this work was moved away"});
    return awaiter(*this);
  }

 private:
  friend dataflow;
  friend class compute_queue;
  void take() const;
  void outside_coroutines() const;
  executor* where_ = nullptr;
  std::shared_ptr<flow_end> end_;
  std::vector<std::shared_ptr<flow_step>> steps_;
};

/// Computations in one order, as a stream of a GPU has them. After a failure nothing more of it runs.
class compute_queue {
 public:
  compute_queue() noexcept = default;
  compute_queue(const compute_queue&) = delete;
  compute_queue& operator=(const compute_queue&) = delete;

 private:
  friend dataflow;
  friend flow_work;
  std::vector<std::shared_ptr<flow_step>> tail_;  // what the next one comes after
};

struct step_options {
  time_ns timeout_ns = never;      ///< from now, waiting for others included
  compute_queue* after = nullptr;  ///< it begins after what is in there now
  begin_sequence* sequence = nullptr;
};

struct compute_options {
  std::string name = "computation";
  compute_queue* queue = nullptr;
  enum class place : std::uint8_t {
    worker,        ///< a thread, while the actor thread keeps the transports moving
    actor_thread,  ///< at once, for what takes less than some microseconds
  } where = place::worker;
  time_ns modelled_ns = 0;  ///< in virtual time
};

class dataflow {
 public:
  explicit dataflow(scope& parent) noexcept;
  explicit dataflow(executor& ex) noexcept;
  dataflow(const dataflow&) = delete;
  dataflow& operator=(const dataflow&) = delete;
  ~dataflow();

  executor& where() const noexcept { return all_.where(); }
  /// `f` has no argument; it answers nothing, or a `task<>`.
  template <class F>
  flow_work compute(std::initializer_list<buffer_access> uses, F f, const compute_options& o = {});
  flow_work add(std::shared_ptr<flow_step> step, std::span<const buffer_access> uses, const step_options& o = {});
  /// Several works as one.
  flow_work together(std::vector<flow_work> parts);
  class [[nodiscard]] joiner : private list_hook {
   public:
    explicit joiner(dataflow& joined) noexcept : joined_(joined) {}
    bool await_ready() const noexcept { return joined_.running_ == 0; }
    void await_suspend(std::coroutine_handle<> h) noexcept {
      waiting_ = h;
      joined_.joiners_.push_back(*this);
    }
    void await_resume() const { joined_.throw_unseen(); }

   private:
    friend dataflow;
    friend class intrusive_list<joiner>;
    dataflow& joined_;
    std::coroutine_handle<> waiting_;
  };
  /// Until nothing runs any more. Not cancellable: cancelling the flow is what ends it.
  joiner join() noexcept { return joiner(*this); }
  void cancel(errc why = errc::cancelled) noexcept { all_.cancel(why); }
  std::size_t running() const noexcept { return running_; }

 private:
  static task<> perform(dataflow& flow, std::shared_ptr<flow_step> step);
  void note_end(flow_step& step) noexcept;
  void throw_unseen();

  static constexpr std::size_t most_unseen = 64;
  scope all_;
  enum class at_end : std::uint8_t { torn_down, joined } at_end_;
  buffer_order<flow_step> order_;
  intrusive_list<flow_step> live_;
  std::size_t running_ = 0;
  intrusive_list<joiner> joiners_;
  std::vector<std::shared_ptr<flow_step>> failed_;
};

template <class F>
class compute_step final : public flow_step {
 public:
  compute_step(F f, const compute_options& o) : f_(std::move(f)), name_(o.name), where_(o.where), ns_(o.modelled_ns) {}
  std::string title() const override { return name_; }
  task<> run() override {
    if constexpr (std::is_void_v<std::invoke_result_t<F&>>) {
      if (where_ == compute_options::place::actor_thread) {
        f_();
      } else {
        auto call = [this] { f_(); };
        co_await runtime::compute(call, ns_);
      }
    } else {
      co_await f_();
    }
  }

 private:
  F f_;
  std::string name_;
  compute_options::place where_;
  time_ns ns_;
};

template <class F>
flow_work dataflow::compute(std::initializer_list<buffer_access> uses, F f, const compute_options& o) {
  flow_work made = add(std::make_shared<compute_step<F>>(std::move(f), o), uses, {.after = o.queue});
  if (o.queue != nullptr) o.queue->tail_ = made.steps_;
  return made;
}

/// `body(flow, arguments...)`, a coroutine, over a flow that is joined whatever happens.
template <class Body, class... Arguments>
task<> with_dataflow(Body body, Arguments... arguments) {
  scope& here = co_await this_scope;
  dataflow flow(here);
  std::exception_ptr thrown;
  try {
    co_await body(flow, std::forward<Arguments>(arguments)...);
  } catch (...) {
    thrown = std::current_exception();
    flow.cancel();
  }
  try {
    co_await flow.join();
  } catch (...) {
    if (!thrown) thrown = std::current_exception();
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace parley::runtime
