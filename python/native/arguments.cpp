// Arguments that do not fit: nanobind lists the signatures, and parley says which argument is wrong.
#include "calls.hpp"

#include <cstdarg>
#include <cstring>

// The linker sends all calls of these two in this module here (CMakeLists.txt), as nanobind has no other place to change its texts.
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

PyObject* __wrap_PyErr_Format(PyObject* type, const char* format, ...) {  // NOLINT(bugprone-reserved-identifier)
  std::va_list words;
  va_start(words, format);
  const bool is_known = std::strcmp(format, "%s: no constructor defined!") == 0;
  PyErr_FormatV(type, is_known ? "a program cannot make a %s; functions and methods of parley return it" : format,
                words);
  va_end(words);
  return nullptr;
}
}
