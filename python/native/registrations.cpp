// Functions that are registered for roles (parley/registration.hpp). The texts for users are in parley/registration.py.
#include "ops.hpp"

#include <parley/registration.hpp>
#include <parley/runtime/finally.hpp>

#include <nanobind/stl/tuple.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;
using runtime::task;

namespace {

/// What the program has passed to one call, and what its function made of it.
struct passed {
  kept_object data;
  std::shared_ptr<script> s = std::make_shared<script>();
  bool is_taken = false;
};

/// The calls of an op that are under way. A function of C++ gets the memory of the data alone, and finds the object here.
class passed_objects {
 public:
  void add(std::span<std::byte> bytes, std::shared_ptr<passed> p) { all_.emplace(bytes.data(), std::move(p)); }
  /// The earliest call with this memory that no function has taken yet.
  std::shared_ptr<passed> take(std::span<std::byte> bytes) {
    const auto [first, last] = all_.equal_range(bytes.data());
    for (auto at = first; at != last; ++at) {
      if (!std::exchange(at->second->is_taken, true)) return at->second;
    }
    runtime::raise({errc::invariant_broken, "a registered function was called without a call of its op"});
  }
  void remove(const std::shared_ptr<passed>& p) {
    std::erase_if(all_, [&](const auto& each) { return each.second == p; });
  }

 private:
  std::multimap<const std::byte*, std::shared_ptr<passed>> all_;
};
using passed_ptr = std::shared_ptr<passed_objects>;

/// An op whose functions are Python's.
template <class Op>
struct registered {
  rank_ptr where;
  Op op;
  passed_ptr calls;
};
using role_op = registered<ops::role_op>;
using coordinated_op = registered<ops::symmetric>;

template <class Op>
task<> run_registered(Op op, std::span<std::byte> bytes, passed_ptr calls, std::shared_ptr<passed> p) {
  const runtime::finally over([&] { calls->remove(p); });
  co_await op.run(bytes);
}

template <class Op>
std::unique_ptr<call> irun(registered<Op>& r, nb::object data) {
  const hold held = r.where->check();
  buffer b;
  if (!data.is_none()) b = memory_of(data, access::reads, "data");
  const auto p = std::make_shared<passed>(passed{.data = kept(data)});
  r.calls->add(b.bytes, p);
  return begin(r.where, run_registered(r.op, b.bytes, r.calls, p), script_result{p->s}, {b.owner});
}

/// Role, function and the word for `fits`; role, name, function, `fits` and the three demands.
using operation_row = std::tuple<std::string, std::optional<nb::callable>, std::string>;
using config_row =
    std::tuple<std::string, std::string, std::optional<nb::callable>, std::string, double, std::uint64_t, double>;

struct lists {
  std::vector<ops::role_operation> operations;
  std::vector<ops::role_config> configs;
};

lists lists_of(home& where, const passed_ptr& calls, const std::vector<operation_row>& operations,
               const std::vector<config_row>& configs) {
  const auto function_of = [&](const std::optional<nb::callable>& f) -> ops::operation_function {
    if (!f) return {};
    const kept_object function = kept(*f);
    where.kept_objects.emplace_back(function);
    return [function, calls](std::span<std::byte> bytes) {
      const auto p = calls->take(bytes);
      return run_with(function, p->data, p->s);
    };
  };
  lists all;
  for (const auto& [role, f, fits] : operations) all.operations.push_back({role, function_of(f), fits});
  for (const auto& [role, name, f, fits, relative_error, memory_bytes, memory_per_byte] : configs)
    all.configs.push_back(
        {role,
         name,
         function_of(f),
         {.relative_error = relative_error, .memory_bytes = memory_bytes, .memory_per_byte = memory_per_byte},
         fits});
  return all;
}

/// Registers with `how`, a function of registration.hpp.
template <class Op, class Register>
registered<Op> make_registered(const rank_ptr& where, const std::string& name,
                               const std::vector<operation_row>& operations, const std::vector<config_row>& configs,
                               const nb::callable& role_fn, const std::optional<tuning::constraints>& allowed,
                               Register how) {
  const hold held = where->check();
  const auto calls = std::make_shared<passed_objects>();
  const lists all = lists_of(*where, calls, operations, configs);
  const role_function role = [&](rank_id r) { return role_fn(r); };
  const auto role_in_text = [&](rank_id r) { return role_of(role, r, name); };
  return {where,
          how(*where->self, name, all.operations, all.configs, role_in_text, allowed.value_or(tuning::constraints{})),
          calls};
}

template <class Op>
nb::class_<registered<Op>> add_registered(nb::module_& m, const char* name, const char* what) {
  using r = registered<Op>;
  return nb::class_<r>(m, name, what)
      .def("irun", &irun<Op>, nb::arg("data") = nb::none(),
           "Starts a call: one of the registered functions runs on `data`. The result is what that function returns.")
      .def("run", waits(&irun<Op>), nb::arg("data") = nb::none(),
           nb::sig("def run(self, data: object = None) -> typing.Any"),
           "Runs one of the registered functions on `data`, and returns what that function returns. The bytes of "
           "`data`, any "
           "memory or None, are the size that the decision is for. An exception of the function comes out unchanged.")
      .def(
          "decision",
          [](const r& self, std::uint64_t bytes) {
            const hold held = self.where->check();
            return self.op.decision(bytes);
          },
          nb::arg("bytes"), "What runs for data of so many bytes, and why.")
      .def(
          "retune",
          [](const r& self, std::optional<std::uint64_t> bytes, const std::string& why) {
            const hold held = self.where->check();
            self.op.agreed().retune(bytes, why);
          },
          nb::arg("bytes") = nb::none(), nb::arg("why") = "",
          "Searches again for this size; None: for all sizes so far.")
      .def_prop_ro("idle", [](const r& self) { return self.op.idle(); }, "True if this rank has no part in the op.");
}

/// `name`, which makes a `result` with `How`, a function of registration.hpp.
template <class Op, auto How>
void add_register(nb::module_& m, const std::string& name, const std::string& result) {
  const std::string function = "collections.abc.Callable[[typing.Any], typing.Any] | None";
  const std::string signature =
      "def " + name + "(rank: Rank, name: str, operations: collections.abc.Sequence[tuple[str, " + function +
      ", str]], configs: collections.abc.Sequence[tuple[str, str, " + function +
      ", str, float, int, float]], role_fn: collections.abc.Callable[[int], str], allowed: Constraints | None = None) "
      "-> " +
      result;
  m.def(
      name.c_str(),
      [](const rank_ptr& rank, const std::string& op, const std::vector<operation_row>& operations,
         const std::vector<config_row>& configs, const nb::callable& role_fn,
         const std::optional<tuning::constraints>& allowed) {
        return make_registered<Op>(rank, op, operations, configs, role_fn, allowed, How);
      },
      nb::arg("rank"), nb::arg("name"), nb::arg("operations"), nb::arg("configs"), nb::arg("role_fn"),
      nb::arg("allowed") = nb::none(), nb::sig(signature.c_str()));
}

}  // namespace

void add_registrations(nb::module_& m) {
  add_registered<ops::role_op>(m, "RoleOp", "The work of this rank in its role; this rank alone chooses the function.")
      .def_prop_ro("role", [](const role_op& self) { return self.op.role(); }, "This rank's role.");
  add_registered<ops::symmetric>(m, "CoordinatedOp",
                                 "The work of all ranks in their roles; the roles choose together.");
  add_register<ops::role_op, &ops::register_asymmetric_autotuning>(m, "register_asymmetric", "RoleOp");
  add_register<ops::symmetric, &ops::register_coordinated_autotuning>(m, "register_coordinated", "CoordinatedOp");
}

}  // namespace parley::python
