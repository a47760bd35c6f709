#include "calls.hpp"

#include <string>

namespace parley::python {

using runtime::errc;
using runtime::error;

nb::object exception_of(const error& e) {
  nb::dict facts;
  const runtime::error_facts& about = e.about();
  const auto set = [&](const char* name, const auto& value) {
    if (value) facts[name] = *value;
  };
  if (!about.op.empty()) facts["op"] = about.op;
  if (!about.role.empty()) facts["role"] = about.role;
  if (!about.config.empty()) facts["config"] = about.config;
  if (about.unmet != runtime::awaited::none) facts["unmet"] = std::string(name(about.unmet));
  set("rank", about.rank);
  set("peer", about.peer);
  set("tag", about.tag);
  set("invocation", about.invocation);
  set("done_bytes", about.done_bytes);
  set("whole_bytes", about.whole_bytes);
  set("own_bytes", about.own_bytes);
  facts["begun"] = about.begun;
  if (const runtime::root_cause* const first = e.began_with(); first != nullptr) {
    facts["began_with_rank"] = first->rank;
    facts["began_with"] = first->what;
  }
  const std::string text = e.what();
  const nb::object shown =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!shown.is_valid()) throw nb::python_error();
  return nb::module_::import_("parley.errors").attr("failure")(std::string(name(e.code())), shown, facts);
}

std::string plain_text(nb::handle o) {
  nb::object text = nb::steal(PyObject_Str(o.ptr()));
  if (!text.is_valid() &&
      PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) {  // PyObject_Str also looks for signals
    PyErr_Clear();
    text = nb::steal(PyObject_Str(o.ptr()));
    PyErr_SetInterrupt();
  }
  if (!text.is_valid()) {
    PyErr_Clear();
    return "(its text cannot be read, because its __str__ has failed)";
  }
  Py_ssize_t size = 0;
  if (const char* const utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size); utf8 != nullptr)
    return {utf8, static_cast<std::size_t>(size)};
  PyErr_Clear();
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

void pass_on_interrupt(const nb::python_error& e) {
  if (e.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();  // the next look for signals raises it again
}

namespace {
/// The facts of an error that has been an exception of Python.
error error_again(nb::handle failure, std::string text) {
  const auto fact = [&]<class T>(const char* name, T& into) {
    const nb::object given = nb::getattr(failure, name, nb::none());
    if (!given.is_none() && !nb::try_cast(given, into)) into = T();
  };
  runtime::error_facts about;
  std::string code;
  runtime::root_cause first;
  std::optional<runtime::rank_id> first_rank;
  fact("code", code);
  fact("op", about.op);
  fact("role", about.role);
  fact("config", about.config);
  fact("rank", about.rank);
  fact("peer", about.peer);
  fact("tag", about.tag);
  fact("invocation", about.invocation);
  fact("done_bytes", about.done_bytes);
  fact("whole_bytes", about.whole_bytes);
  fact("own_bytes", about.own_bytes);
  fact("began_with_rank", first_rank);
  fact("began_with", first.what);
  if (first_rank) first.rank = *first_rank;
  auto its = errc::exception;
  for (std::uint64_t n = 0; n <= static_cast<std::uint64_t>(errc::exception); ++n)
    if (name(runtime::errc_of(n, errc::exception)) == code) its = runtime::errc_of(n, errc::exception);
  if (text.starts_with(code + ": ")) text.erase(0, code.size() + 2);
  return error::in_words(its, std::move(about), std::move(text), first_rank ? &first : nullptr);
}
}  // namespace

error error_of(nb::handle thrown) {
  const std::string kind = plain_text(thrown.type().attr("__name__"));
  std::string text = plain_text(thrown);
  if (nb::isinstance(thrown, nb::module_::import_("parley.errors").attr("Failure")))
    return error_again(thrown, std::move(text));
  return error::in_words(errc::exception, {}, text.empty() ? kind : kind + ": " + text);
}

void add_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const runtime::failure& f) {
      try {
        const nb::object made = exception_of(f.reason());
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
      } catch (nb::python_error& e) {  // such as Ctrl-C
        e.restore();
      }
    } catch (const nb::cast_error&) {
      PyErr_SetString(PyExc_TypeError, "a value does not have the type that is needed here, or a text is no UTF-8");
    }
  });
}

}  // namespace parley::python
