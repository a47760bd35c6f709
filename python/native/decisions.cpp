#include "calls.hpp"

#include <parley/decision.hpp>

namespace parley::python {

namespace {
std::string text_of(const ops::decision& d) {
  return "<Decision " + d.op + " " + d.key + ": " + (d.decided ? d.config : "not decided") + ", " + d.why + ">";
}
}  // namespace

void add_decisions(nb::module_& m) {
  nb::class_<ops::rank_time>(m, "RankTime", "What one rank measured of one config.")
      .def_ro("rank", &ops::rank_time::rank)
      .def_ro("median_ns", &ops::rank_time::median_ns)
      .def_ro("fastest_ns", &ops::rank_time::fastest_ns)
      .def_ro("spread_ns", &ops::rank_time::spread_ns)
      .def_ro("repetitions", &ops::rank_time::repetitions)
      .def_ro("status", &ops::rank_time::status)
      .def_ro("ran", &ops::rank_time::ran);
  nb::class_<ops::expected_time>(m, "ExpectedTime",
                                 "A time that was expected before the trials; `time_ns` 0: nothing was.")
      .def_ro("time_ns", &ops::expected_time::time_ns)
      .def_ro("low_ns", &ops::expected_time::low_ns)
      .def_ro("high_ns", &ops::expected_time::high_ns);
  nb::class_<ops::candidate_evidence>(m, "Evidence", "What was measured of one config, or why nothing was.")
      .def_ro("config", &ops::candidate_evidence::config)
      .def_ro("time_ns", &ops::candidate_evidence::time_ns)
      .def_ro("spread_ns", &ops::candidate_evidence::spread_ns)
      .def_ro("repetitions", &ops::candidate_evidence::repetitions)
      .def_ro("status", &ops::candidate_evidence::status)
      .def_ro("detail", &ops::candidate_evidence::detail)
      .def_ro("expected", &ops::candidate_evidence::expected)
      .def_ro("ranks", &ops::candidate_evidence::ranks);
  nb::class_<ops::rank_part>(m, "RankPart", "The config that one rank runs.")
      .def_ro("rank", &ops::rank_part::rank)
      .def_ro("config", &ops::rank_part::config);
  nb::class_<ops::decision>(
      m, "Decision", "What the ranks of an operation have agreed on for one size, and why (parley/decision.hpp).")
      .def_ro("op", &ops::decision::op)
      .def_ro("key", &ops::decision::key)
      .def_ro("decided", &ops::decision::decided)
      .def_ro("config", &ops::decision::config)
      .def_ro("time_ns", &ops::decision::time_ns)
      .def_ro("why", &ops::decision::why)
      .def_ro("here", &ops::decision::here)
      .def_ro("ranks", &ops::decision::ranks)
      .def_ro("evidence", &ops::decision::evidence)
      .def_ro("calls", &ops::decision::calls)
      .def_ro("trials", &ops::decision::trials)
      .def_ro("cost_ns", &ops::decision::cost_ns)
      .def_prop_ro("confidence", [](const ops::decision& d) { return std::string(tuning::name(d.confidence)); })
      .def("__repr__", &text_of);
}

}  // namespace parley::python
