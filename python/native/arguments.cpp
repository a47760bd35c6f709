// Arguments that do not fit: nanobind lists the signatures, and parley says which argument is wrong.
#include "calls.hpp"

#include <cstring>

// The linker sends all calls of PyErr_SetString in this module here (CMakeLists.txt), as nanobind has no other place to change this text.
extern "C" {
void __real_PyErr_SetString(PyObject* type,
                            const char* text);  // NOLINT(bugprone-reserved-identifier): the linker's name
void __wrap_PyErr_SetString(PyObject* type, const char* text) {  // NOLINT(bugprone-reserved-identifier)
  namespace nb = nanobind;
  if (type == PyExc_TypeError && std::strstr(text, "incompatible function arguments") != nullptr) {
    try {
      const nb::object better = nb::module_::import_("parley._arguments").attr("explained")(text);
      PyErr_SetObject(type, better.ptr());
      return;
    } catch (const nb::python_error&) {  // NOLINT(bugprone-empty-catch): then nanobind's text has to do
    }
  }
  __real_PyErr_SetString(type, text);
}
}
