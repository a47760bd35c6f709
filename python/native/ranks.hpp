#pragma once
/// A rank of a job, or a virtual rank of a simulation.
#include "calls.hpp"

#include <parley/run.hpp>

#include <memory>
#include <string>

namespace parley::python {

/// Outlives the ops and calls that hold it.
struct rank_home : home {
  rank_home(runtime::executor& ex, ops::rank& r) : home(ex), self(&r), id(r.id()), world_size(r.world_size()) {}
  ops::rank* self;  // gone once the rank has left: call `check` before a use
  std::uint32_t id, world_size;
};
using rank_ptr = std::shared_ptr<rank_home>;

/// Runs a Python coroutine as a coroutine of C++: whatever it awaits is a call of this rank. The first exception of Python is in `thrown`,
/// and what the coroutine returns is in `result`.
struct script {
  nb::object coroutine;
  nb::object waits_for;
  nb::object result;
  std::exception_ptr thrown;
  ~script();
};
runtime::task<> drive(std::shared_ptr<script> s);

}  // namespace parley::python
