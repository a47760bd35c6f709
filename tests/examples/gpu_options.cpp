// The options of the programs in examples/gpu. The test reads them without a GPU; the programs read them where they are built.
#include <parley/examples/gpu/options.hpp>
#include <parley/tests/support/started.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

using namespace parley::tests;
using examples::option_list;

namespace {

std::string read(const option_list& known, std::initializer_list<const char*> words) {
  return known.read(std::vector<const char*>(words));
}

}  // namespace

TEST_CASE("a sweep accepts the options of nccl-tests, with their units") {
  examples::size_sweep sweep;
  CHECK(read(sweep.options(), {"-b", "8", "-e", "128M", "-f", "2", "-g", "1", "-n", "20", "-w", "5", "-c", "0"}) == "");
  CHECK(sweep.smallest == 8);
  CHECK(sweep.largest == 128 << 20);
  CHECK(sweep.factor == 2);
  CHECK(sweep.timed == 20);
  CHECK(sweep.before == 5);
  CHECK(sweep.wrong(3) == "N/A");
  sweep.check = 1;
  CHECK(sweep.wrong(3) == "3");
  CHECK(read(sweep.options(), {"-e", "2GB"}) == "");
  CHECK(sweep.largest == std::uint64_t{2} << 30U);
}

TEST_CASE("an unknown option, a missing value and an invalid value are errors that name the option") {
  examples::size_sweep sweep;
  std::string only = "nothing";
  bool causal = false;
  std::string dtype;
  option_list known = sweep.options();
  known.text("--only", only).flag("--causal", causal).one_of("--dtype", dtype, {"fp32", "bf16"});
  CHECK(read(known, {"--only", "put", "--causal", "--dtype", "bf16"}) == "");
  CHECK(only == "put");
  CHECK(causal);
  CHECK(read(known, {"--onyl", "put"}) == "there is no option --onyl");
  CHECK(read(known, {"put"}) == "there is no option put");
  CHECK(read(known, {"--causal", "--only"}) == "option --only lacks its TEXT");
  CHECK(read(known, {"-b", "8Q"}) == "option -b cannot be 8Q");
  CHECK(read(known, {"-b", "-8"}) == "option -b cannot be -8");
  CHECK(read(known, {"-g", "2"}) == "option -g cannot be 2");  // a rank has only one GPU
  CHECK(read(known, {"-f", "1"}) == "option -f cannot be 1");
  CHECK(read(known, {"-n", "many"}) == "option -n cannot be many");
  CHECK(read(known, {"--dtype", "fp64"}) == "option --dtype cannot be fp64");
  CHECK(known.usage().find(" [--dtype fp32|bf16]") != std::string::npos);
}

#ifdef PARLEY_GPU_EXAMPLES
TEST_CASE("every program for GPUs ends with status 2 on an unknown option, before it looks for a GPU") {
  const scratch_folder here;
  std::istringstream programs(PARLEY_GPU_EXAMPLES);
  std::size_t tried = 0;
  for (std::string program; programs >> program; ++tried) {
    CAPTURE(program);
    const started ran = start_in(here, "'" + program + "' --no-such-thing");
    CHECK(ran.status == 2);
    CHECK(ran.error.find("there is no option --no-such-thing; there are [") != std::string::npos);
  }
  CHECK(tried >= 7);
}
#endif
