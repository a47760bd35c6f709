#include "buffers.hpp"
#include "collected.hpp"
#include "cuda.hpp"
#include "ranks.hpp"

#include <parley/cuda_copies.hpp>
#include <parley/cuda_kernels.hpp>
#include <parley/offline_tuning.hpp>
#include <parley/tunable_op.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using ops::tunable_context;
using runtime::errc;

namespace {

void check_text(const std::string& text, const std::string& kernel) {
  if (text.find_first_of(",\n\r\"") != std::string::npos)
    runtime::raise({errc::bad_argument, "kernel " + kernel + ": the key " + text +
                                            " has a comma, a quote or a line break, which results files cannot hold"});
}

/// Python's keys are texts; each gets a number, because those of C++ are numbers and literals.
struct key_texts {
  std::map<std::string, std::uint64_t> numbers;
  std::vector<std::string> texts;
  std::uint64_t number_of(const std::string& text, const std::string& kernel) {
    const auto known = numbers.find(text);
    if (known != numbers.end()) return known->second;
    check_text(text, kernel);
    texts.push_back(text);
    return numbers.emplace(text, texts.size() - 1).first->second;
  }
};

/// `{"m": 64, "dtype": "f32"}` as results files write it: `dtype=f32 m=64`.
std::string text_of(nb::handle key, const std::string& kernel) {
  if (nb::isinstance<nb::str>(key)) return plain_text(key);
  if (!nb::isinstance<nb::dict>(key))
    runtime::raise({errc::bad_argument, "kernel " + kernel + ": `key` returns a dict of numbers and words, or a text"});
  std::map<std::string, std::string> sorted;
  for (const auto& [name, value] : nb::borrow<nb::dict>(key)) sorted[plain_text(name)] = plain_text(value);
  std::string all;
  for (const auto& [name, value] : sorted) all += (all.empty() ? "" : " ") + name + "=" + value;
  return all;
}

ops::kernel_outputs outputs_of(const std::vector<buffer>& all, bool updates, const std::string& kernel) {
  if (all.empty()) return {};
  for (const buffer& b : all)
    if (b.of != all.front().of || b.of == element::bytes || b.of == element::boolean)
      runtime::raise({errc::bad_argument, "kernel " + kernel + ": its outputs must be arrays of numbers of one type"});
  const auto made = [&]<class T>(T) {
    const auto part = [&](std::size_t i) {
      return std::span(reinterpret_cast<T*>(all[i].bytes.data()), all[i].bytes.size() / sizeof(T));
    };
    const auto with = [&](auto... spans) {
      return updates ? ops::kernel_outputs::updated(spans...) : ops::kernel_outputs(spans...);
    };
    if (all.size() == 1) return with(part(0));
    if (all.size() == 2) return with(part(0), part(1));
    if (all.size() == 3) return with(part(0), part(1), part(2));
    runtime::raise({errc::bad_argument, "kernel " + kernel + ": at most three outputs can be compared"});
  };
  switch (all.front().of) {
    case element::f32: return made(0.0F);
    case element::f64: return made(0.0);
    case element::f16: return made(runtime::f16{});
    case element::bf16: return made(runtime::bf16{});
    case element::i8: return made(std::int8_t{});
    case element::i16: return made(std::int16_t{});
    case element::i32: return made(std::int32_t{});
    case element::i64: return made(std::int64_t{});
    case element::u8: return made(std::uint8_t{});
    case element::u16: return made(std::uint16_t{});
    case element::u32: return made(std::uint32_t{});
    default: return made(std::uint64_t{});
  }
}

/// The arguments of a call of Python. The caller keeps them.
struct words {
  PyObject* args;
  PyObject* named;  // null: none
};
words words_of(const nb::args& args, const nb::kwargs& named) {
  return {args.ptr(), named.size() == 0 ? nullptr : named.ptr()};
}

class kernel {
 public:
  using op = ops::tunable_op<void(words)>;
  kernel(rank_ptr where, std::string name, nb::dict implementations, nb::object key, nb::object outputs, bool updates,
         const std::string& device)
      : where_(std::move(where)), memory_(*where_, device, name), name_(std::move(name)), key_(std::move(key)),
        outputs_(std::move(outputs)) {
    const hold held = where_->check();
    op::options o;
    o.name = name_;
    if (memory_.is_gpu()) {
      auto& copies = where_->gpu->copies();
      gpu_ = std::make_unique<ops::cuda_kernels>(where_->loop, copies.driver(), copies.device());
      o.device = gpu_.get();
    }
    for (const auto& [id, f] : implementations) {
      const std::string its = plain_text(id);
      if (PyCallable_Check(f.ptr()) == 0)
        runtime::raise({errc::bad_argument, "kernel " + name_ + ": the implementation " + its + " is no function"});
      o.implementations.push_back({its, [this, i = functions_.size()](words w) { run_one(functions_[i], w); }});
      functions_.push_back(nb::borrow(f));
    }
    if (!key_.is_none()) {
      o.key = [this](words w) {
        return tuning::kernel_key{{"key", texts_.number_of(text_of(called(key_, w), name_), name_)}};
      };
      o.key_texts = [this](const tuning::kernel_key& k) {
        return std::vector<std::string>{texts_.texts.at(k.begin()->number)};
      };
    }
    if (!outputs_.is_none()) {
      o.outputs = [this, updates](words w) {
        written_ = written_by(w);
        // A copy is another one each time, and no implementation writes to it.
        const std::vector<buffer> again = written_by(w);
        const auto same = [](const buffer& one, const buffer& other) { return one.bytes.data() == other.bytes.data(); };
        if (!std::equal(written_.begin(), written_.end(), again.begin(), again.end(), same))
          runtime::raise({errc::bad_argument,
                          "kernel " + name_ + ": `outputs` returns copies; return the arrays that the kernel writes"});
        return outputs_of(written_, updates, name_);
      };
    }
    op_ = std::make_unique<op>(where_->self->kernels(), std::move(o));
  }
  kernel(const kernel&) = delete;
  kernel& operator=(const kernel&) = delete;

  void run(words w) {
    const hold held = where_->check();
    if (gpu_ != nullptr) gpu_->use(current_stream(gpu_->device()));
    (*op_)(w);
    written_.clear();
    if (const auto thrown = std::exchange(interrupted_, nullptr)) std::rethrow_exception(thrown);
  }
  std::string runs(nb::args args, nb::kwargs named) {
    const words w = words_of(args, named);
    const hold held = where_->check();
    return op_->id_of(op_->decision(w));
  }
  std::string why(nb::args args, nb::kwargs named) {
    const words w = words_of(args, named);
    const hold held = where_->check();
    return op_->decision(w).why;
  }
  std::vector<nb::object*> objects() {
    std::vector<nb::object*> all{&key_, &outputs_};
    for (nb::object& each : functions_) all.push_back(&each);
    return all;
  }

 private:
  /// Ctrl-C in a candidate is no fault of that candidate.
  void run_one(const nb::object& function, words w) {
    try {
      called(function, w);
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_Exception)) interrupted_ = std::current_exception();
      throw;
    }
  }
  nb::object called(const nb::object& function, words w) const {
    if (!function.is_valid())
      runtime::raise({errc::closed, "kernel " + name_ + ": Python's garbage collector has freed its functions"});
    PyObject* const made = PyObject_Call(function.ptr(), w.args, w.named);
    if (made == nullptr) throw nb::python_error();
    return nb::steal(made);
  }
  std::vector<buffer> written_by(words w) const {
    const nb::object given = called(outputs_, w);
    std::vector<buffer> all;
    if (nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given)) {
      for (nb::handle each : given) all.push_back(any_memory_of(each, access::writes, "outputs"));
    } else {
      all.push_back(any_memory_of(given, access::writes, "outputs"));
    }
    for (const buffer& each : all) {
      memory_.check(each, "outputs");
      if (memory_.is_gpu() && !each.is_on_gpu)
        runtime::raise(
            {errc::bad_argument, "kernel " + name_ + ": its outputs lie in host memory, and it runs on a GPU"});
    }
    return all;
  }
  rank_ptr where_;
  op_memory memory_;  // of its outputs
  std::unique_ptr<ops::cuda_kernels> gpu_{};
  std::string name_;
  std::vector<buffer> written_{};  // while they are compared
  std::exception_ptr interrupted_{};
  nb::object key_, outputs_;
  std::vector<nb::object> functions_;
  key_texts texts_;
  std::unique_ptr<op> op_;
};

/// The settings of a rank's kernels, by the names of torch.cuda.tunable.
struct tunables {
  rank_ptr where;
  tunable_context& context() const {
    const hold held = where->check();
    return where->self->kernels();
  }
};

nb::list results_of(const tuning::results_file& all) {
  nb::list made;
  for (const tuning::result_entry& e : all.entries())
    made.append(nb::make_tuple(e.op, e.parameters, e.solution, e.time_ms));
  return made;
}

nb::dict tune_file(const tunables& t, const std::string& name) {
  const auto report = ops::tune_in_file(t.context(), name);
  const ops::offline_report& all = report.value();
  nb::dict made;
  made["tuned"] = all.tuned;
  made["known"] = all.known;
  made["left_out"] = all.left_out;
  return made;
}

}  // namespace

void add_kernels(nb::module_& m) {
  nb::class_<kernel>(
      m, "Kernel", nb::type_slots(collected<kernel>::slots),
      "A kernel with several implementations (parley/tunable_op.hpp). The first call with a new key finds the fastest.")
      .def(nb::init<rank_ptr, std::string, nb::dict, nb::object, nb::object, bool, const std::string&>(),
           nb::arg("rank"), nb::arg("name"), nb::arg("implementations"), nb::arg("key") = nb::none(),
           nb::arg("outputs") = nb::none(), nb::arg("updates") = false, nb::arg("device") = "cpu",
           nb::sig("def __init__(self, rank: Rank, name: str, implementations: dict[str, collections.abc.Callable[..., "
                   "object]], "
                   "key: collections.abc.Callable[..., dict[str, object] | str] | None = None, "
                   "outputs: collections.abc.Callable[..., object] | None = None, updates: bool = False, device: str = "
                   "'cpu') -> None"),
           "The first implementation is the default. `key` says what the speed depends on. `outputs` returns the "
           "arrays that are written, for the "
           "numerical check; `updates`: they are also read. `device`: `cuda` for implementations that launch work into "
           "the current stream of torch or CuPy; the GPU times the trials.")
      .def(
          "__call__", [](kernel& k, nb::args args, nb::kwargs named) { k.run(words_of(args, named)); },
          nb::sig("def __call__(self, *args: typing.Any, **named: typing.Any) -> None"))
      .def("runs", &kernel::runs, nb::sig("def runs(self, *args: typing.Any, **named: typing.Any) -> str"),
           "The implementation that such a call runs while tunable operations are enabled.")
      .def("why", &kernel::why, nb::sig("def why(self, *args: typing.Any, **named: typing.Any) -> str"),
           "Why that one.");

  nb::class_<tunables>(m, "Tunables", "The settings of a rank's kernels (parley/tunable_context.hpp).")
      .def(
          "enable", [](const tunables& t, bool on) { t.context().enable_tunable_op(on); }, nb::arg("val") = true)
      .def("is_enabled", [](const tunables& t) { return t.context().is_tunable_op_enabled(); })
      .def(
          "tuning_enable", [](const tunables& t, bool on) { t.context().enable_tuning(on); }, nb::arg("val") = true)
      .def("tuning_is_enabled", [](const tunables& t) { return t.context().is_tuning_enabled(); })
      .def(
          "record_untuned_enable", [](const tunables& t, bool on) { t.context().enable_record_untuned(on); },
          nb::arg("val") = true)
      .def("record_untuned_is_enabled", [](const tunables& t) { return t.context().is_record_untuned_enabled(); })
      .def(
          "set_max_tuning_duration",
          [](const tunables& t, std::uint32_t ms) { t.context().set_max_tuning_duration_ms(ms); }, nb::arg("duration"))
      .def("get_max_tuning_duration", [](const tunables& t) { return t.context().get_max_tuning_duration_ms(); })
      .def(
          "set_max_tuning_iterations",
          [](const tunables& t, std::uint32_t n) { t.context().set_max_tuning_iterations(n); }, nb::arg("iterations"))
      .def("get_max_tuning_iterations", [](const tunables& t) { return t.context().get_max_tuning_iterations(); })
      .def(
          "set_filename",
          [](const tunables& t, std::string name, bool ordinal) { t.context().set_filename(std::move(name), ordinal); },
          nb::arg("filename"), nb::arg("insert_device_ordinal") = false)
      .def("get_filename", [](const tunables& t) { return t.context().get_filename(); })
      .def(
          "get_results", [](const tunables& t) { return results_of(t.context().get_tuning_results()); },
          nb::sig("def get_results(self) -> list[tuple[str, str, str, float]]"),
          "Tuples of kernel, key, implementation and milliseconds.")
      .def(
          "get_validators",
          [](const tunables& t) {
            nb::list all;
            for (const tuning::validator& v : t.context().get_tuning_results_validator())
              all.append(nb::make_tuple(v.name, v.value));
            return all;
          },
          nb::sig("def get_validators(self) -> list[tuple[str, str]]"))
      .def(
          "write_file_on_exit", [](const tunables& t, bool on) { t.context().write_file_on_exit(on); }, nb::arg("val"))
      .def(
          "write_file", [](const tunables& t, const std::string& name) { return t.context().write_file(name).value(); },
          nb::arg("filename") = "")
      .def(
          "read_file", [](const tunables& t, const std::string& name) { t.context().read_file(name).value(); },
          nb::arg("filename") = "")
      .def(
          "set_rotating_buffer_size",
          [](const tunables& t, std::uint64_t mib) {
            constexpr std::uint64_t most_mib = 1U << 20U;
            if (mib > most_mib)
              runtime::raise({errc::bad_argument, "buffer_size: " + std::to_string(mib) + " MiB; at most " +
                                                      std::to_string(most_mib) +
                                                      " are possible, and a few caches' sizes suffice"});
            t.context().set_rotating_buffer_size(mib << 20U);
          },
          nb::arg("buffer_size"))
      .def("get_rotating_buffer_size", [](const tunables& t) { return t.context().get_rotating_buffer_size() >> 20U; })
      .def(
          "set_numerical_check_tolerances",
          [](const tunables& t, bool enable, double atol, double rtol) {
            tuning::numerical_check c = t.context().settings().check;
            c.on = enable, c.atol = atol, c.rtol = rtol;
            t.context().enable_numerics_check(c);
          },
          nb::arg("enable"), nb::arg("atol") = 1e-5, nb::arg("rtol") = 1e-5)
      .def(
          "enable_family",
          [](const tunables& t, const std::string& family, bool on) { t.context().enable_family(family, on); },
          nb::arg("family"), nb::arg("val") = true)
      .def("tune_gemm_in_file", &tune_file, nb::arg("filename"),
           nb::sig("def tune_gemm_in_file(self, filename: str) -> dict[str, typing.Any]"),
           "Tunes the multiplications that a file lists (parley/offline_tuning.hpp).");
  m.def("tunables", [](rank_ptr rank) { return tunables{std::move(rank)}; }, nb::arg("rank"));
}

}  // namespace parley::python
