#pragma once
/// Calls that are started in a flow (parley/dataflow.hpp): batches in the order of a stream.
#include "ranks.hpp"

#include <parley/dataflow.hpp>

#include <memory>
#include <vector>

namespace parley::python {

/// A flow of the rank. Its last owner has the GIL.
std::shared_ptr<runtime::dataflow> flow_of(const rank_home& where);

/// The work, as a call. It holds the flow. With a `hold`.
std::unique_ptr<call> follow(const home_ptr& where, std::shared_ptr<runtime::dataflow> flow, runtime::flow_work work,
                             std::vector<keep> keeps);

}  // namespace parley::python
