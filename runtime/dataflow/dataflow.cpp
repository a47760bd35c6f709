#include <parley/dataflow.hpp>

#include <parley/runtime/dataflow/enqueued_step.hpp>

namespace parley::runtime {

dataflow::dataflow(scope& parent) noexcept : step_graph(parent), at_end_(at_end::torn_down) {}
dataflow::dataflow(executor& ex) noexcept : step_graph(ex), at_end_(at_end::joined) {}

dataflow::~dataflow() {
  if (at_end_ == at_end::joined && running() != 0) {
    cancel();
    try {
      run_until(where(), [this] { return running() == 0; });
    } catch (...) {  // NOLINT(bugprone-empty-catch): nothing can end it any more, so nothing uses its buffers either
    }
  }
}

flow_work dataflow::add(flow_step_ptr step, std::span<const buffer_access> uses, const step_options& o) {
  put(step, uses, o);
  return {where(), std::move(step)};
}

flow_work dataflow::enqueue(std::span<const buffer_access> uses, const std::function<void(device_stream)>& f,
                            const compute_options& o) {
  if (o.memory == nullptr)
    raise({errc::bad_argument, o.name + ": a computation in a stream needs the `memory` of the stream's device"});
  const auto step = new_step<enqueued_step>(o.name, *o.memory, o.stream);
  flow_work made = add(step, uses, {.after = o.queue});
  step->enqueue(uses, f);
  return made;
}

flow_work dataflow::together(const std::vector<flow_work>& works) {
  std::vector<flow_part> parts;
  for (const flow_work& w : works) {
    if (w.step_ != nullptr) parts.push_back({w.step_});
    if (w.batch_ == nullptr) continue;
    for (const flow_batch::part& p : w.batch_->parts()) parts.push_back(p.is);
  }
  return together(parts);
}

flow_work dataflow::together(std::span<const flow_part> parts) {
  if (parts.size() == 1 && parts[0].step != nullptr) return {where(), parts[0].step};
  return {where(), flow_batch::of(parts)};
}

}  // namespace parley::runtime
