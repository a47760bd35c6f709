#include "ops.hpp"

#include <parley/ring_attention.hpp>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;
using runtime::task;

namespace {

struct ring_attention {
  rank_ptr where;
  std::shared_ptr<ops::ring_attention> op;  // calls refer to it
};

ring_attention make_attention(const rank_ptr& where, const std::string& name, const std::vector<rank_id>& ranks,
                              const config_list& configs, seconds timeout) {
  const hold held = where->check();
  ops::ring_attention_options o{.name = name};
  o.ranks = ranks;
  if (!configs.empty()) o.configs = configs_of(*where, name, configs);
  o.timeout = span_of(timeout, o.timeout);
  return {where, std::make_shared<ops::ring_attention>(*where->self, o)};
}

template <class T>
task<> forward_as(std::shared_ptr<ops::ring_attention> op, ops::attention_shape shape, std::array<std::span<T>, 4> a) {
  const std::span<const T> q = a[0];
  const std::span<const T> k = a[1];
  const std::span<const T> v = a[2];
  co_await op->forward<T>(shape, q, k, v, a[3]);
}

std::unique_ptr<call> iforward(ring_attention& r, nb::handle q, nb::handle k, nb::handle v, nb::handle out, bool causal,
                               double scale) {
  const std::array<buffer, 4> all{memory_of(q, access::reads, "q"), memory_of(k, access::reads, "k"),
                                  memory_of(v, access::reads, "v"), memory_of(out, access::writes, "out")};
  if (!nb::hasattr(q, "shape"))
    runtime::raise({errc::bad_argument, "q: pass an array, with (heads, rows, dimensions)"});
  const std::vector<std::uint64_t> shape = shape_of(q, "q");
  if (shape.size() != 3) runtime::raise({errc::bad_argument, "q: its shape is not (heads, rows, dimensions)"});
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].of != all[0].of || all[i].bytes.size() != all[0].bytes.size())
      runtime::raise({errc::bad_argument, "q, k, v and out differ in size or type of elements"});
  }
  const ops::attention_shape s{
      .heads = shape[0], .rows = shape[1], .dimensions = shape[2], .causal = causal, .scale = scale};
  const auto start = [&]<class T>() {
    return begin(
        r.where,
        forward_as<T>(r.op, s,
                      {elements_of<T>(all[0]), elements_of<T>(all[1]), elements_of<T>(all[2]), elements_of<T>(all[3])}),
        {all[0].owner, all[1].owner, all[2].owner, all[3].owner});
  };
  if (all[0].of == element::f32) return start.operator()<float>();
  if (all[0].of == element::f64) return start.operator()<double>();
  if (all[0].of == element::bf16) return start.operator()<runtime::bf16>();
  runtime::raise({errc::bad_argument, "q: elements are float32, float64 or bfloat16"});
}

}  // namespace

void add_attention(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<ring_attention>(m, "RingAttention",
                             "Attention over a sequence that the ranks share (parley/ring_attention.hpp): keys and "
                             "values go around the ring while each rank computes. All ranks declare it.")
      .def(
          "__init__",
          [](ring_attention* r, const rank_ptr& rank, const std::string& name, const std::vector<rank_id>& ranks,
             const config_list& configs,
             seconds timeout) { new (r) ring_attention(make_attention(rank, name, ranks, configs, timeout)); },
          nb::arg("rank"), nb::arg("name"), nb::arg("ranks") = std::vector<rank_id>(),
          nb::arg("configs") = config_list(), nb::arg("timeout") = none,
          "`ranks` in the order of the sequence; empty: all. `configs`: empty: direct and chunked.")
      .def("iforward", &iforward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("causal") = false,
           nb::arg("scale") = 0.0)
      .def("forward", waits(&iforward), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"),
           nb::arg("causal") = false, nb::arg("scale") = 0.0,
           nb::sig("def forward(self, q: object, k: object, v: object, out: object, causal: bool = False, "
                   "scale: float = 0.0) -> None"),
           "Writes softmax(q kᵀ scale) v over the whole sequence into `out`. All four are arrays (heads, rows, "
           "dimensions) of float32, float64 or bfloat16, with this rank's rows of the sequence. `scale` 0: 1 / "
           "sqrt(dimensions). The same bits in every run.")
      .def_prop_ro(
          "size", [](const ring_attention& r) { return r.op->size(); }, "The number of ranks in the ring.")
      .def_prop_ro(
          "idle", [](const ring_attention& r) { return r.op->idle(); }, "True if this rank is none of them.")
      .def(
          "decision",
          [](const ring_attention& r, std::uint64_t bytes) {
            const hold held = r.where->check();
            return r.op->decision(bytes);
          },
          nb::arg("bytes"), "What this rank and the next one run for keys of that size.");
}

}  // namespace parley::python
