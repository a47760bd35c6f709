#pragma once
/// Python's garbage collector sees the objects that a class of C++ holds, so that it can free cycles through them.
#include <nanobind/nanobind.h>

#include <vector>

namespace parley::python {

/// For a class whose `objects()` returns all its `nb::object`s: `nb::class_<T>(m, "T", nb::type_slots(collected<T>::slots))`. After `clear`
/// they are null.
template <class T>
struct collected {
  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nanobind::inst_ready(self)) return 0;
    for (nanobind::object* const each : nanobind::inst_ptr<T>(self)->objects()) Py_VISIT(each->ptr());
    return 0;
  }
  static int clear(PyObject* self) {
    if (!nanobind::inst_ready(self)) return 0;
    for (nanobind::object* const each : nanobind::inst_ptr<T>(self)->objects()) each->reset();
    return 0;
  }
  static inline PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                                       {0, nullptr}};
};

}  // namespace parley::python
