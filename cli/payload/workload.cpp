#include <parley/cli/payload/workload.hpp>

#include <parley/runtime/finally.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <utility>

namespace parley::cli {

using runtime::task;

workload::workload(const spec& job, ops::rank& self, workload_options o) : options_(std::move(o)) {
  if (options_.engine == nullptr) options_.engine = std::make_shared<host_engine>();
  for (const op_spec& op : job.ops) {
    for (auto& p : parts_of({op, self, *options_.engine, [this] { step(); }})) parts_.push_back(std::move(p));
  }
  for (const auto& p : parts_) all_ += p->steps();
}

workload::~workload() = default;

task<> workload::run() {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope working(here);
  working_ = &working;
  const runtime::finally over([this] { working_ = nullptr; });
  for (const auto& p : parts_) working.spawn(p->run());
  co_await working.join();
}

void workload::stop() noexcept {
  if (working_ != nullptr) working_->cancel();
}

std::vector<outputs> workload::collected() const {
  std::vector<outputs> all;
  for (const auto& p : parts_) {
    for (const outputs& o : p->came_out()) {
      if (!o.digests.empty()) all.push_back(o);
    }
  }
  return all;
}

void workload::step() {
  ++done_;
  if (options_.on_step) options_.on_step();
}

}  // namespace parley::cli
