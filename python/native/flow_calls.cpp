#include "flow_calls.hpp"

#include <utility>

namespace parley::python {

namespace {

struct started {
  std::shared_ptr<runtime::dataflow> flow;
  runtime::flow_work work;
};

runtime::task<> until_over(std::shared_ptr<started> s) { co_await s->work; }

/// A cancelled task that waits for a flow's work ends before the work does. So the work itself is cancelled, and never the task.
struct running_work final : running_task<void> {
  running_work(home& where, const std::shared_ptr<started>& s, std::vector<keep> k)
      : running_task(where, until_over(s), std::move(k)), of(s) {}
  ~running_work() override { finish(*this, at); }
  void cancel() noexcept override { of->work.cancel(); }
  std::shared_ptr<started> of;
};

struct no_result {
  nb::object operator()() const { return nb::none(); }
};

}  // namespace

std::shared_ptr<runtime::dataflow> flow_of(const rank_home& where) {
  return {new runtime::dataflow(where.loop), [&where](runtime::dataflow* flow) {
            const hold held(where);
            delete flow;
          }};
}

std::unique_ptr<call> follow(const home_ptr& where, std::shared_ptr<runtime::dataflow> flow, runtime::flow_work work,
                             std::vector<keep> keeps) {
  where->tidy();
  const auto s = std::make_shared<started>(started{std::move(flow), std::move(work)});
  return begin(where, std::unique_ptr<running_task<void>>(std::make_unique<running_work>(*where, s, std::move(keeps))),
               no_result{});
}

}  // namespace parley::python
