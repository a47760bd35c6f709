#include <parley/ops/kernels/blas_libraries.hpp>

#include <parley/error.hpp>

#include <dlfcn.h>
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <thread>

namespace parley::ops {

namespace {

/// Opens the first of these libraries that is there. Libraries that were opened are never closed.
void* open_first(std::initializer_list<const char*> names) {
  for (const char* const each : names) {
    if (void* const found = ::dlopen(each, RTLD_NOW | RTLD_LOCAL); found != nullptr) return found;
  }
  return nullptr;
}

/// Sets a variable that a library reads while it is loaded, unless the user has set it, or `other`, which means the same.
class variable_while_loading {
 public:
  variable_while_loading(const char* name, const char* value, const char* other = nullptr)
      : name_(std::getenv(name) == nullptr && (other == nullptr || std::getenv(other) == nullptr) ? name : nullptr) {
    if (name_ != nullptr) ::setenv(name_, value, 1);
  }
  variable_while_loading(const variable_while_loading&) = delete;
  variable_while_loading& operator=(const variable_while_loading&) = delete;
  ~variable_while_loading() {
    if (name_ != nullptr) ::unsetenv(name_);
  }

 private:
  const char* name_;
};

/// The threads of OpenBLAS and of OpenMP wait for their next call in a loop, for 100 ms and 8 ms. Meanwhile they keep a processor from other
/// threads, and a call of another library takes up to 300 times as long. Half a millisecond bridges the calls of one library. This has no
/// effect on a library that the program has loaded itself.
constexpr const char* half_a_millisecond_of_openblas = "20";   // 2^20 cycles
constexpr const char* half_a_millisecond_of_openmp = "20000";  // turns of the loop

void* open_openblas() {
  const variable_while_loading patience("OPENBLAS_THREAD_TIMEOUT", half_a_millisecond_of_openblas);
  return open_first({"libopenblas.so.0", "libopenblas.so"});
}

/// The OpenMP that oneDNN uses, and some builds of the other libraries.
void* open_openmp() {
  const variable_while_loading patience("GOMP_SPINCOUNT", half_a_millisecond_of_openmp, "OMP_WAIT_POLICY");
  return open_first({"libgomp.so.1"});
}

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

/// OpenBLAS or BLIS, by the C interface of BLAS.
class library_with_cblas final : public blas_library {
 public:
  template <class T>
  using multiply_function = void(int order, int trans_a, int trans_b, int m, int n, int k, T alpha, const T* a, int lda,
                                 const T* b, int ldb, T beta, T* c, int ldc);
  using set_int_function = void(int);
  using set_long_function = void(std::int64_t);

  library_with_cblas(std::string name, void* library) : name_(std::move(name)) {
    static_cast<void>(find(library, "cblas_sgemm", floats_));
    static_cast<void>(find(library, "cblas_dgemm", doubles_));
    const bool is_openblas = find(library, "openblas_set_num_threads", set_threads_);
    if (is_openblas) {
      static_cast<void>(find(library, "openblas_get_num_threads", threads_));
    } else {
      static_cast<void>(find(library, "bli_thread_set_num_threads", set_threads_of_blis_));
      static_cast<void>(find(library, "bli_thread_get_num_threads", threads_of_blis_));
    }
  }
  bool is_complete() const noexcept {
    return floats_ != nullptr && doubles_ != nullptr && (set_threads_ != nullptr || set_threads_of_blis_ != nullptr);
  }
  const std::string& name() const noexcept override { return name_; }
  bool has_doubles() const noexcept override { return true; }
  void multiply(const blas_call<float>& call, unsigned threads) override { run(*floats_, call, threads); }
  void multiply(const blas_call<double>& call, unsigned threads) override { run(*doubles_, call, threads); }

 private:
  template <class T>
  void run(multiply_function<T>& function, const blas_call<T>& c, unsigned threads) {
    const std::int64_t before = use(threads);
    constexpr int by_columns = 102, as_it_is = 111, transposed = 112;
    function(by_columns, c.trans_a ? transposed : as_it_is, c.trans_b ? transposed : as_it_is, c.m, c.n, c.k, c.alpha,
             c.a, c.lda, c.b, c.ldb, c.beta, c.c, c.ldc);
    if (before > 0) static_cast<void>(use(before));
  }
  // The number of threads belongs to the whole process, and the program may have set its own. Returns the number before.
  std::int64_t use(std::int64_t threads) {
    std::int64_t before = threads;
    if (set_threads_ != nullptr) {
      if (threads_ != nullptr) before = threads_();
      if (before != threads || threads_ == nullptr) set_threads_(static_cast<int>(threads));
    } else {
      if (threads_of_blis_ != nullptr) before = threads_of_blis_();
      if (before != threads || threads_of_blis_ == nullptr) set_threads_of_blis_(threads);
    }
    return before;
  }

  std::string name_;
  multiply_function<float>* floats_ = nullptr;
  multiply_function<double>* doubles_ = nullptr;
  set_int_function* set_threads_ = nullptr;
  set_long_function* set_threads_of_blis_ = nullptr;
  int (*threads_)() = nullptr;
  std::int64_t (*threads_of_blis_)() = nullptr;
};

/// oneDNN, which has a BLAS function for `float`, in row-major order.
class onednn final : public blas_library {
 public:
  using multiply_function = int(char trans_a, char trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                                const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                                float* c, std::int64_t ldc);
  using set_threads_function = void(int);

  onednn(void* library, void* openmp) {
    static_cast<void>(find(library, "dnnl_sgemm", multiply_));
    static_cast<void>(find(openmp, "omp_set_num_threads", set_threads_));
    static_cast<void>(find(openmp, "omp_get_max_threads", threads_));
  }
  bool is_complete() const noexcept { return multiply_ != nullptr && set_threads_ != nullptr && threads_ != nullptr; }
  const std::string& name() const noexcept override { return name_; }
  bool has_doubles() const noexcept override { return false; }
  void multiply(const blas_call<float>& c, unsigned threads) override {
    const int before = threads_();
    set_threads_(static_cast<int>(threads));  // of the calling thread alone
    const int status = multiply_(c.trans_b ? 'T' : 'N', c.trans_a ? 'T' : 'N', c.n, c.m, c.k, c.alpha, c.b, c.ldb, c.a,
                                 c.lda, c.beta, c.c, c.ldc);
    set_threads_(before);
    if (status != 0) runtime::raise({runtime::errc::config_failed, "oneDNN returned status " + std::to_string(status)});
  }
  void multiply(const blas_call<double>&, unsigned) override {
    runtime::raise({runtime::errc::config_failed, "oneDNN multiplies floats only"});
  }

 private:
  std::string name_ = "onednn";
  multiply_function* multiply_ = nullptr;
  set_threads_function* set_threads_ = nullptr;
  int (*threads_)() = nullptr;
};

template <class Library, class... Args>
void add(std::vector<blas_library*>& all, Args&&... args) {
  auto made = std::make_unique<Library>(std::forward<Args>(args)...);
  if (made->is_complete()) all.push_back(made.release());
}

}  // namespace

const std::vector<blas_library*>& blas_libraries() {
  static const auto* const loaded = [] {
    auto* const all = new std::vector<blas_library*>;
    void* const openmp = open_openmp();  // before the libraries that use it
    add<library_with_cblas>(*all, "openblas", open_openblas());
    add<library_with_cblas>(*all, "blis", open_first({"libblis.so.4", "libblis.so"}));
    add<onednn>(*all, open_first({"libdnnl.so.3", "libdnnl.so.2"}), openmp);
    return all;
  }();
  return *loaded;
}

unsigned usable_processors() {
  cpu_set_t mine;
  if (::sched_getaffinity(0, sizeof mine, &mine) == 0) return static_cast<unsigned>(CPU_COUNT(&mine));
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace parley::ops
