#pragma once
// The functions of `tunable_op` that keep its implementations, and run them in trials. parley/tunable_op.hpp includes this at its end.
#include <parley/tunable_op.hpp>

#include <parley/runtime/finally.hpp>

#include <cstddef>
#include <exception>
#include <utility>

namespace parley::ops {

/// An implementation has returned a status other than 0.
[[noreturn]] void raise_status(const std::string& implementation, long status);

template <class Result, class... Args>
std::function<Result(Args...)> tunable_op<Result(Args...)>::checked(std::function<long(Args...)> f, std::string title) {
  return [f = std::move(f), title = std::move(title)](Args... args) {
    if (const long status = f(args...); status != 0) raise_status(title, status);
  };
}

template <class Result, class... Args>
std::vector<std::string> tunable_op<Result(Args...)>::ids_of(const std::vector<implementation>& from) {
  std::vector<std::string> all;
  for (const implementation& i : from) all.push_back(i.id);
  return all;
}

template <class Result, class... Args>
std::vector<std::string> tunable_op<Result(Args...)>::families_of(const std::vector<implementation>& from) {
  std::vector<std::string> all;
  for (const implementation& i : from) all.push_back(i.family);
  return all;
}

template <class Result, class... Args>
std::function<Result(Args...)> tunable_op<Result(Args...)>::function_of(implementation& i) const {
  const std::string title = "kernel " + core_.name() + ": " + i.id;
  if constexpr (!awaited) {
    if (i.run.status_) i.run.plain_ = checked(std::move(i.run.status_), title);
  }
  if (!i.run.plain_) runtime::raise({runtime::errc::bad_argument, title + " has no function"});
  return std::move(i.run.plain_);
}

template <class Result, class... Args>
void tunable_op<Result(Args...)>::add_own(kernel_entry& e, const std::vector<std::string>& named, kernel_core::others o,
                                          Args&... args) {
  std::vector<implementation> mine;
  const auto add = [&](std::vector<implementation> more) {
    for (implementation& i : more) mine.push_back(std::move(i));
  };
  for (const std::string& name : named) add(for_key_(name, args...));
  if (o == kernel_core::others::wanted) add(for_key_({}, args...));
  std::vector<std::function<Result(Args...)>> functions;
  for (implementation& i : mine) functions.push_back(function_of(i));
  const std::vector<std::uint32_t> numbers = core_.set_own(e, ids_of(mine), families_of(mine), o);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    // New ones have the next numbers, in their order.
    if (numbers[i] == run_.size()) run_.push_back(std::move(functions[i]));
  }
}

template <class Result, class... Args>
[[gnu::noinline]] void tunable_op<Result(Args...)>::tune_now(kernel_entry& e, Args... args) {
  kernel_tuning t(core_, e, outputs_of(args...));
  while (const auto step = t.next()) {
    std::exception_ptr thrown;
    try {
      e.runs_now = &core_.ids()[step->candidate];
      const runtime::finally over([&e] { e.runs_now = nullptr; });
      run_[step->candidate](args...);
    } catch (...) {
      thrown = std::current_exception();
    }
    t.end(thrown);
  }
  run_[t.finish()](args...);
}

template <class Result, class... Args>
runtime::task<> tunable_op<Result(Args...)>::tune_later(kernel_entry& e, Args... args) {
  if (e.decided || e.being_tuned) {  // another call has begun since this call was made
    co_await run_[e.winner](args...);
    co_return;
  }
  runtime::scope& here = co_await runtime::this_scope;
  kernel_tuning t(core_, e, outputs_of(args...));
  while (const auto step = t.next()) {
    std::exception_ptr thrown;
    try {
      const runtime::implementation mine(here, core_.title_of(e), core_.ids()[step->candidate]);
      runtime::scope running(here, {.inside = &mine});
      running.begin(run_[step->candidate](args...));
      co_await running.join();
    } catch (...) {
      thrown = std::current_exception();
    }
    if (here.cancelled() != runtime::errc::none) {  // the time of this run means nothing
      if (thrown) std::rethrow_exception(thrown);
      t.restore_outputs();
      co_await run_[e.winner](args...);
      co_return;
    }
    t.end(thrown);
  }
  co_await run_[t.finish()](args...);
}

template <class Result, class... Args>
[[gnu::noinline]] void tunable_op<Result(Args...)>::in_context_now(kernel_entry& e, Args... args) {
  contextual_run& run = *core_.context().contextual();
  core_.check_caller(e);
  auto turn = run.begin(core_, e, outputs_for(run, args...));
  std::exception_ptr thrown;
  do {
    thrown = nullptr;
    try {
      e.runs_now = &core_.ids()[turn.config];
      const runtime::finally over([&e] { e.runs_now = nullptr; });
      run_[turn.config](args...);
    } catch (...) {
      thrown = std::current_exception();
    }
  } while (!run.end(turn, thrown));
}

template <class Result, class... Args>
runtime::task<> tunable_op<Result(Args...)>::in_context_later(kernel_entry& e, Args... args) {
  runtime::scope& here = co_await runtime::this_scope;
  contextual_run& run = *core_.context().contextual();
  core_.check_caller(e);
  auto turn = run.begin(core_, e, outputs_for(run, args...));
  std::exception_ptr thrown;
  do {
    thrown = nullptr;
    try {
      const runtime::implementation mine(here, core_.title_of(e), core_.ids()[turn.config]);
      runtime::scope running(here, {.inside = &mine});
      running.begin(run_[turn.config](args...));
      co_await running.join();
    } catch (...) {
      thrown = std::current_exception();
    }
  } while (!run.end(turn, thrown));
}

}  // namespace parley::ops
