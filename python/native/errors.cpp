#include "calls.hpp"

namespace parley::python {

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
  return nb::module_::import_("parley.errors").attr("failure")(std::string(name(e.code())), e.what(), facts);
}

error error_of(const nb::python_error& e) {
  const std::string kind = nb::cast<std::string>(e.type().attr("__name__"));
  const std::string text = nb::cast<std::string>(nb::str(e.value()));
  return error::in_words(runtime::errc::exception, {}, text.empty() ? kind : kind + ": " + text);
}

void add_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const runtime::failure& f) {
      const nb::object made = exception_of(f.reason());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    }
  });
}

}  // namespace parley::python
