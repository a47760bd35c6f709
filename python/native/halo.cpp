#include "halo.hpp"

#include "ops.hpp"

#include <string>
#include <utility>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;

namespace {

struct halo {
  rank_ptr where;
  ops::halo op;
  std::string name;
  std::vector<std::uint64_t> width;  // per dimension; empty: a mesh
};

struct mesh_field {
  buffer memory;
  std::vector<std::vector<std::uint64_t>> send;
  std::vector<std::vector<std::uint64_t>> receive;
};

halo make_halo(const rank_ptr& where, const std::string& name, const std::vector<rank_id>& ranks,
               const std::vector<bool>& periodic, const std::vector<std::uint64_t>& width, const std::string& reach,
               const std::vector<rank_id>& neighbours, const config_list& configs, seconds timeout) {
  const hold held = where->check();
  std::uint64_t places = 1;
  for (const rank_id along : ranks) {
    places *= along;
    if (places > where->world_size)
      runtime::raise({errc::bad_argument, "op " + name + ": its grid has more places than the world of " +
                                              std::to_string(where->world_size) + " has ranks"});
  }
  ops::halo_options o{.name = name};
  o.ranks = ranks;
  o.periodic = periodic;
  o.width = width;
  o.neighbours = neighbours;
  if (reach == "corners") {
    o.reach = ops::halo_reach::corners;
  } else if (reach != "faces") {
    runtime::raise({errc::bad_argument, "op " + name + ": reach is one of faces and corners, and not " + reach});
  }
  if (!configs.empty()) o.configs = configs_of(*where, name, configs);
  o.timeout = span_of(timeout, o.timeout);
  return {where, ops::halo(*where->self, o), name, width.empty() ? std::vector<std::uint64_t>(ranks.size(), 1) : width};
}

/// The cells of a block without its rim. Further dimensions of the array, such as components, belong to each cell.
ops::halo_field grid_field(const halo& h, nb::handle array, const buffer& memory) {
  const auto refuse = [&](const std::string& why) {
    runtime::raise({errc::bad_argument, "op " + h.name + ", a field: " + why});
  };
  const std::size_t dimensions = h.width.size();
  if (dimensions == 0) refuse("a halo without a grid of ranks is of a mesh; pass MeshField(array, send, receive)");
  if (!nb::hasattr(array, "shape")) refuse("it has no shape; pass an array, such as one of numpy");
  const std::vector<std::uint64_t> shape = shape_of(array, "a field");
  if (shape.size() < dimensions)
    refuse("an array of " + std::to_string(shape.size()) + " dimensions in a grid of " + std::to_string(dimensions));
  ops::halo_field f{.memory = memory.bytes, .type = message_type(memory.of)};
  std::uint64_t elements = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (shape[d] <= 2 * h.width[d])
      refuse("its dimension " + std::to_string(d) + " has " + std::to_string(shape[d]) +
             " cells, and the rim alone needs " + std::to_string(2 * h.width[d]) + "; the array includes the rim");
    f.cells.push_back(shape[d] - 2 * h.width[d]);
    elements *= shape[d];
  }
  f.element_bytes = memory.bytes.size() / elements;
  if (f.element_bytes == 0) refuse("its cells are empty");
  return f;
}

ops::halo_field mesh_field_of(const mesh_field& m) {
  const std::uint64_t element_bytes = with_type(m.memory.of, []<class T>() { return std::uint64_t{sizeof(T)}; });
  return {.memory = m.memory.bytes,
          .element_bytes = element_bytes,
          .send = m.send,
          .receive = m.receive,
          .type = message_type(m.memory.of)};
}

halo_plan make_plan(const halo& h, const nb::args& fields) {
  const hold held = h.where->check();
  std::vector<ops::halo_field> all;
  halo_plan made{.where = h.where, .plan = nullptr, .keeps = {}};
  for (nb::handle each : fields) {
    const mesh_field* of_mesh = nullptr;
    if (nb::try_cast(each, of_mesh) && of_mesh != nullptr) {
      if (!h.width.empty())
        runtime::raise({errc::bad_argument, "op " + h.name + ": a grid exchanges arrays; a MeshField is for a mesh"});
      all.push_back(mesh_field_of(*of_mesh));
      made.keeps.push_back(of_mesh->memory.owner);
      continue;
    }
    const buffer memory = memory_of(each, access::writes, "a field");
    all.push_back(grid_field(h, each, memory));
    made.keeps.push_back(memory.owner);
  }
  made.plan = std::make_shared<ops::halo_plan>(h.op.plan(all));
  // The buffers of a plan are registered memory, which must end before its rank does.
  if (h.where->is_virtual)
    h.where->at_end.emplace_back([weak = std::weak_ptr(made.plan)] {
      if (const auto plan = weak.lock()) *plan = {};
    });
  return made;
}

std::unique_ptr<call> iexchange(halo_plan& p) {
  const hold held = p.where->check();
  std::vector<keep> keeps = p.keeps;
  keeps.push_back(p.plan);
  return begin(p.where, p.plan->exchange(), std::move(keeps));
}

template <class Ask>
auto asks(Ask ask) {
  return [ask](const halo_plan& p) {
    const hold held = p.where->check();
    return ask(*p.plan);
  };
}

}  // namespace

void add_halo(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<mesh_field>(m, "MeshField", "A field on this rank's part of a mesh, for `Halo.plan`.")
      .def(
          "__init__",
          [](mesh_field* f, nb::handle array, std::vector<std::vector<std::uint64_t>> send,
             std::vector<std::vector<std::uint64_t>> receive) {
            new (f) mesh_field{memory_of(array, access::writes, "array"), std::move(send), std::move(receive)};
          },
          nb::arg("array"), nb::arg("send"), nb::arg("receive"),
          "`send` and `receive` have, for each neighbour in the order of the declaration, the indices of the elements "
          "that it gets and that it gives.");

  nb::class_<halo_plan>(m, "HaloPlan",
                        "Fields that are exchanged together. A plan belongs to the memory of its arrays: who swaps two "
                        "arrays also swaps their plans.")
      .def("iexchange", &iexchange,
           "Starts an exchange. Cells that neighbours need must not be written, and ghosts not be read, until it has "
           "ended.")
      .def("exchange", waits(&iexchange), nb::sig("def exchange(self) -> None"),
           "Fills the ghosts of all fields with the cells of the neighbours. All ranks make the same exchanges in the "
           "same order.")
      .def_prop_ro("sent_bytes", asks([](const ops::halo_plan& p) { return p.sent_bytes(); }),
                   "What this rank sends in one exchange.")
      .def_prop_ro("packed_bytes", asks([](const ops::halo_plan& p) { return p.packed_bytes(); }),
                   "What of that is packed, because it lies in many pieces.");

  nb::class_<halo>(m, "Halo",
                   "Halo exchange (parley/halo.hpp): each rank has a block of a grid, or a part of a mesh, with a rim "
                   "of cells that belong to its neighbours. All ranks declare it.")
      .def(
          "__init__",
          [](halo* h, const rank_ptr& rank, const std::string& name, const std::vector<rank_id>& ranks,
             const std::vector<bool>& periodic, const std::vector<std::uint64_t>& width, const std::string& reach,
             const std::vector<rank_id>& neighbours, const config_list& configs, seconds timeout) {
            new (h) halo(make_halo(rank, name, ranks, periodic, width, reach, neighbours, configs, timeout));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("ranks") = std::vector<rank_id>(),
          nb::arg("periodic") = std::vector<bool>(), nb::arg("width") = std::vector<std::uint64_t>(),
          nb::arg("reach") = "faces", nb::arg("neighbours") = std::vector<rank_id>(),
          nb::arg("configs") = config_list(), nb::arg("timeout") = none,
          "`ranks`: the number of ranks along each of 1 to 3 dimensions, the last of which is numbered first; empty: a "
          "mesh, whose `neighbours` this rank names. `periodic` (none is) and `width` of the rim in cells (1): for "
          "each "
          "dimension. `reach`: `faces`, or `corners` for diagonal neighbours, too. `configs`: empty: direct, chunked "
          "and by_piece. `timeout`: seconds of one exchange.")
      .def("plan", &make_plan, nb::sig("def plan(self, *fields: object) -> HaloPlan"),
           "Plans the exchange of arrays in place. An array includes the rim: its first dimensions have the cells of "
           "the block and twice the width; further dimensions belong to each cell. For a mesh: `MeshField`s.")
      .def_prop_ro(
          "place", [](const halo& h) { return h.op.place(); }, "This rank's place along each dimension.")
      .def_prop_ro(
          "neighbours", [](const halo& h) { return h.op.neighbours(); },
          "The number of messages that this rank sends in one exchange.")
      .def_prop_ro(
          "idle", [](const halo& h) { return h.op.idle(); }, "True if this rank has no neighbours.")
      .def(
          "decision",
          [](const halo& h, std::uint64_t bytes, rank_id peer) {
            const hold held = h.where->check();
            return h.op.decision(bytes, peer);
          },
          nb::arg("bytes"), nb::arg("peer"),
          "What this rank and `peer` have agreed on for messages of that size, which have all fields of a plan.");
}

}  // namespace parley::python
