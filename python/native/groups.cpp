#include "ops.hpp"

#include <parley/hierarchy.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;

namespace {

struct hierarchy {
  rank_ptr where;
  std::shared_ptr<ops::hierarchy> op;  // calls refer to it
};

using rank_function = std::optional<std::function<nb::object(rank_id)>>;

/// The program's function is asked once for each rank, here.
template <class Convert>
auto asked_of(const rank_function& f, rank_id world_size, Convert convert)
    -> std::function<std::invoke_result_t<Convert, nb::object>(rank_id)> {
  if (!f) return {};
  std::vector<std::invoke_result_t<Convert, nb::object>> all;
  for (rank_id r = 0; r < world_size; ++r) all.push_back(convert((*f)(r)));
  return [all = std::move(all)](rank_id r) { return all.at(r); };
}

bool truth_of(const nb::object& o) {
  const int is = PyObject_IsTrue(o.ptr());
  if (is < 0) throw nb::python_error();
  return is != 0;
}
std::string text_of(const nb::object& o) { return plain_text(o); }

hierarchy make_hierarchy(const rank_ptr& where, const std::string& name, const rank_function& leads,
                         const rank_function& group_by, const config_list& inside, const config_list& between,
                         std::uint64_t depth, std::uint64_t pack_below, seconds timeout) {
  const hold held = where->check();
  ops::hierarchy_options o{.name = name};
  o.leads = asked_of(leads, where->world_size, truth_of);
  o.group_by = asked_of(group_by, where->world_size, text_of);
  if (!inside.empty()) o.inside = group_configs_of(*where, name, inside);
  if (!between.empty()) o.between = group_configs_of(*where, name, between);
  o.depth = depth;
  o.pack_below = pack_below;
  o.timeout = span_of(timeout, o.timeout);
  return {where, std::make_shared<ops::hierarchy>(*where->self, o)};
}

ops::collective_call_options within(seconds timeout) { return {.timeout = span_of(timeout, {})}; }

std::unique_ptr<call> iall_reduce(hierarchy& h, nb::handle data, const std::string& by, seconds timeout) {
  const buffer b = memory_of(data, access::writes, "data");
  const hold held = h.where->check();
  return with_numbers(b.of, by, [&]<class T, class Combine>() {
    return begin(h.where, h.op->all_reduce<Combine>(elements_of<T>(b), within(timeout)), {b.owner, h.op});
  });
}

std::unique_ptr<call> iall_reduce_each(hierarchy& h, const std::vector<nb::object>& buffers, const std::string& by,
                                       seconds timeout) {
  std::vector<buffer> all;
  std::vector<keep> keeps{h.op};
  for (const nb::object& each : buffers) {
    all.push_back(memory_of(each, access::writes, "buffers"));
    keeps.push_back(all.back().owner);
    if (all.back().of != all.front().of)
      runtime::raise({errc::bad_argument, "buffers: they have different types of elements; sum each type by itself"});
  }
  const hold held = h.where->check();
  return with_numbers(all.empty() ? element::f32 : all.front().of, by, [&]<class T, class Combine>() {
    std::vector<std::span<T>> parts;
    for (const buffer& b : all) parts.push_back(elements_of<T>(b));
    return begin(h.where, h.op->all_reduce_list<Combine, T>(parts, within(timeout)), std::move(keeps));
  });
}

std::unique_ptr<call> ibroadcast(hierarchy& h, nb::handle data, seconds timeout) {
  const buffer b = memory_of(data, access::writes, "data");
  const hold held = h.where->check();
  return with_type(b.of, [&]<class T>() {
    return begin(h.where, h.op->broadcast(elements_of<T>(b), within(timeout)), {b.owner, h.op});
  });
}

std::unique_ptr<call> iall_gather(hierarchy& h, nb::handle mine, nb::handle all, seconds timeout) {
  const buffer from = memory_of(mine, access::reads, "mine");
  const buffer into = memory_of(all, access::writes, "all");
  if (into.of != from.of) runtime::raise({errc::bad_argument, "`mine` and `all` have different types of elements"});
  const hold held = h.where->check();
  return with_type(from.of, [&]<class T>() {
    const std::span<const T> part = elements_of<T>(from);
    return begin(h.where, h.op->all_gather(part, elements_of<T>(into), within(timeout)),
                 {from.owner, into.owner, h.op});
  });
}

std::unique_ptr<call> ireduce_scatter(hierarchy& h, nb::handle data, nb::handle mine, const std::string& by,
                                      seconds timeout) {
  const buffer from = memory_of(data, access::writes, "data");
  const buffer into = memory_of(mine, access::writes, "mine");
  if (into.of != from.of) runtime::raise({errc::bad_argument, "`data` and `mine` have different types of elements"});
  const hold held = h.where->check();
  return with_numbers(from.of, by, [&]<class T, class Combine>() {
    return begin(h.where, h.op->reduce_scatter<Combine>(elements_of<T>(from), elements_of<T>(into), within(timeout)),
                 {from.owner, into.owner, h.op});
  });
}

ops::collective_kind kind_of(const std::string& text) {
  if (text == "all_reduce") return ops::collective_kind::all_reduce;
  if (text == "broadcast") return ops::collective_kind::broadcast;
  if (text == "all_gather") return ops::collective_kind::gather;
  runtime::raise({errc::bad_argument, "kind is one of all_reduce, broadcast and all_gather, and not " + text});
}

}  // namespace

void add_groups(nb::module_& m) {
  const auto none = nb::none();
  const config_list usual;
  nb::class_<hierarchy>(m, "Hierarchy",
                        "Collectives of all ranks in two levels, inside groups and between their leaders "
                        "(parley/hierarchy.hpp). Each group, and the group of leaders, finds its own fastest config. "
                        "All ranks declare it, and make the same calls in the same order.")
      .def(
          "__init__",
          [](hierarchy* h, const rank_ptr& rank, const std::string& name, const rank_function& leads,
             const rank_function& group_by, const config_list& inside, const config_list& between, std::uint64_t depth,
             std::uint64_t pack_below, seconds timeout) {
            new (h) hierarchy(make_hierarchy(rank, name, leads, group_by, inside, between, depth, pack_below, timeout));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("leads") = none, nb::arg("group_by") = none,
          nb::arg("inside") = usual, nb::arg("between") = usual, nb::arg("depth") = 1,
          nb::arg("pack_below") = ops::hierarchy_options{}.pack_below, nb::arg("timeout") = none,
          "`leads(rank)`: true for the first rank of each group, such as rank 0; or `group_by(rank)`: ranks with equal "
          "texts form a group, such as `rank.kind_of`. Neither: one group. `inside` and `between`: configs of the two "
          "levels; empty: all that the library has. `pack_below`: buffers of `all_reduce_each` with fewer bytes are "
          "packed into one message.")
      .def("iall_reduce", &iall_reduce, nb::arg("data"), nb::arg("by") = "sum", nb::arg("timeout") = none)
      .def("all_reduce", waits(&iall_reduce), nb::arg("data"), nb::arg("by") = "sum", nb::arg("timeout") = none,
           nb::sig(R"(def all_reduce(self, data: object, by: str = "sum", timeout: float | None = None) -> None)"),
           "Combines the arrays of all ranks in place, with the same bits on all ranks and in every run. `by`: sum, "
           "product, min or max.")
      .def("iall_reduce_each", &iall_reduce_each, nb::arg("buffers"), nb::arg("by") = "sum", nb::arg("timeout") = none)
      .def("all_reduce_each", waits(&iall_reduce_each), nb::arg("buffers"), nb::arg("by") = "sum",
           nb::arg("timeout") = none,
           nb::sig(R"(def all_reduce_each(self, buffers: collections.abc.Sequence[object], by: str = "sum", )"
                   "timeout: float | None = None) -> None"),
           "Combines several arrays of one type together: small ones in one message, large ones at the same time.")
      .def("ibroadcast", &ibroadcast, nb::arg("data"), nb::arg("timeout") = none)
      .def("broadcast", waits(&ibroadcast), nb::arg("data"), nb::arg("timeout") = none,
           nb::sig("def broadcast(self, data: object, timeout: float | None = None) -> None"),
           "Gives all ranks the array of rank 0.")
      .def("iall_gather", &iall_gather, nb::arg("mine"), nb::arg("all"), nb::arg("timeout") = none)
      .def("all_gather", waits(&iall_gather), nb::arg("mine"), nb::arg("all"), nb::arg("timeout") = none,
           nb::sig("def all_gather(self, mine: object, all: object, timeout: float | None = None) -> None"),
           "Copies the array of each rank into `all`, in the order of the ranks.")
      .def("ireduce_scatter", &ireduce_scatter, nb::arg("data"), nb::arg("mine"), nb::arg("by") = "sum",
           nb::arg("timeout") = none)
      .def("reduce_scatter", waits(&ireduce_scatter), nb::arg("data"), nb::arg("mine"), nb::arg("by") = "sum",
           nb::arg("timeout") = none,
           nb::sig(R"(def reduce_scatter(self, data: object, mine: object, by: str = "sum", )"
                   "timeout: float | None = None) -> None"),
           "Combines `data` of all ranks, in place, and copies this rank's equal part of it into `mine`.")
      .def(
          "decision",
          [](const hierarchy& h, std::uint64_t bytes, const std::string& kind) {
            const hold held = h.where->check();
            return h.op->decision(bytes, kind_of(kind));
          },
          nb::arg("bytes"), nb::arg("kind") = "all_reduce",
          "The decision of each level in which this rank takes part, for calls of that size.")
      .def_prop_ro(
          "leads", [](const hierarchy& h) { return h.op->leads(); }, "True if this rank leads its group.")
      .def_prop_ro(
          "group_size", [](const hierarchy& h) { return h.op->group_size(); }, "The number of ranks in its group.")
      .def_prop_ro(
          "groups", [](const hierarchy& h) { return h.op->groups(); }, "The number of groups.")
      .def_prop_ro(
          "copies", [](const hierarchy& h) { return h.op->copies(); },
          "How many copies the library has made in this rank's memory, to pack small buffers and to gather.");
}

}  // namespace parley::python
