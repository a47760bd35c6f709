#pragma once
/// A rank of a job, or a virtual rank of a simulation.
#include "calls.hpp"

#include <parley/run.hpp>

#include <memory>
#include <string>
#include <utility>

namespace parley::python {

class rank_gpu;

/// Outlives the ops and calls that hold it.
struct rank_home : home {
  rank_home(runtime::executor& ex, ops::rank& r) : home(ex), self(&r), id(r.id()), world_size(r.world_size()) {}
  ops::rank* self;  // gone once the rank has left: call `check` before a use
  std::uint32_t id, world_size;
  std::shared_ptr<rank_gpu> gpu{};  // null: the rank has none
  std::shared_ptr<void> context{};  // what its loop runs on
};
using rank_ptr = std::shared_ptr<rank_home>;

/// Joins a job with a loop on a new `context`, which must outlive the job. A signal such as Ctrl-C ends the wait, and Python's exception is
/// thrown. Needs the GIL.
std::unique_ptr<ops::job> join_interruptibly(const ops::job_options& o, std::shared_ptr<void>& context);

/// Runs a Python coroutine as a coroutine of C++: whatever it awaits is a call, or `awaited`. The first exception of Python is in
/// `thrown`, and what the coroutine returns is in `result`.
struct script {
  nb::object coroutine;
  nb::object waits_for;
  nb::object result;
  std::exception_ptr thrown;
  const void* op = nullptr;  // see `call::op`
  ~script();
};
runtime::task<> drive(std::shared_ptr<script> s);

/// What the coroutine has returned, or its exception instead of the error that stands for it.
struct script_result {
  std::shared_ptr<script> of;
  nb::object operator()() const { return of->result.is_valid() ? std::exchange(of->result, {}) : nb::none(); }
  void forget() { of.reset(); }
  void failed(const runtime::error&) const {
    if (of->thrown)
      std::rethrow_exception(std::exchange(of->thrown, nullptr));  // its traceback may hold the call itself
  }
};

}  // namespace parley::python
