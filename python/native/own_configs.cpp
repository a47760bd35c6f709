#include "own_configs.hpp"

#include "buffers.hpp"

#include <parley/actors/stamp.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::python {

using ops::group_call;
using ops::part_receiver;
using ops::part_sender;
using runtime::errc;
using runtime::error;
using runtime::task;

nb::object coroutine_of(const nb::object& returned) {
  const bool can_be_sent_to = nb::hasattr(returned, "send");
  if (nb::hasattr(returned, "__await__")) {
    if (can_be_sent_to) return returned;
    return nb::module_::import_("parley._await").attr("run_awaitable")(returned);
  }
  if (can_be_sent_to) return nb::module_::import_("parley._await").attr("run_generator")(returned);
  return {};
}

error located_error_of(nb::python_error& e) {
  const error plain = error_of(e);
  pass_on_interrupt(e);
  if (plain.code() != errc::exception || e.matches(PyExc_KeyboardInterrupt)) return plain;
  const nb::object place = nb::module_::import_("parley.errors").attr("place_of")(e.traceback());
  return error::in_words(errc::exception, {}, plain.text() + plain_text(place));
}

namespace {

[[noreturn]] void refuse(const std::string& why) { runtime::raise({errc::bad_argument, why}); }

// ---- memory that a function sees ----------------------------------------------------------------------------------------

/// Memory of a call, for the time that the config's function runs. It counts the views that the function has of it.
struct payload {
  std::span<std::byte> bytes;
  bool is_readonly = false;
  bool is_over = false;
  std::size_t views = 0;
  std::vector<std::byte> own{};  // of a rehearsal: a view that is kept does no harm then
};

int get_view(PyObject* self, Py_buffer* view, int flags) {
  payload& p = *nb::inst_ptr<payload>(self);
  if (p.is_over) {
    PyErr_SetString(PyExc_BufferError, "the call to which this memory belongs has ended");
    return -1;
  }
  const int made = PyBuffer_FillInfo(view, self, p.bytes.data(), static_cast<Py_ssize_t>(p.bytes.size()),
                                     p.is_readonly ? 1 : 0, flags);
  if (made == 0) ++p.views;
  return made;
}
void release_view(PyObject* self, Py_buffer*) { --nb::inst_ptr<payload>(self)->views; }

PyType_Slot payload_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_view)},
                               {Py_bf_releasebuffer, reinterpret_cast<void*>(&release_view)},
                               {0, nullptr}};

nb::object view_of(nb::handle memory) { return nb::steal(PyMemoryView_FromObject(memory.ptr())); }

bool lies_in(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() || (std::less_equal<>()(whole.data(), part.data()) &&
                          std::less_equal<>()(part.data() + part.size(), whole.data() + whole.size()));
}

// ---- what a function gets -----------------------------------------------------------------------------------------------

nb::dict dict_of(const tuning::config_identity& config) {
  nb::dict all;
  for (const tuning::parameter& p : config.parameters) {
    const auto number = config.number(p.name);
    all[p.name.c_str()] = number ? nb::object(nb::int_(*number)) : nb::object(nb::str(p.value.c_str()));
  }
  return all;
}

/// One call of one role of a config, as its function sees it. After the function has ended, everything throws `bad_argument`.
struct role_call {
  role_call(const tuning::config_identity& c, runtime::scope& here) : config(c), home(&here) {}
  role_call(const role_call&) = delete;
  role_call& operator=(const role_call&) = delete;
  virtual ~role_call() = default;
  void check() const {
    if (home == nullptr)
      refuse("this call of the config has ended; its parts can be used only while its function runs");
  }
  /// More memory of the call, as long as it is valid.
  nb::object show(std::span<std::byte> bytes, bool is_readonly, bool copy = false) {
    nb::object made = nb::cast(payload{.bytes = bytes, .is_readonly = is_readonly});
    payload& p = *nb::inst_ptr<payload>(made);
    if (copy) {
      p.own.assign(bytes.begin(), bytes.end());
      p.bytes = p.own;
    }
    memories.push_back(std::move(made));
    return view_of(memories.back());
  }
  bool has(std::span<const std::byte> part) const {
    return std::any_of(memories.begin(), memories.end(),
                       [&](const nb::object& m) { return lies_in(part, nb::inst_ptr<payload>(m)->bytes); });
  }
  bool is_viewed() const {
    return std::any_of(memories.begin(), memories.end(),
                       [](const nb::object& m) { return nb::inst_ptr<payload>(m)->views != 0; });
  }
  void end() {
    home = nullptr;
    for (const nb::object& m : memories) nb::inst_ptr<payload>(m)->is_over = true;
  }

  nb::dict parameters() const {
    check();
    return dict_of(config);
  }

  const tuning::config_identity& config;
  runtime::scope* home;  // where the function runs; null once it has ended
  std::vector<nb::object> memories;
  std::vector<keep> keeps;  // memory of the program's that parts lie in
};

template <class Parts>
struct edge_call final : role_call {
  edge_call(Parts& p, const tuning::config_identity& config, runtime::scope& here)
      : role_call(config, here), parts(p) {}
  Parts& get() const {
    check();
    return parts;
  }
  Parts& parts;
};
using send_call = edge_call<part_sender>;
using receive_call = edge_call<part_receiver>;

struct group_role final : role_call {
  group_role(group_call& c, const tuning::config_identity& config, runtime::scope& here)
      : role_call(config, here), call(c) {}
  group_call& get() const {
    check();
    return call;
  }
  group_call& call;
  nb::object data;
};

/// A wait that a config's function awaits.
class part_wait final : public awaited {
 public:
  part_wait(std::shared_ptr<const role_call> of, std::function<task<>()> wait)
      : of_(std::move(of)), wait_(std::move(wait)) {}
  // The coroutine that awaits it keeps this object.
  task<> ended() override {
    runtime::scope& here = co_await runtime::this_scope;
    of_->check();
    if (&here != of_->home) refuse("a part is awaited by another coroutine than the config's function; await it there");
    co_await wait_();
  }

 private:
  std::shared_ptr<const role_call> of_;
  std::function<task<>()> wait_;
};
using wait_ptr = std::unique_ptr<part_wait>;

/// What `await part` iterates over: the part, once. By slots, because an exception of C++ for each end costs as much as all the rest.
struct part_iterator {
  nb::object part;
};
PyObject* next_of(PyObject* self) { return std::exchange(nb::inst_ptr<part_iterator>(self)->part, {}).release().ptr(); }
PyType_Slot iterator_slots[] = {{Py_tp_iter, reinterpret_cast<void*>(&PyObject_SelfIter)},
                                {Py_tp_iternext, reinterpret_cast<void*>(&next_of)},
                                {0, nullptr}};

task<> drain(actors::parts_in_flight& parts) { co_await parts.drain(); }

// ---- parts of a transfer ------------------------------------------------------------------------------------------------

std::string range_text(std::uint64_t offset, std::size_t bytes) {
  return "the part at offset " + std::to_string(offset) + " of " + std::to_string(bytes) + " bytes";
}

template <class Parts>
std::span<std::byte> part_of(edge_call<Parts>& c, std::uint64_t offset, const buffer& b, std::uint64_t total_bytes) {
  if (b.bytes.empty()) refuse("a part of 0 bytes; leave it out");
  if (b.bytes.size() > total_bytes || offset > total_bytes - b.bytes.size())
    refuse(range_text(offset, b.bytes.size()) + " ends behind the payload of " + std::to_string(total_bytes) +
           " bytes");
  if (!c.has(b.bytes)) c.keeps.push_back(b.owner);
  return b.bytes;
}

task<> send_part(part_sender& out, std::uint64_t offset, std::span<const std::byte> part) {
  const bool was_well = out.failed() == errc::none;
  std::exception_ptr thrown;
  try {
    co_await out.send(offset, part);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) co_return;
  if (was_well && out.failed() == errc::bad_argument)
    refuse(range_text(offset, part.size()) + " overlaps one that was sent before; send each byte once");
  std::rethrow_exception(thrown);
}
task<> receive_part(part_receiver& in, std::uint64_t offset, std::span<std::byte> into) {
  co_await in.receive(offset, into);
}

wait_ptr send(const std::shared_ptr<send_call>& c, std::uint64_t offset, nb::handle data) {
  part_sender& out = c->get();
  const auto part = part_of(*c, offset, memory_of(data, access::reads, "data"), out.total_bytes());
  return std::make_unique<part_wait>(c, [&out, offset, part] { return send_part(out, offset, part); });
}
wait_ptr receive(const std::shared_ptr<receive_call>& c, std::uint64_t offset, nb::handle into) {
  part_receiver& in = c->get();
  const auto part = part_of(*c, offset, memory_of(into, access::writes, "into"), in.total_bytes());
  return std::make_unique<part_wait>(c, [&in, offset, part] { return receive_part(in, offset, part); });
}

// ---- parts of a collective ----------------------------------------------------------------------------------------------

std::span<std::byte> group_part_of(const group_role& g, nb::handle object, access how, const char* what) {
  const buffer b = memory_of(object, how, what);
  if (!g.has(b.bytes))
    refuse(std::string(what) +
           ": this memory is not of the call; take views of `data`, or of memory from `scratch(bytes)`");
  return b.bytes;
}

std::size_t other_place(const group_call& g, std::size_t place) {
  if (place >= g.size() || place == g.self())
    refuse("place " + std::to_string(place) + " is no other place of this group; it has " + std::to_string(g.size()) +
           " places, and this rank is at " + std::to_string(g.self()));
  return place;
}

void check_lane(std::uint32_t lane) {
  if (lane >= group_call::lanes)
    refuse("lane " + std::to_string(lane) + "; lanes are 0 to " + std::to_string(group_call::lanes - 1));
}

void check_pair(const group_call& g, std::span<const std::byte> into, std::span<const std::byte> source) {
  if (into.size() != source.size())
    refuse("`into` has " + std::to_string(into.size()) + " bytes, and `source` " + std::to_string(source.size()));
  const std::uint64_t alignment = std::min<std::uint64_t>(g.element_bytes(), 8);
  const auto is_odd = [&](std::span<const std::byte> of) {
    return reinterpret_cast<std::uintptr_t>(of.data()) % alignment != 0 || of.size() % g.element_bytes() != 0;
  };
  if (is_odd(into) || is_odd(source))
    refuse("a part does not consist of whole elements of " + std::to_string(g.element_bytes()) +
           " bytes; `piece_bytes` rounds");
}

task<> until(group_call& g, group_call::ticket ticket) { co_await g.until(ticket); }
task<> until_sent(group_call& g, group_call::ticket ticket) { co_await g.until_sent(ticket); }
task<> drain_group(group_call& g) { co_await g.drain(); }
task<> between(group_call& g) { co_await g.between(); }

// ---- running a function -------------------------------------------------------------------------------------------------

/// The functions of one config, and how errors name it.
struct own_functions {
  kept_object object;
  std::string id{};
};

/// One run of a function. If it is destroyed while it runs, which happens only when the rank is torn down, the coroutine is closed.
struct run_of_function {
  run_of_function(const own_functions& f, const char* r, std::shared_ptr<role_call> c)
      : of(f), role(r), call(std::move(c)) {}
  run_of_function(const run_of_function&) = delete;
  run_of_function& operator=(const run_of_function&) = delete;
  ~run_of_function() {
    const with_gil held;
    call->end();
    s.reset();
    if (parts != nullptr && parts->in_flight() != 0) static_cast<void>(new auto(call));  // their memory must stay
    call.reset();
  }
  std::string title() const { return "`" + std::string(role) + "` of config " + of.id; }

  /// Calls the function; its coroutine then waits in `s`. Needs the GIL.
  void begin(nb::handle handle, const nb::object& data) {
    try {
      if (!of.object->is_valid()) runtime::raise({errc::closed, title() + ": this rank has left its job"});
      const nb::object function = of.object->attr(role);
      const nb::object returned = data.is_valid() ? function(handle, data) : function(handle);
      s->coroutine = coroutine_of(returned);
    } catch (nb::python_error& e) {
      throw_as_error(e);
    }
    if (!s->coroutine.is_valid())
      runtime::raise({errc::config_failed, title() + " is no coroutine function; write `async def`, or a generator"});
  }

  /// Throws what the function has thrown, as an error of parley. Needs the GIL, and `thrown`, because the function has ended.
  void end(const std::exception_ptr& thrown) {
    std::exception_ptr why;
    if (thrown) {
      try {
        std::rethrow_exception(s->thrown ? s->thrown : thrown);
      } catch (nb::python_error& e) {
        why = error_for(e);
      } catch (const runtime::failure& f) {
        why = std::make_exception_ptr(runtime::failure(error::in_words(
            f.code(), f.reason().about(), title() + ": " + f.reason().text(), f.reason().began_with())));
      }
    }
    s->thrown = nullptr;
    s->coroutine.reset();
    s->waits_for.reset();
    s->result.reset();
    call->end();
    if (call->is_viewed()) PyGC_Collect();
    if (why) std::rethrow_exception(why);
    if (call->is_viewed())
      runtime::raise({errc::config_failed, title() +
                                               " keeps a view of its call's memory, which is gone after the call; copy "
                                               "what is needed later"});
  }

  const own_functions& of;
  const char* role;
  std::shared_ptr<role_call> call;
  std::shared_ptr<script> s = std::make_shared<script>();
  const actors::parts_in_flight* parts = nullptr;  // of a transfer, while they may lie in memory of the program

 private:
  std::exception_ptr error_for(nb::python_error& e) const {
    try {
      throw_as_error(e);
    } catch (...) {
      return std::current_exception();
    }
  }
  [[noreturn]] void throw_as_error(nb::python_error& e) const {
    if (e.matches(PyExc_KeyboardInterrupt)) {  // no fault of the config: the program's wait gets it
      PyErr_SetInterrupt();
      runtime::raise({errc::cancelled, title() + " was interrupted"});
    }
    const error why = located_error_of(e);
    const errc code = why.code() == errc::exception ? errc::config_failed : why.code();
    runtime::raise(error::in_words(code, {}, title() + (why.text().empty() ? " failed" : ": " + why.text())));
  }
};

template <class Parts>
bool is_rehearsal(const Parts& parts) {
  if constexpr (std::is_same_v<Parts, part_sender>) {
    return has(parts.mark().flags, actors::stamp_flags::rehearsal);
  } else {
    return parts.mark() != nullptr && has(parts.mark()->flags, actors::stamp_flags::rehearsal);
  }
}

/// Runs `send` or `receive` of a config.
template <class Parts>
task<> run_edge(const own_functions& of, const tuning::config_identity& config, Parts& parts,
                std::span<std::byte> data) {
  constexpr bool sends = std::is_same_v<Parts, part_sender>;
  const bool copies = is_rehearsal(parts);
  runtime::scope& here = co_await runtime::this_scope;
  std::optional<run_of_function> run;
  {
    const with_gil held;
    const auto call = std::make_shared<edge_call<Parts>>(parts, config, here);
    run.emplace(of, sends ? "send" : "receive", call);
    run->parts = &parts;
    run->begin(nb::cast(call), call->show(data, sends, copies));
  }
  std::exception_ptr thrown;
  try {
    co_await drive(run->s);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown) {
    const with_gil held;
    try {
      run->end(thrown);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  // The library itself waits for parts of the payload only.
  if (copies || !run->call->keeps.empty()) {
    if (thrown) {
      const errc code = runtime::describe(thrown).code();
      parts.fail(code == errc::cancelled ? code : errc::config_failed);
    }
    static_cast<void>(co_await parts.settle());
  }
  run->parts = nullptr;
  if (thrown) std::rethrow_exception(thrown);
  const with_gil held;
  if (copies && !sends) {
    const auto& came = nb::inst_ptr<payload>(run->call->memories.front())->bytes;
    std::memcpy(data.data(), came.data(), came.size());
  }
  run->end(nullptr);
}

/// Runs `lead` or `work` of a config.
task<> run_group(const own_functions& of, const tuning::config_identity& config, const char* role, group_call& g) {
  runtime::scope& here = co_await runtime::this_scope;
  std::optional<run_of_function> run;
  {
    const with_gil held;
    const auto call = std::make_shared<group_role>(g, config, here);
    run.emplace(of, role, call);
    call->data = call->show(g.data(), false);
    run->begin(nb::cast(call), {});
  }
  std::exception_ptr thrown;
  try {
    co_await drive(run->s);
  } catch (...) {
    thrown = std::current_exception();
  }
  const with_gil held;
  static_cast<group_role&>(*run->call).data.reset();
  run->end(thrown);
}

// ---- a config's description ---------------------------------------------------------------------------------------------

/// The attribute, or nothing if there is none. Throws what a property throws.
nb::object attribute_or_none(nb::handle of, const char* name) {
  try {
    return nb::getattr(of, name);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_AttributeError)) throw;
    return {};
  }
}

/// An attribute of a config, or what it is without one.
template <class T>
T attribute(nb::handle of, const char* name, T otherwise, const char* kind) {
  const nb::object found = attribute_or_none(of, name);
  T value{};
  if (!found.is_valid()) return otherwise;
  if (nb::try_cast(found, value)) return value;
  refuse("config " + nb::cast<std::string>(of.attr("__class__").attr("__name__")) + ": `" + name + "` is " + kind +
         ", not " + nb::cast<std::string>(nb::repr(found)));
}

tuning::config_identity identity_of(nb::handle of) {
  const std::string name =
      attribute(of, "name", nb::cast<std::string>(of.attr("__class__").attr("__name__")), "a text");
  auto parsed = tuning::parse_config_id(name);
  if (!parsed) refuse("config \"" + name + "\": " + parsed.reason().text);
  tuning::config_identity made = std::move(parsed).value();
  const auto parameters = attribute<nb::dict>(of, "parameters", {}, "a dict of numbers and words");
  for (const auto& [key, value] : parameters) {
    if (!nb::isinstance<nb::str>(key) || nb::isinstance<nb::bool_>(value) ||
        !(nb::isinstance<nb::str>(value) || nb::isinstance<nb::int_>(value)))
      refuse("config " + name + ": its parameters are whole numbers and words, not " +
             nb::cast<std::string>(nb::repr(parameters)));
    made.parameters.emplace_back(nb::cast<std::string>(key), nb::cast<std::string>(nb::str(value)));
  }
  made.wire_class = attribute(of, "wire_class", std::string(), "a text");
  made.abi = attribute(of, "abi", made.abi, "a whole number");
  return made;
}

/// What configs of both kinds have.
template <class Base>
class own_config : public Base {
 public:
  runtime::result<> available() const override {
    const with_gil held;
    if (!functions_.object->is_valid()) return {};
    try {
      const nb::object asked = attribute_or_none(*functions_.object, "available");
      if (!asked.is_valid()) return {};
      const nb::object answer = asked();
      if (answer.is_none() || answer.is(nb::handle(Py_True))) return {};
      std::string why = "its `available` says no";
      nb::try_cast(answer, why);
      return error{errc::unavailable, why};
    } catch (nb::python_error& e) {
      runtime::raise(located_error_of(e));
    }
  }
  std::vector<std::string> requirements() const override { return requirements_; }
  tuning::demands demands() const override { return demands_; }

 protected:
  template <class... More>
  explicit own_config(const kept_object& object, More... more)
      : Base(identity_of(*object), more...), functions_{.object = object},
        requirements_(attribute(*object, "requirements", std::vector<std::string>(), "a list of texts")) {
    functions_.id = this->id();
    demands_.relative_error = attribute(*object, "relative_error", 0.0, "a number");
    demands_.memory_bytes = attribute(*object, "memory_bytes", demands_.memory_bytes, "a number of bytes");
    demands_.memory_per_byte = attribute(*object, "memory_per_byte", 0.0, "a number");
  }
  own_functions functions_;

 private:
  std::vector<std::string> requirements_;
  tuning::demands demands_;
};

class own_paired_config final : public own_config<ops::paired_config> {
 public:
  explicit own_paired_config(const kept_object& object)
      : own_config(object, attribute(*object, "whole_up_to", std::uint64_t{0}, "a number of bytes")) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    return run_edge(functions_, identity(), out, std::span(const_cast<std::byte*>(data.data()), data.size()));
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    return run_edge(functions_, identity(), in, data);
  }
  runtime::result<> works_over(const runtime::link&, const runtime::memory_space* memory) const override {
    if (memory == nullptr || !memory->has_streams()) return {};
    return error{errc::unavailable, "its functions are of Python, for payloads in host memory"};
  }
};

class own_group_config final : public own_config<ops::group_config> {
 public:
  explicit own_group_config(const kept_object& object)
      : own_config(object), returns_later_(attribute(*object, "returns_later", true, "True or False")),
        kinds_(attribute(*object, "kinds", std::vector<std::string>(), "a list of texts")) {
    for (const std::string& kind : kinds_) {
      if (kind != name(ops::collective_kind::all_reduce) && kind != name(ops::collective_kind::broadcast) &&
          kind != name(ops::collective_kind::gather))
        refuse("config " + id() + ": a kind is one of all_reduce, broadcast and gather, not " + kind);
    }
  }
  task<> lead(group_call& g) const override { return run_group(functions_, identity(), "lead", g); }
  task<> work(group_call& g) const override { return run_group(functions_, identity(), "work", g); }
  bool does(ops::collective_kind kind) const noexcept override {
    return kinds_.empty() || std::find(kinds_.begin(), kinds_.end(), ops::name(kind)) != kinds_.end();
  }
  bool returns_later() const noexcept override { return returns_later_; }

 private:
  bool returns_later_;
  std::vector<std::string> kinds_;
};

/// The object of the program: an instance, or a class that can be made without arguments.
kept_object object_of(home& where, const nb::object& given, const std::string& op, const char* first,
                      const char* second) {
  nb::object object = given;
  if (PyType_Check(object.ptr()) && nb::hasattr(object, first)) object = object();
  for (const char* const role : {first, second}) {
    if (nb::hasattr(object, role) && PyCallable_Check(nb::object(object.attr(role)).ptr())) continue;
    refuse("op " + op + ": a config is a name, or an object with the functions `" + first + "` and `" + second + "`; " +
           nb::cast<std::string>(nb::repr(given)) + " has no `" + role + "`");
  }
  kept_object made = kept(std::move(object));
  where.kept_objects.emplace_back(made);
  return made;
}

}  // namespace

std::vector<ops::config_ptr> configs_of(home& where, const std::string& op, const config_list& all) {
  std::vector<ops::config_ptr> made;
  for (const nb::object& each : all) {
    if (nb::isinstance<nb::str>(each)) {
      made.push_back(ops::named_config(nb::cast<std::string>(each)).value());
    } else {
      made.push_back(std::make_shared<own_paired_config>(object_of(where, each, op, "send", "receive")));
    }
  }
  return made;
}

std::vector<ops::group_config_ptr> group_configs_of(home& where, const std::string& op, const config_list& all) {
  std::vector<ops::group_config_ptr> made;
  for (const nb::object& each : all) {
    if (nb::isinstance<nb::str>(each)) {
      made.push_back(ops::named_group_config(nb::cast<std::string>(each)).value());
    } else {
      made.push_back(std::make_shared<own_group_config>(object_of(where, each, op, "lead", "work")));
    }
  }
  return made;
}

ops::capability_function capabilities_of(home& where, const std::optional<nb::callable>& can_run) {
  if (!can_run) return {};
  kept_object function = kept(*can_run);
  where.kept_objects.emplace_back(function);
  return [function](runtime::rank_id self) {
    const with_gil held;
    if (!function->is_valid()) runtime::raise({errc::closed, "this rank has left its job"});
    try {
      const nb::object answers = (*function)(self);
      std::vector<bool> all;
      if (!nb::try_cast(answers, all))
        refuse("can_run returns one True or False for each config, not " + nb::cast<std::string>(nb::repr(answers)));
      return all;
    } catch (nb::python_error& e) {
      runtime::raise(located_error_of(e));
    }
  };
}

namespace {

/// Rethrows an exception of the program's function as the error that its op should see: Ctrl-C and errors of parley are no fault of the
/// function. Needs the GIL.
[[noreturn]] void rethrow_for_op(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (nb::python_error& e) {
    pass_on_interrupt(e);
    if (e.matches(PyExc_KeyboardInterrupt)) runtime::raise({errc::cancelled, "it was interrupted"});
    runtime::raise(located_error_of(e));
  }
}

}  // namespace

task<> run_with(kept_object function, kept_object argument, std::shared_ptr<script> s) {
  {
    const with_gil held;
    try {
      if (!function->is_valid()) runtime::raise({errc::closed, "this rank has left its job"});
      s->result = (*function)(*argument);
      s->coroutine = coroutine_of(s->result);
    } catch (nb::python_error&) {
      s->thrown = std::current_exception();
      rethrow_for_op(s->thrown);
    }
    if (!s->coroutine.is_valid()) co_return;
    s->result.reset();
  }
  std::exception_ptr thrown;
  try {
    co_await drive(s);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!thrown) co_return;
  const with_gil held;
  rethrow_for_op(s->thrown ? s->thrown : thrown);
}

// ---- bindings -----------------------------------------------------------------------------------------------------------

namespace {

template <class Parts>
void add_edge_call(nb::class_<edge_call<Parts>>& c) {
  using call = edge_call<Parts>;
  c.def(
       "keep_in_flight", [](const call& self, std::uint64_t limit) { self.get().keep_in_flight(limit); },
       nb::arg("limit"), "How many parts may be in flight at once, 1 to 4096; at first 1.")
      .def(
          "drain",
          [](const std::shared_ptr<call>& self) {
            Parts& parts = self->get();
            return std::make_unique<part_wait>(self, [&parts] { return drain(parts); });
          },
          "`await parts.drain()` waits until all parts so far have ended.")
      .def_prop_ro(
          "total_bytes", [](const call& self) { return self.get().total_bytes(); }, "The size of the payload.")
      .def_prop_ro(
          "parameters", [](const call& self) { return self.parameters(); },
          nb::sig("def parameters(self) -> dict[str, int | str]"), "The config's parameters; whole numbers are ints.");
}

void add_group_call(nb::module_& m) {
  using self = std::shared_ptr<group_role>;
  const auto awaits = [](task<> (*wait)(group_call&)) {
    return [wait](const self& s) {
      group_call& g = s->get();
      return std::make_unique<part_wait>(s, [&g, wait] { return wait(g); });
    };
  };
  const auto awaits_ticket = [](task<> (*wait)(group_call&, group_call::ticket)) {
    return [wait](const self& s, group_call::ticket ticket) {
      group_call& g = s->get();
      return std::make_unique<part_wait>(s, [&g, wait, ticket] { return wait(g, ticket); });
    };
  };
  const auto number = [](auto (group_call::*get)() const) {
    return [get](const group_role& s) { return static_cast<std::uint64_t>((s.get().*get)()); };
  };
  nb::class_<group_role>(
      m, "GroupCall",
      "One call of a collective, for the functions of a group config. Ranks are named by their places, 0 to "
      "`size` - 1, in ascending order.")
      .def_prop_ro(
          "kind", [](const group_role& s) { return std::string(ops::name(s.get().what())); },
          "all_reduce, broadcast or gather.")
      .def_prop_ro("size", number(&group_call::size), "How many ranks the group has.")
      .def_prop_ro("place", number(&group_call::self), "The place of this rank.")
      .def_prop_ro("leader", number(&group_call::leader), "The place of the leader.")
      .def_prop_ro("total_bytes", number(&group_call::total_bytes),
                   "The size of the call; for a gather, of all blocks together.")
      .def_prop_ro("block_bytes", number(&group_call::block_bytes), "For a gather: the size of each place's block.")
      .def_prop_ro("element_bytes", number(&group_call::element_bytes), "The size of one element.")
      .def_prop_ro("posted", number(&group_call::posted), "The number of the last part so far.")
      .def_prop_ro(
          "data",
          [](const group_role& s) {
            s.check();
            return s.data;
          },
          nb::sig("def data(self) -> memoryview"), "The bytes of this rank's buffer: contribution and result.")
      .def_prop_ro(
          "parameters", [](const group_role& s) { return s.parameters(); },
          nb::sig("def parameters(self) -> dict[str, int | str]"), "The config's parameters; whole numbers are ints.")
      .def_prop_ro(
          "has_between", [](const group_role& s) { return s.get().has_between(); },
          "True: the leader awaits `between()` once all is combined, before it sends any result.")
      .def(
          "piece_bytes", [](const group_role& s, std::uint64_t bytes) { return s.get().piece_bytes(bytes); },
          nb::arg("bytes"), "`bytes` rounded down to whole elements, at least one; 0: all of the data.")
      .def(
          "scratch", [](group_role& s, std::uint64_t bytes) { return s.show(s.get().scratch(bytes), false); },
          nb::arg("bytes"), nb::sig("def scratch(self, bytes: int) -> memoryview"), "Memory for the time of this call.")
      .def(
          "combine",
          [](const group_role& s, nb::handle into, nb::handle source) {
            group_call& g = s.get();
            const auto to = group_part_of(s, into, access::writes, "into");
            const auto from = group_part_of(s, source, access::reads, "source");
            check_pair(g, to, from);
            const without_gil free;
            g.combine(to, from);
          },
          nb::arg("into"), nb::arg("source"), "into = into (+) source, element by element. Both are whole elements.")
      .def(
          "send",
          [](const group_role& s, std::size_t to, std::uint64_t offset, nb::handle data, std::uint32_t lane) {
            group_call& g = s.get();
            check_lane(lane);
            return g.send(other_place(g, to), offset, group_part_of(s, data, access::reads, "data"), lane);
          },
          nb::arg("to"), nb::arg("offset"), nb::arg("data"), nb::arg("lane") = 0,
          "Starts to send `data` to a place; `offset` counts within `total_bytes`. Returns the part's number, for "
          "`until`. Lanes "
          "distinguish several messages between two places at one offset.")
      .def(
          "receive",
          [](const group_role& s, std::size_t source, std::uint64_t offset, nb::handle into, std::uint32_t lane) {
            group_call& g = s.get();
            check_lane(lane);
            return g.receive(other_place(g, source), offset, group_part_of(s, into, access::writes, "into"), lane);
          },
          nb::arg("source"), nb::arg("offset"), nb::arg("into"), nb::arg("lane") = 0,
          "Starts to receive a part of exactly this size from a place. Returns the part's number, for `until`.")
      .def("until", awaits_ticket(&until), nb::arg("part"),
           "`await g.until(part)`: all parts up to this number have ended.")
      .def("until_sent", awaits_ticket(&until_sent), nb::arg("part"), "Like `until`, but only this rank's sends.")
      .def("drain", awaits(&drain_group), "`await g.drain()`: all parts have ended.")
      .def("between", awaits(&between), "The leader's own work between collecting and returning.");
}

}  // namespace

void add_own_configs(nb::module_& m) {
  const tuning::constraints none;
  nb::class_<tuning::constraints>(m, "Constraints", "This rank's limits for every config except the default.")
      .def(
          "__init__",
          [](tuning::constraints* self, double relative_error, std::optional<std::uint64_t> memory_bytes,
             bool compare_trials, double absolute_error) {
            new (self) tuning::constraints{
                .relative_error = relative_error, .compare_trials = compare_trials, .absolute_error = absolute_error};
            if (memory_bytes) self->memory_bytes = *memory_bytes;
          },
          nb::arg("relative_error") = none.relative_error, nb::arg("memory_bytes") = nb::none(),
          nb::arg("compare_trials") = false, nb::arg("absolute_error") = none.absolute_error,
          nb::sig("def __init__(self, relative_error: float = float('inf'), memory_bytes: int | None = None, "
                  "compare_trials: bool = "
                  "False, absolute_error: float = 1e-05) -> None"),
          "`relative_error`: of a config's result, relative to the default's. `memory_bytes`: beside the caller's "
          "buffers; None: no "
          "limit. `compare_trials`: a trial's result is compared with the default's.");
  nb::class_<payload>(m, "_Payload", nb::type_slots(payload_slots), "Memory of a call, for the time of the call.");
  nb::class_<awaited>(m, "Awaited", "What a config's function can await.");
  nb::class_<part_wait, awaited>(m, "Part", "What a config's function awaits.")
      .def(
          "__await__", [](nb::handle self) { return part_iterator{nb::borrow(self)}; },
          nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, None, None]"));
  nb::class_<part_iterator>(m, "_PartIterator", nb::type_slots(iterator_slots));

  nb::class_<send_call> sender(m, "PartSender", "The parts of one message, for `send` of a config.");
  add_edge_call(sender);
  sender.def("send", &send, nb::arg("offset"), nb::arg("data"),
             "`await out.send(offset, data)` starts to send `data`, any memory, as the part at `offset` of the "
             "payload, then waits until "
             "another part may start.");
  nb::class_<receive_call> receiver(m, "PartReceiver", "The parts of one message, for `receive` of a config.");
  add_edge_call(receiver);
  receiver.def("receive", &receive, nb::arg("offset"), nb::arg("into"),
               "`await parts.receive(offset, into)` asks for the part at `offset`, which must have exactly the size of "
               "`into`, then waits "
               "until another part may start.");
  add_group_call(m);
}

}  // namespace parley::python
