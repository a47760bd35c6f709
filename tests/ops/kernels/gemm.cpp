#include <parley/tests/support/matrix_problem.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/gemm.hpp>
#include <parley/ops/kernels/blas_libraries.hpp>
#include <parley/tunable_context.hpp>

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string>
#include <thread>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

tunable_context::options chosen(bool enabled) {
  tunable_context::options o;
  o.mine.enabled = enabled;
  o.mine.rotating_buffer_bytes = 0;
  o.mine.max_tuning_duration_ms = 1;
  o.mine.max_tuning_iterations = 2;
  return o;
}

template <class T>
std::vector<matrix_problem<T>> problems() {
  std::vector<matrix_problem<T>> all;
  for (const matrix_order order : {matrix_order::column_major, matrix_order::row_major})
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) {
        const gemm_call<T> odd{.m = 7, .n = 5, .k = 3, .trans_a = trans_a, .trans_b = trans_b, .order = order};
        all.emplace_back(odd);
        gemm_call<T> with_gaps = odd;
        with_gaps.lda = 11, with_gaps.ldb = 13, with_gaps.ldc = 17, with_gaps.alpha = 2, with_gaps.beta = -1;
        all.emplace_back(with_gaps);
        all.emplace_back(with_gaps).add_bias();
        gemm_call<T> many = odd;
        many.batch = 3, many.beta = 1;
        all.emplace_back(many);
        all.emplace_back(odd).add_bias();
        // Larger than one tile of the built-in kernel in each direction. Sums stay exact in bf16: few of the products are not 0.
        if (!std::is_same_v<T, bf16>)
          all.emplace_back(
              gemm_call<T>{.m = 200, .n = 250, .k = 270, .trans_a = trans_a, .trans_b = trans_b, .order = order});
      }
  all.emplace_back(gemm_call<T>{.m = 1, .n = 1, .k = 1});
  return all;
}

std::string name_of(const kernel_entry& e) { return e.title.substr(0, e.title.find(',')); }

// Every implementation that this machine has, one after the other.
template <class T>
void check_each(const char* type) {
  virtual_time clock;
  std::vector<std::string> ids;
  {
    tunable_context context(clock, nullptr, chosen(false));
    gemm<T> multiply(context);
    ids = multiply.implementations();
  }
  REQUIRE(ids.back() == "blocked");
  for (const std::string& id : ids) {
    tunable_context context(clock, nullptr, chosen(true));
    gemm<T> multiply(context);
    for (matrix_problem<T>& p : problems<T>()) {
      const auto call = p.with_memory();
      tuning::results_file pinned;
      REQUIRE(pinned.add({name_of(multiply.decision(call)), multiply.decision(call).parameters, id, 1}));
      context.remember(pinned);
      const std::vector<T> expected = p.expected();
      multiply(call);
      CHECK(multiply.runs(call) == id);
      check_equal(p.c, expected, std::string(type) + " " + id + " " + multiply.decision(call).title);
    }
  }
}

}  // namespace

TEST_CASE("each implementation multiplies matrices of all layouts, with gaps, batches and a bias") {
  check_each<float>("float");
  check_each<double>("double");
  check_each<bf16>("bf16");
}

TEST_CASE("a multiplication has the names and keys of TunableOp") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(false));
  gemm<float> floats(context);
  gemm<double> doubles(context);
  gemm<bf16> narrow(context);
  const auto line = [](auto& multiply, const auto& call) {
    const kernel_entry& e = multiply.decision(call);
    return name_of(e) + "," + e.parameters;
  };
  CHECK(line(floats, gemm_call<float>{.m = 25088, .n = 4096, .k = 64, .trans_b = true}) ==
        "GemmTunableOp_float_NT,nt_25088_4096_64");
  CHECK(line(floats, gemm_call<float>{.m = 25088, .n = 4096, .k = 64, .trans_b = true, .ldb = 5000}) ==
        "GemmTunableOp_float_NT,nt_25088_4096_64_ld_25088_5000_25088");
  CHECK(line(doubles, gemm_call<double>{.m = 64, .n = 32, .k = 16, .trans_a = true, .batch = 12}) ==
        "GemmStridedBatchedTunableOp_double_TN,tn_64_32_16_B_12");
  const std::vector<bf16> bias(6);
  // As PyTorch does: row-major A B is column-major B A.
  CHECK(
      line(narrow,
           gemm_call<bf16>{.m = 8, .n = 6, .k = 4, .trans_b = true, .bias = bias, .order = matrix_order::row_major}) ==
      "GemmAndBiasTunableOp_BFloat16_TN,tn_6_8_4");
}

TEST_CASE("results that PyTorch wrote are read: with leading dimensions in the key, and with Default") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<float> multiply(context);
  tuning::results_file file;
  REQUIRE(file.add({"GemmTunableOp_float_NN", "nn_7_5_3_ld_7_3_7", "blocked", 0.1}));
  REQUIRE(file.add({"GemmTunableOp_float_NT", "nt_7_5_3", "Default", 0.1}));
  context.remember(file);
  matrix_problem<float> plain(gemm_call<float>{.m = 7, .n = 5, .k = 3});
  matrix_problem<float> transposed(gemm_call<float>{.m = 7, .n = 5, .k = 3, .trans_b = true});
  multiply(plain.with_memory());
  multiply(transposed.with_memory());
  CHECK(multiply.runs(plain.call) == "blocked");
  CHECK(multiply.decision(plain.call).why == "remembered");
  CHECK(multiply.decision(transposed.call).why == "pinned in the results file");
  CHECK(multiply.runs(transposed.call) == multiply.implementations().front());
}

TEST_CASE("a multiplication is tuned at its first call and gives the right numbers then and later, whatever beta is") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<float> multiply(context);
  for (const float beta : {0.0F, 3.0F}) {
    matrix_problem<float> p(gemm_call<float>{.m = 20, .n = 10, .k = 5, .beta = beta, .ldc = 24});
    for (int i = 0; i < 2; ++i) {
      const std::vector<float> expected = p.expected();
      multiply(p.with_memory());
      check_equal(p.c, expected, "beta " + std::to_string(beta));
    }
    CHECK(multiply.decision(p.call).decided);
  }
}

TEST_CASE("a product of nothing scales C and adds the bias, and one without rows or columns does nothing") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<double> multiply(context);
  matrix_problem<double> p(gemm_call<double>{.m = 4, .n = 3, .k = 0, .beta = 2});
  p.add_bias();
  const std::vector<double> expected = p.expected();
  multiply(p.with_memory());
  check_equal(p.c, expected, "k is 0");
  for (const gemm_call<double>& empty :
       {gemm_call<double>{.m = 0, .n = 3, .k = 2}, gemm_call<double>{.m = 3, .n = 0, .k = 2},
        gemm_call<double>{.m = 3, .n = 3, .k = 2, .batch = 0}})
    multiply(empty);
}

TEST_CASE("if beta is 0, C may hold anything, and a sum that has NaN in it is NaN") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(false));
  gemm<float> multiply(context);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  const std::vector<float> expected = p.expected();
  p.c.assign(16, std::numeric_limits<float>::quiet_NaN());
  multiply(p.with_memory());
  check_equal(p.c, expected, "C was NaN");
  p.a[0] = std::numeric_limits<float>::quiet_NaN();
  multiply(p.with_memory());
  CHECK(std::isnan(p.c[0]));
}

TEST_CASE("a multiplication that does not fit its memory is refused, and changes nothing") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<float> multiply(context);
  const auto refused = [&](auto&& change) {
    matrix_problem<float> p(gemm_call<float>{.m = 7, .n = 5, .k = 3, .batch = 2});
    gemm_call<float> call = p.with_memory();
    change(call);
    const std::vector<float> before = p.c;
    try {
      multiply(call);
    } catch (const failure& why) {
      CHECK(why.code() == errc::bad_argument);
      CHECK(p.c == before);
      return std::string(why.reason().text());
    }
    return std::string("nothing was refused");
  };
  CHECK(refused([](auto& c) { c.a = c.a.first(41); }) == "gemm: A has 41 elements, but this multiplication needs 42");
  CHECK(refused([](auto& c) { c.b = {}; }) == "gemm: B has 0 elements, but this multiplication needs 30");
  CHECK(refused([](auto& c) { c.c = c.c.first(1); }) == "gemm: C has 1 elements, but this multiplication needs 70");
  const float one = 1;
  CHECK(refused([&](auto& c) { c.scale_b = &one; }) == "gemm: only numbers of 8 bits have scales");
  CHECK(refused([](auto& c) { c.lda = 6; }) == "gemm: the leading dimension of A is 6, but it must be at least 7");
  CHECK(refused([](auto& c) { c.stride_c = 34; }) == "gemm: the C of one batch overlaps the next one");
  CHECK(refused([](auto& c) { c.bias = c.a.first(3); }) == "gemm: the bias has 3 elements, but it must have 7");
  CHECK(refused([](auto& c) { c.m = std::size_t{1} << 31U; }) ==
        "gemm: sizes and leading dimensions must be less than 2^31");
  CHECK(refused([](auto& c) {
          c.order = matrix_order::row_major;
          c.a = {};
        }) == "gemm: A has 0 elements, but this multiplication needs 42");
  CHECK(refused([](auto& c) { c.stride_a = std::numeric_limits<std::size_t>::max(); }) ==
        "gemm: A would have more elements than there can be");
}

TEST_CASE("memory behind C and between its columns stays, even if numbers are compared") {
  virtual_time clock;
  for (const std::size_t ldc : {std::size_t{8}, std::size_t{11}}) {
    auto o = chosen(true);
    o.mine.check.on = true;
    tunable_context context(clock, nullptr, o);
    gemm<float> multiply(context);
    matrix_problem<float> p(gemm_call<float>{.m = 8, .n = 6, .k = 4, .ldc = ldc});
    std::vector<float> expected = p.expected();
    expected.resize(expected.size() + 16, 7.0F);
    p.c.resize(p.c.size() + 16, 7.0F);
    multiply(p.with_memory());
    check_equal(p.c, expected, "ldc " + std::to_string(ldc));
    CHECK(context.warnings().empty());
  }
}

TEST_CASE("matrices of a batch may lie side by side, and a product with alpha 0 reads neither A nor B") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(false));
  gemm<float> multiply(context);
  const std::vector<float> ones(100, 1.0F);
  std::vector<float> c(24, 5.0F);
  multiply({.m = 3, .n = 4, .k = 2, .a = ones, .b = ones, .c = c, .ldc = 6, .batch = 2, .stride_c = 3});
  CHECK(c == std::vector<float>(24, 2.0F));
  const std::vector<float> wrong(100, std::numeric_limits<float>::quiet_NaN());
  multiply({.m = 3, .n = 4, .k = 2, .alpha = 0, .a = wrong, .b = ones, .beta = 2, .c = c});
  CHECK(c[0] == 4.0F);
  CHECK(c[12] == 2.0F);
}

TEST_CASE("a library that is switched off is not tried") {
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<float> multiply(context);
  for (blas_library* const each : blas_libraries()) context.enable_family(each->name(), false);
  matrix_problem<float> p(gemm_call<float>{.m = 9, .n = 9, .k = 9});
  multiply(p.with_memory());
  const std::string ran = multiply.runs(p.call);
  CHECK((ran == "blocked" || ran == multiply.implementations().front()));
}

TEST_CASE("a multiplication leaves the program's number of threads as it was") {
  static_cast<void>(blas_libraries());  // so that it is parley that loads them
  void* const openblas = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  void* const openmp = ::dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto set =
      openblas == nullptr ? nullptr : reinterpret_cast<void (*)(int)>(::dlsym(openblas, "openblas_set_num_threads"));
  const auto get =
      openblas == nullptr ? nullptr : reinterpret_cast<int (*)()>(::dlsym(openblas, "openblas_get_num_threads"));
  const auto set_openmp =
      openmp == nullptr ? nullptr : reinterpret_cast<void (*)(int)>(::dlsym(openmp, "omp_set_num_threads"));
  const auto get_openmp =
      openmp == nullptr ? nullptr : reinterpret_cast<int (*)()>(::dlsym(openmp, "omp_get_max_threads"));
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<float> multiply(context);
  const int mine = usable_processors() > 1 ? 2 : 1;
  if (set != nullptr && get != nullptr) set(mine);
  if (set_openmp != nullptr && get_openmp != nullptr) set_openmp(mine);
  matrix_problem<float> p({.m = 24, .n = 17, .k = 33});
  multiply(p.with_memory());  // tries all libraries and numbers of threads
  CHECK((get == nullptr || get() == mine));
  CHECK((get_openmp == nullptr || get_openmp() == mine));
}

TEST_CASE("the threads of the libraries rest soon after a multiplication, and no variable is left behind") {
  const char* const names[] = {"OPENBLAS_THREAD_TIMEOUT", "GOMP_SPINCOUNT"};
  for (const char* const name : names) {
    if (std::getenv(name) != nullptr) return;  // the user's choice
  }
  virtual_time clock;
  tunable_context context(clock, nullptr, chosen(true));
  gemm<float> multiply(context);
  for (const char* const name : names) CHECK(std::getenv(name) == nullptr);
  const auto processor_ms = [] {
    std::timespec spent{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return double(spent.tv_sec) * 1e3 + double(spent.tv_nsec) / 1e6;
  };
  matrix_problem<float> p({.m = 128, .n = 128, .k = 128});
  double least_ms = 1e9;  // of several pauses, because a loaded machine delays the threads
  for (int pause = 0; pause < 5; ++pause) {
    multiply(p.with_memory());
    const double before_ms = processor_ms();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    least_ms = std::min(least_ms, processor_ms() - before_ms);
  }
  CHECK(least_ms < 10);  // OpenBLAS alone would take 50
}
