#include <parley/tuned_stage.hpp>

#include <parley/rank.hpp>

#include <memory>
#include <type_traits>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

namespace {

template <class Work>
Work& default_of(const tuned_stage_options<Work>& o) {
  if (o.ways.empty())
    runtime::raise({errc::bad_argument, "op " + o.name + " has no way to compute its stage; list its default, first"});
  return o.ways.front().work;
}

/// `call(work)` computes the present step by one way's work.
template <class Work, class Call>
role_op declare(rank& self, const tuned_stage_options<Work>& o, const char* role, Call call) {
  role_options made{.name = o.name, .role = role, .configs = {}, .constraints = o.constraints};
  for (const stage_way<Work>& way : o.ways) {
    if constexpr (std::is_same_v<Work, training_work>) {
      if (way.work.waits_on_device())
        runtime::raise({errc::bad_argument, "op " + o.name + ": its way " + way.id +
                                                " only enqueues (waits_on_device), so its time cannot be measured; let "
                                                "it end when the device has computed"});
    }
    auto identity = tuning::parse_config_id(way.id);
    if (!identity) runtime::raise({errc::bad_argument, "op " + o.name + ": " + identity.reason().text});
    auto run = [call, work = &way.work](std::span<std::byte>) { return call(*work); };
    made.configs.push_back(
        std::make_shared<role_function_config>(std::move(identity).value(), std::move(run), way.needs));
  }
  return {self, made};
}

}  // namespace

tuned_stage::tuned_stage(rank& self, const tuned_stage_options<pipeline_work>& o)
    : way_(&default_of(o)), forward_(declare(self, o, "forward", [this](pipeline_work& way) {
        way_ = &way;
        return way.work(microbatch_, activation_);
      })) {}

task<> tuned_stage::work(std::uint64_t microbatch, std::span<std::byte> activation) {
  microbatch_ = microbatch;
  activation_ = activation;
  return forward_.run(activation);
}

void tuned_stage::on_done(std::uint64_t microbatch) { way_->on_done(microbatch); }

tuned_stages::tuned_stages(rank& self, const tuned_stage_options<training_work>& o)
    : default_(default_of(o)),
      forward_(declare(self, o, "forward", [this](training_work& way) { return way.work(action_, memory_); })),
      backward_(declare(self, o, "backward", [this](training_work& way) { return way.work(action_, memory_); })) {}

task<> tuned_stages::work(pipeline_action a, pipeline_memory m) {
  action_ = a;
  memory_ = m;
  return (a.what == pipeline_action::kind::forward ? forward_ : backward_).run(m.out);
}

}  // namespace parley::ops
