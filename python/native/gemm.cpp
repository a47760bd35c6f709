#include "ops.hpp"

#include <parley/gemm.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;

namespace {

struct matrices {
  buffer memory;
  std::size_t batch = 1, rows = 0, columns = 0;
  bool is_batched = false;
};

[[noreturn]] void refuse(const std::string& why) { runtime::raise({errc::bad_argument, "gemm: " + why}); }

matrices matrices_of(nb::handle array, access how, const char* what) {
  matrices m{.memory = memory_of(array, how, what)};
  if (!nb::hasattr(array, "shape")) refuse(std::string(what) + " has no shape; pass an array, such as one of numpy");
  const std::vector<std::uint64_t> shape = shape_of(array, what);
  if (shape.size() != 2 && shape.size() != 3)
    refuse(std::string(what) + " is neither a matrix nor a batch of matrices");
  m.is_batched = shape.size() == 3;
  if (m.is_batched) m.batch = shape.front();
  m.rows = shape[shape.size() - 2];
  m.columns = shape.back();
  return m;
}

/// The products of one rank: one `gemm` for each type, since their names are reserved.
struct products {
  template <class T>
  ops::gemm<T>& of(rank_home& rank) {
    auto& mine = std::get<std::optional<ops::gemm<T>>>(all);
    if (!mine) mine.emplace(rank.self->kernels());
    return *mine;
  }
  /// Those of a rank, which all objects of the program share.
  static std::shared_ptr<products> of_rank(const rank_ptr& rank) {
    static std::map<const rank_home*, std::weak_ptr<products>> known;
    std::erase_if(known, [](const auto& each) { return each.second.expired(); });
    auto& mine = known[rank.get()];
    if (auto made = mine.lock()) return made;
    auto made = std::make_shared<products>();
    mine = made;
    return made;
  }
  std::tuple<std::optional<ops::gemm<float>>, std::optional<ops::gemm<double>>> all;
};

bool overlap(const buffer& one, const buffer& other) {
  const auto begins = [](const buffer& b) { return reinterpret_cast<std::uintptr_t>(b.bytes.data()); };
  return begins(one) < begins(other) + other.bytes.size() && begins(other) < begins(one) + one.bytes.size();
}

class gemm {
 public:
  explicit gemm(rank_ptr where) : where_(std::move(where)), products_(products::of_rank(where_)) {
    const hold held = where_->check();
  }

  void multiply(nb::handle a, nb::handle b, nb::handle c, bool trans_a, bool trans_b, double alpha, double beta,
                nb::handle bias) {
    with(a, b, c, trans_a, trans_b, alpha, beta, bias, [](auto& op, const auto& call) {
      const without_gil free;
      op(call);
    });
  }
  std::string runs(nb::handle a, nb::handle b, nb::handle c, bool trans_a, bool trans_b, double alpha, double beta,
                   nb::handle bias) {
    std::string id;
    with(a, b, c, trans_a, trans_b, alpha, beta, bias, [&](auto& op, const auto& call) { id = op.runs(call); });
    return id;
  }
  std::vector<std::string> implementations() {
    const hold held = where_->check();
    return products_->of<float>(*where_).implementations();
  }

 private:
  template <class F>
  void with(nb::handle a, nb::handle b, nb::handle c, bool trans_a, bool trans_b, double alpha, double beta,
            nb::handle bias, const F& f) {
    const hold held = where_->check();
    const matrices x = matrices_of(a, access::reads, "a");
    const matrices y = matrices_of(b, access::reads, "b");
    const matrices z = matrices_of(c, access::writes, "c");
    buffer added;
    if (!bias.is_none()) added = memory_of(bias, access::reads, "bias");
    const element of = x.memory.of;
    if (of != element::f32 && of != element::f64) refuse("elements are float32 or float64");
    if (y.memory.of != of || z.memory.of != of || (!bias.is_none() && added.of != of))
      refuse("the matrices have different types of elements");
    const std::size_t k = trans_a ? x.rows : x.columns;
    if ((trans_a ? x.columns : x.rows) != z.rows || (trans_b ? y.rows : y.columns) != z.columns ||
        (trans_b ? y.columns : y.rows) != k)
      refuse("the sizes do not fit: op(a) is (m, k), op(b) (k, n), and c (m, n)");
    if (x.batch != z.batch || y.batch != z.batch || x.is_batched != z.is_batched || y.is_batched != z.is_batched)
      refuse("a, b and c have different numbers of matrices");
    if (overlap(z.memory, x.memory) || overlap(z.memory, y.memory) || (!bias.is_none() && overlap(z.memory, added)))
      refuse("c overlaps a, b or the bias");
    const auto call_as = [&]<class T>() {
      ops::gemm_call<T> g{.m = z.rows, .n = z.columns, .k = k, .trans_a = trans_a, .trans_b = trans_b};
      g.alpha = static_cast<ops::gemm_scalar<T>>(alpha);
      g.beta = static_cast<ops::gemm_scalar<T>>(beta);
      g.a = elements_of<T>(x.memory);
      g.b = elements_of<T>(y.memory);
      g.c = elements_of<T>(z.memory);
      g.bias = elements_of<T>(added);
      g.batch = z.batch;
      g.order = ops::matrix_order::row_major;
      f(products_->of<T>(*where_), g);
    };
    if (of == element::f32) {
      call_as.template operator()<float>();
    } else {
      call_as.template operator()<double>();
    }
  }
  rank_ptr where_;
  std::shared_ptr<products> products_;
};

}  // namespace

void add_gemm(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<gemm>(
      m, "Gemm",
      "Matrix products as tunable kernels (parley/gemm.hpp), by the names and keys of PyTorch's TunableOp. "
      "Each new size tries the libraries of this machine (OpenBLAS, BLIS, oneDNN) with several numbers of "
      "threads, while tunable operations are enabled (`parley.tunable.enable`).")
      .def(nb::init<rank_ptr>(), nb::arg("rank"))
      .def("__call__", &gemm::multiply, nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("trans_a") = false,
           nb::arg("trans_b") = false, nb::arg("alpha") = 1.0, nb::arg("beta") = 0.0, nb::arg("bias") = none,
           "c = alpha op(a) op(b) + beta c + bias, where op transposes if asked to. Arrays (rows, columns), or (batch, "
           "rows, columns), of float32 or float64; `bias` has a number for each column of c. c must not overlap the "
           "others.")
      .def("runs", &gemm::runs, nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("trans_a") = false,
           nb::arg("trans_b") = false, nb::arg("alpha") = 1.0, nb::arg("beta") = 0.0, nb::arg("bias") = none,
           "The implementation that such a call runs, such as `openblas(threads=2)`.")
      .def_prop_ro("implementations", &gemm::implementations, "What this machine has, the default first.");
}

}  // namespace parley::python
