#include "collected.hpp"
#include "functions.hpp"
#include "ops.hpp"

#include <parley/pipeline.hpp>
#include <parley/schedule.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/tuned_stage.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;
using runtime::task;

namespace {

/// The exception of the program comes out, and not the error that stands for it.
template <class Convert>
struct run_result {
  thrown_ptr exceptions;
  Convert convert;
  template <class... T>
  nb::object operator()(T&&... value) const {
    return convert(std::forward<T>(value)...);
  }
  void failed(const runtime::error& why) const { exceptions->rethrow(why); }
};

// ---- forward

/// The arrays of one run.
struct forward_run {
  array_type type;
  std::vector<array_shape> shapes;
  thrown_ptr exceptions = std::make_shared<thrown>();
};
using forward_run_ptr = std::shared_ptr<const forward_run>;

/// A function of the program as a stage.
class forward_stage final : public ops::pipeline_work {
 public:
  forward_stage(nb::object f, const char* what) : f_(std::move(f), what) {}
  void check_worker() const { f_.check_worker(); }
  void begin(forward_run_ptr run) { run_ = std::move(run); }
  nb::object* object() const noexcept { return &f_.held(); }
  task<> work(std::uint64_t microbatch, std::span<std::byte> activation) override {
    return run_with_arrays(f_, run_->exceptions, {microbatch},
                           {{.bytes = activation, .type = &run_->type, .shape = run_->shapes.at(microbatch)}});
  }

 private:
  function f_;
  forward_run_ptr run_;
};

/// A stage that can be computed in several ways.
struct tuned_stage {
  tuned_stage(const rank_ptr& rank, const std::string& name, const nb::dict& all) : where(rank) {
    const hold held = where->check();
    ops::tuned_stage_options<ops::pipeline_work> o{.name = name, .ways = {}};
    for (const auto& [id, f] : all) {
      ways.push_back(std::make_unique<forward_stage>(nb::borrow(f), "ways"));
      o.ways.push_back({.id = nb::cast<std::string>(id), .work = *ways.back()});
    }
    tuned = std::make_unique<ops::tuned_stage>(*where->self, o);
  }
  std::vector<nb::object*> objects() const {
    std::vector<nb::object*> all;
    for (const auto& way : ways) all.push_back(way->object());
    return all;
  }
  rank_ptr where;
  std::vector<std::unique_ptr<forward_stage>> ways;
  std::unique_ptr<ops::tuned_stage> tuned;
};

struct pipeline {
  rank_ptr where;
  std::shared_ptr<ops::pipeline> op;  // runs refer to it
  array_type type;
};

pipeline make_pipeline(const rank_ptr& where, const std::string& name, const std::vector<rank_id>& stages,
                       nb::handle dtype, const config_list& configs, seconds timeout) {
  const hold held = where->check();
  ops::pipeline_options o{.name = name};
  o.stages = stages;
  o.configs = configs_of(*where, name, configs);
  o.timeout = span_of(timeout, o.timeout);
  return {where, std::make_shared<ops::pipeline>(*where->self, std::move(o)), array_type_of(dtype)};
}

/// Holds what a run uses: its sizes, and its stage.
struct forward_call {
  std::vector<std::uint64_t> bytes;
  std::unique_ptr<forward_stage> own;  // null: the stage is tuned
  ops::pipeline_work* stage = nullptr;
};

task<> run_forward(std::shared_ptr<ops::pipeline> op, std::shared_ptr<forward_call> c) {
  co_await op->run(c->bytes, *c->stage);
}

std::unique_ptr<call> irun(pipeline& p, const std::vector<nb::object>& shapes, nb::handle stage) {
  const hold held = p.where->check();
  auto run = std::make_shared<forward_run>();
  run->exceptions->op = p.op.get();
  auto mine = std::make_shared<forward_call>();
  run->type = p.type;
  for (const nb::object& each : shapes) {
    run->shapes.push_back(array_shape_of(each));
    mine->bytes.push_back(bytes_of(p.type, run->shapes.back()));
  }
  std::vector<keep> keeps;
  tuned_stage* tuned = nullptr;
  if (nb::try_cast(stage, tuned) && tuned != nullptr) {
    for (const auto& way : tuned->ways) way->check_worker(), way->begin(run);
    mine->stage = tuned->tuned.get();
    keeps.push_back(kept(nb::borrow(stage)));
  } else {
    mine->own = std::make_unique<forward_stage>(nb::borrow(stage), "stage");
    mine->own->check_worker();
    mine->own->begin(run);
    mine->stage = mine->own.get();
  }
  const auto nothing = [] { return nb::none(); };
  auto made = begin(p.where, run_forward(p.op, mine), run_result<decltype(nothing)>{run->exceptions, nothing},
                    std::move(keeps));
  made->op = p.op.get();
  return made;
}

// ---- forward and backward

struct training_run {
  array_type type;
  std::vector<array_shape> shapes;  // of what each stage passes on
  thrown_ptr exceptions = std::make_shared<thrown>();
};
using training_run_ptr = std::shared_ptr<const training_run>;

/// Two functions of the program as the stages of a rank.
class training_stages final : public ops::training_work {
 public:
  training_stages(nb::object forward, nb::object backward)
      : forward_(std::move(forward), "forward"), backward_(std::move(backward), "backward") {}
  void check_worker() const { forward_.check_worker(), backward_.check_worker(); }
  void begin(training_run_ptr run) { run_ = std::move(run); }
  std::vector<nb::object*> objects() const { return {&forward_.held(), &backward_.held()}; }
  std::uint64_t activation_bytes(std::uint32_t stage) const override {
    return bytes_of(run_->type, run_->shapes.at(stage));
  }
  task<> work(ops::pipeline_action a, ops::pipeline_memory m) override {
    const bool has_input = a.stage != 0;
    const lent in = has_input ? array(m.in, a.stage - 1) : lent();
    if (a.what == ops::pipeline_action::kind::forward)
      return run_with_arrays(forward_, run_->exceptions, {a.stage, a.microbatch}, {in, array(m.out, a.stage)});
    const bool has_gradient = a.stage + 1 != run_->shapes.size();
    return run_with_arrays(
        backward_, run_->exceptions, {a.stage, a.microbatch},
        {in, array(std::span<const std::byte>(m.out), a.stage), has_gradient ? array(m.gradient_out, a.stage) : lent(),
         has_input ? array(m.gradient_in, a.stage - 1) : lent()});
  }

 private:
  lent array(std::span<std::byte> bytes, std::uint32_t stage) const {
    return {.bytes = bytes, .type = &run_->type, .shape = run_->shapes.at(stage)};
  }
  lent array(std::span<const std::byte> bytes, std::uint32_t stage) const {
    lent made = array(std::span(const_cast<std::byte*>(bytes.data()), bytes.size()), stage);
    made.is_read_only = true;
    return made;
  }
  function forward_, backward_;
  training_run_ptr run_;
};

/// Stages that can be computed in several ways.
struct tuned_stages {
  tuned_stages(const rank_ptr& rank, const std::string& name, const nb::dict& all) : where(rank) {
    const hold held = where->check();
    ops::tuned_stage_options<ops::training_work> o{.name = name, .ways = {}};
    for (const auto& [id, both] : all) {
      std::pair<nb::object, nb::object> functions;
      if (!nb::try_cast(both, functions))
        runtime::raise({errc::bad_argument, "op " + name + ": a way is a pair of functions, (forward, backward)"});
      ways.push_back(std::make_unique<training_stages>(functions.first, functions.second));
      o.ways.push_back({.id = nb::cast<std::string>(id), .work = *ways.back()});
    }
    tuned = std::make_unique<ops::tuned_stages>(*where->self, o);
  }
  std::vector<nb::object*> objects() const {
    std::vector<nb::object*> all;
    for (const auto& way : ways)
      for (nb::object* const each : way->objects()) all.push_back(each);
    return all;
  }
  rank_ptr where;
  std::vector<std::unique_ptr<training_stages>> ways;
  std::unique_ptr<ops::tuned_stages> tuned;
};

struct training_pipeline {
  rank_ptr where;
  std::shared_ptr<ops::training_pipeline> op;  // runs refer to it
  array_type type;
  std::vector<array_shape> shapes;
};

training_pipeline make_training(const rank_ptr& where, const std::string& name, const ops::pipeline_schedule& schedule,
                                nb::handle shape, nb::handle dtype, const std::vector<rank_id>& ranks,
                                const config_list& configs, seconds timeout) {
  const hold held = where->check();
  training_pipeline made{.where = where, .op = nullptr, .type = array_type_of(dtype), .shapes = {}};
  for (std::uint32_t stage = 0; stage < schedule.stages; ++stage)
    made.shapes.push_back(array_shape_of(PyCallable_Check(shape.ptr()) != 0 ? shape(stage) : nb::borrow(shape)));
  ops::training_pipeline_options o{.name = name, .schedule = schedule};
  o.ranks = ranks;
  if (!configs.empty()) o.configs = configs_of(*where, name, configs);
  o.timeout = span_of(timeout, o.timeout);
  made.op = std::make_shared<ops::training_pipeline>(*where->self, o);
  // Its buffers are registered memory, which must end before its rank does.
  if (where->is_virtual)
    where->at_end.emplace_back([weak = std::weak_ptr(made.op)] {
      if (const auto op = weak.lock()) *op = {};
    });
  return made;
}

struct training_call {
  std::unique_ptr<training_stages> own;  // null: the stages are tuned
  ops::training_work* stages = nullptr;
};

task<ops::pipeline_report> run_training(std::shared_ptr<ops::training_pipeline> op, std::shared_ptr<training_call> c) {
  co_return co_await op->run(*c->stages);
}

std::unique_ptr<call> itrain(training_pipeline& p, nb::handle forward, nb::handle backward) {
  const hold held = p.where->check();
  auto run = std::make_shared<training_run>();
  run->exceptions->op = p.op.get();
  run->type = p.type;
  run->shapes = p.shapes;
  auto mine = std::make_shared<training_call>();
  std::vector<keep> keeps;
  tuned_stages* tuned = nullptr;
  if (backward.is_none() && nb::try_cast(forward, tuned) && tuned != nullptr) {
    for (const auto& way : tuned->ways) way->check_worker(), way->begin(run);
    mine->stages = tuned->tuned.get();
    keeps.push_back(kept(nb::borrow(forward)));
  } else {
    mine->own = std::make_unique<training_stages>(nb::borrow(forward), nb::borrow(backward));
    mine->own->check_worker();
    mine->own->begin(run);
    mine->stages = mine->own.get();
  }
  const auto report = [](const ops::pipeline_report& r) { return nb::cast(r); };
  auto made =
      begin(p.where, run_training(p.op, mine), run_result<decltype(report)>{run->exceptions, report}, std::move(keeps));
  made->op = p.op.get();
  return made;
}

// ---- schedules

void add_schedules(nb::module_& m) {
  nb::class_<ops::pipeline_estimate::rank>(m, "RankEstimate", "One rank of an estimate.")
      .def_ro("ended", &ops::pipeline_estimate::rank::ended, "When it ends.")
      .def_ro("idle_share", &ops::pipeline_estimate::rank::idle_share, "How much of its time it is idle, until then.");
  nb::class_<ops::pipeline_estimate>(m, "Estimate", "One pass, if messages took no time.")
      .def_ro("makespan", &ops::pipeline_estimate::makespan, "Its duration, in the unit of the times that were given.")
      .def_ro("idle_share", &ops::pipeline_estimate::idle_share, "Of all ranks, until the last one ends.")
      .def_ro("ranks", &ops::pipeline_estimate::ranks)
      .def_ro("alive", &ops::pipeline_estimate::alive,
              "Per rank: the most microbatches of one stage between forward and backward.");

  using schedule = ops::pipeline_schedule;
  nb::class_<schedule>(m, "Schedule",
                       "The actions of each rank of a pipeline, in order (parley/schedule.hpp). `str(schedule)` is a "
                       "text with a line for each rank, such as `0F0, 0SEND_F0, 0RECV_B0, 0B0`.")
      .def_static("gpipe", &ops::gpipe, nb::arg("ranks"), nb::arg("microbatches"),
                  "All microbatches forward, then all backward.")
      .def_static("one_forward_one_backward", &ops::one_forward_one_backward, nb::arg("ranks"), nb::arg("microbatches"),
                  "As long as `gpipe`, with as few microbatches alive as possible.")
      .def_static("interleaved", &ops::interleaved, nb::arg("ranks"), nb::arg("microbatches"), nb::arg("chunks"),
                  "With several stages on each rank, and shorter idle times. `microbatches` is a multiple of `ranks`.")
      .def_static(
          "parse",
          [](const std::string& text) {
            schedule made = ops::parse_schedule(text).value();
            ops::check(made).value();
            return made;
          },
          nb::arg("text"),
          "An own schedule: a line for each rank, with actions such as `1F0` (stage 1 forward, microbatch 0) and "
          "`1B0`. Without SEND and RECV in the text, they are added. The error names line and column, or says why "
          "such lists cannot be completed.")
      .def_ro("stages", &schedule::stages)
      .def_ro("microbatches", &schedule::microbatches)
      .def_prop_ro(
          "ranks", [](const schedule& s) { return s.ranks.size(); }, "The number of ranks.")
      .def_prop_ro("messages", &schedule::messages, "The number of messages between stages in one pass.")
      .def("rank_of", &schedule::rank_of, nb::arg("stage"), "The part of the schedule that has a stage.")
      .def(
          "estimate",
          [](const schedule& s, double forward, double backward) {
            return ops::estimate(s, {.forward = forward, .backward = backward});
          },
          nb::arg("forward") = 1.0, nb::arg("backward") = 2.0,
          "A pass in which each computation of a stage takes so long, and messages nothing.")
      .def("__str__", [](const schedule& s) { return ops::text_of(s); })
      .def("__eq__", [](const schedule& a, nb::handle b) {
        const schedule* other = nullptr;
        return nb::try_cast(b, other) && other != nullptr && ops::text_of(a) == ops::text_of(*other);
      });
}

void add_forward(nb::module_& m) {
  const auto none = nb::none();
  const std::vector<std::string> direct{"direct"};
  nb::class_<tuned_stage>(m, "TunedStage", nb::type_slots(collected<tuned_stage>::slots),
                          "A stage of a `Pipeline` that can be computed in several ways. The rank finds its fastest "
                          "way on the program's own microbatches (parley/tuned_stage.hpp), by the time of the "
                          "computation alone: waits for late neighbours do not count.")
      .def(nb::init<rank_ptr, std::string, nb::dict>(), nb::arg("rank"), nb::arg("name"), nb::arg("ways"),
           nb::sig("def __init__(self, rank: Rank, name: str, "
                   "ways: dict[str, collections.abc.Callable[[int, typing.Any], object]]) -> None"),
           "The first way is the default. All ways give the same results.")
      .def(
          "decision",
          [](const tuned_stage& t, std::uint64_t bytes) {
            const hold held = t.where->check();
            return t.tuned->forward().decision(bytes);
          },
          nb::arg("bytes"), "What this rank has decided for activations of that size.");

  nb::class_<pipeline>(m, "Pipeline",
                       "A linear pipeline (parley/pipeline.hpp): each stage sends its result to the next one. Each "
                       "pair of stages finds its fastest config. All ranks declare it.")
      .def(
          "__init__",
          [](pipeline* p, const rank_ptr& rank, const std::string& name, const std::vector<rank_id>& stages,
             nb::handle dtype, const config_list& configs,
             seconds timeout) { new (p) pipeline(make_pipeline(rank, name, stages, dtype, configs, timeout)); },
          nb::arg("rank"), nb::arg("name"), nb::arg("stages") = std::vector<rank_id>(), nb::arg("dtype") = "float32",
          nb::arg("configs") = direct, nb::arg("timeout") = none,
          nb::sig("def __init__(self, rank: Rank, name: str, stages: collections.abc.Sequence[int] = (), "
                  "dtype: object = 'float32', configs: collections.abc.Sequence[parley.configs.Transferring] = "
                  "('direct',), "
                  "timeout: float | None = None) -> None"),
          "`stages`: the rank of each stage, in order; empty: all ranks. `dtype` of activations, as numpy names it.")
      .def("irun", &irun, nb::arg("shapes"), nb::arg("stage"),
           nb::sig("def irun(self, shapes: collections.abc.Sequence[int | collections.abc.Sequence[int]], "
                   "stage: collections.abc.Callable[[int, typing.Any], object] | TunedStage) -> Work"))
      .def("run", waits(&irun), nb::arg("shapes"), nb::arg("stage"),
           nb::sig("def run(self, shapes: collections.abc.Sequence[int | collections.abc.Sequence[int]], "
                   "stage: collections.abc.Callable[[int, typing.Any], object] | TunedStage) -> None"),
           "Runs microbatches, whose activations have these shapes on all stages. `stage(microbatch, x)` changes the "
           "array `x` of numpy in place: the first stage fills it, and the last one has the result. `x` is valid only "
           "until the function ends. A plain function runs on a worker thread, while the next activation arrives; an "
           "`async def` may await calls of the rank. An exception ends the run on all ranks.")
      .def_prop_ro(
          "stage", [](const pipeline& p) { return p.op->stage(); }, "This rank's stage.")
      .def_prop_ro("stages", [](const pipeline& p) { return p.op->stages(); })
      .def_prop_ro(
          "idle", [](const pipeline& p) { return p.op->idle(); }, "True if this rank is no stage.")
      .def_prop_ro("first", [](const pipeline& p) { return p.op->first(); })
      .def_prop_ro("last", [](const pipeline& p) { return p.op->last(); })
      .def(
          "decision",
          [](const pipeline& p, std::uint64_t bytes, std::optional<rank_id> peer) {
            const hold held = p.where->check();
            return peer ? p.op->decision(bytes, *peer) : p.op->decision(bytes);
          },
          nb::arg("bytes"), nb::arg("peer") = none,
          "The decision for activations of that size with a neighbour; without `peer`, with the next stage.");
}

void add_training(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<ops::pipeline_report>(m, "PipelineReport", "One pass, as this rank saw it.")
      .def_ro("elapsed_ns", &ops::pipeline_report::elapsed_ns)
      .def_ro("busy_ns", &ops::pipeline_report::busy_ns, "In functions of the program, without waits for other ranks.")
      .def_ro("idle_share", &ops::pipeline_report::idle_share, "Of this rank, until its own end.")
      .def_ro("ideal_idle_share", &ops::pipeline_report::ideal_idle_share,
              "The same if messages took no time and all stages as long as this rank's.")
      .def_ro("sent", &ops::pipeline_report::sent, "Messages.")
      .def_ro("most_alive", &ops::pipeline_report::most_alive,
              "The most microbatches of one stage between forward and backward.");

  const auto of = [](const ops::role_op& (ops::tuned_stages::*which)() const noexcept) {
    return [which](const tuned_stages& t, std::uint64_t bytes) {
      const hold held = t.where->check();
      return ((*t.tuned).*which)().decision(bytes);
    };
  };
  nb::class_<tuned_stages>(m, "TunedStages", nb::type_slots(collected<tuned_stages>::slots),
                           "The stages of a `TrainingPipeline`, with several ways to compute them. Forward and "
                           "backward are decided each for itself (parley/tuned_stage.hpp).")
      .def(nb::init<rank_ptr, std::string, nb::dict>(), nb::arg("rank"), nb::arg("name"), nb::arg("ways"),
           nb::sig("def __init__(self, rank: Rank, name: str, ways: dict[str, "
                   "tuple[collections.abc.Callable[..., object], collections.abc.Callable[..., object]]]) -> None"),
           "`ways`: pairs of functions, (forward, backward), as `TrainingPipeline.run` takes them.")
      .def("decision_forward", of(&ops::tuned_stages::forward), nb::arg("bytes"))
      .def("decision_backward", of(&ops::tuned_stages::backward), nb::arg("bytes"));

  nb::class_<training_pipeline>(m, "TrainingPipeline",
                                "A pipeline of stages, forward and backward, by a `Schedule` "
                                "(parley/training_pipeline.hpp). All ranks declare it.")
      .def(
          "__init__",
          [](training_pipeline* p, const rank_ptr& rank, const std::string& name, const ops::pipeline_schedule& s,
             nb::handle shape, nb::handle dtype, const std::vector<rank_id>& ranks, const config_list& configs,
             seconds timeout) {
            new (p) training_pipeline(make_training(rank, name, s, shape, dtype, ranks, configs, timeout));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("schedule"), nb::arg("shape"), nb::arg("dtype") = "float32",
          nb::arg("ranks") = std::vector<rank_id>(), nb::arg("configs") = config_list(), nb::arg("timeout") = none,
          nb::sig("def __init__(self, rank: Rank, name: str, schedule: Schedule, "
                  "shape: int | collections.abc.Sequence[int] | collections.abc.Callable[[int], "
                  "int | collections.abc.Sequence[int]], dtype: object = 'float32', "
                  "ranks: collections.abc.Sequence[int] = (), configs: "
                  "collections.abc.Sequence[parley.configs.Transferring] = (), "
                  "timeout: float | None = None) -> None"),
          "`shape` of what a stage passes on for one microbatch; a function of the stage if it differs. `ranks`: the "
          "rank of each part of the schedule; empty: rank i has part i. `configs`: empty: direct and chunked.")
      .def("irun", &itrain, nb::arg("forward"), nb::arg("backward") = none,
           nb::sig("def irun(self, forward: collections.abc.Callable[..., object] | TunedStages, "
                   "backward: collections.abc.Callable[..., object] | None = None) -> Work"))
      .def("run", waits(&itrain), nb::arg("forward"), nb::arg("backward") = none,
           nb::sig("def run(self, forward: collections.abc.Callable[..., object] | TunedStages, "
                   "backward: collections.abc.Callable[..., object] | None = None) -> PipelineReport"),
           "One pass, forward and backward, of all microbatches. `forward(stage, microbatch, x, out)` writes `out`; "
           "`backward(stage, microbatch, x, out, gradient_out, gradient_in)` writes `gradient_in`. All are arrays of "
           "numpy, valid only until the function ends. The first stage gets None for `x` and `gradient_in`, and the "
           "last one None for `gradient_out`; `x` and `out` are the same forward and backward. Plain functions run on "
           "a worker thread. An exception ends the pass on all ranks, and no other pass can follow.")
      .def_prop_ro(
          "idle", [](const training_pipeline& p) { return p.op->idle(); }, "True if this rank has no stage.")
      .def(
          "decision",
          [](const training_pipeline& p, std::uint64_t bytes, rank_id peer) {
            const hold held = p.where->check();
            return p.op->decision(bytes, peer);
          },
          nb::arg("bytes"), nb::arg("peer"));
}

}  // namespace

void add_pipelines(nb::module_& m) {
  add_schedules(m);
  add_forward(m);
  add_training(m);
}

}  // namespace parley::python
