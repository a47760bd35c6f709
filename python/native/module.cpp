#include "calls.hpp"

NB_MODULE(_native, m) {
  namespace nb = nanobind;
  namespace python = parley::python;
  m.doc() = "The C++ side of parley. Use the package parley, which has all of it.";
  m.attr("version") = PARLEY_PYTHON_VERSION;
  nb::set_leak_warnings(false);  // at exit, calls may still be under way
  python::add_errors(m);
  python::add_calls(m);
  python::add_decisions(m);
  python::add_ranks(m);
  python::add_own_configs(m);
  python::add_ops(m);
  python::add_registrations(m);
  python::add_kernels(m);
  python::add_halo(m);
  python::add_groups(m);
  python::add_dataflow(m);
  python::add_pipelines(m);
  python::add_contextual(m);
  python::add_attention(m);
  python::add_gemm(m);
  python::add_cuda(m);
}
