#include <parley/cli/payload/device_times.hpp>
#include <parley/cli/tune_rank.hpp>

#include <parley/tests/cli/command_folder.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace parley;
using namespace parley::cli;
using namespace parley::tests;

namespace {

constexpr std::string_view two_stages = R"json({"name": "two", "ranks": 2, "ops": [
  {"op": "pipeline", "name": "activations", "stages": [0, 1], "dtype": "fp32", "configs": ["direct"],
   "microbatches": [{"bytes": "64KiB", "count": 30}, {"bytes": 1000, "count": 30}]}]})json";

std::uint64_t ticks_of(std::size_t bytes) { return bytes / 1'000; }

// A GPU on which a kernel takes one tick for each thousand bytes of its payload, and multiplying takes twice as many.
payload_launchers on(fake_cuda& gpu) {
  payload_launchers by;
  by.make = [&gpu](std::uint64_t, std::span<std::byte> payload, int, transports::cuda_stream s) {
    gpu.launch(s, ticks_of(payload.size()), {});
    return std::string();
  };
  by.multiply = [&gpu](std::span<std::byte> payload, std::uint16_t, int, transports::cuda_stream s) {
    gpu.launch(s, 2 * ticks_of(payload.size()), {});
    return std::string();
  };
  return by;
}

runtime::time_ns simulated_ns(const spec& job, const device_times* measured) {
  tune_settings s;
  s.trials = false;
  s.housing = rank_housing::simulated;
  runtime::time_ns longest = 0;
  const housed_end end = tune_simulated(job, s, measured, [&](rank_id, boost::json::object&& report) {
    if (report.at("kind").as_string() != "final") return;
    CHECK(report.at("error").as_string() == "");
    longest = std::max(longest, report.at("wall_ns").to_number<runtime::time_ns>());
  });
  CHECK(end.error == "");
  return longest;
}

}  // namespace

TEST_CASE("kernels and copies are timed by the device's clock for each size, and leave nothing on the device") {
  const spec job = parse_spec(two_stages, "two.json", {});
  fake_cuda gpu(2);
  gpu.ticks_per_copy = 7;
  const device_times seen = measure_device(gpu, 0, job, on(gpu));
  const auto takes_us = [&](const payload_step& step, std::uint64_t bytes) { return seen.of(step, bytes) / 1'000; };
  CHECK(takes_us({.makes = true}, 65'536) == 65);
  CHECK(takes_us({.factor = 3}, 65'536) == 130);
  CHECK(takes_us({.makes = true, .factor = 3}, 65'536) == 195);
  CHECK(takes_us({.factor = 3}, 1'000) == 2);
  CHECK(takes_us({.hashes = true}, 1'000) == 0);
  CHECK(seen.copied_from == 1);
  CHECK(seen.copy_ns == 7'000);
  CHECK(seen.copy_ns_per_byte == 0);
  CHECK(gpu.blocks() == 0);
  CHECK(gpu.streams() == 0);
  CHECK(gpu.events() == 0);
}

TEST_CASE("virtual ranks compute and copy for as long as kernels and copies took on the device") {
  const spec job = parse_spec(two_stages, "two.json", {});
  fake_cuda gpu;
  const device_times seen = measure_device(gpu, 0, job, on(gpu));
  // The first stage is the slower one. The second stage still has to process the last microbatch after the first stage has ended.
  constexpr runtime::time_ns first_ns = 30 * (3 * 65'000 + 3 * 1'000);
  constexpr runtime::time_ns least_ns = first_ns + 2 * 1'000;
  const runtime::time_ns with_ns = simulated_ns(job, &seen);
  CHECK(with_ns >= least_ns);
  CHECK(with_ns <= least_ns + 60 * 10'000);
  CHECK(simulated_ns(job, nullptr) < 60 * 10'000);
  device_times slow_copies = seen;
  slow_copies.copy_ns_per_byte = 10;
  const runtime::time_ns copied_ns = simulated_ns(job, &slow_copies);
  CHECK(copied_ns >= 30 * 65'536 * 10);

  const boost::json::object told = seen.report();
  CHECK(told.at("name").as_string() == "fake");
  REQUIRE(told.at("kernels").as_array().size() == 4);
  CHECK(told.at("kernels").at(3).at("kernel").as_string() == "multiply");
  CHECK(told.at("kernels").at(3).at("time_ns").to_number<int>() == 130'000);
}

TEST_CASE("the error names the reason for a refused kernel launch or for a failed allocation on the device") {
  const spec job = parse_spec(two_stages, "two.json", {});
  fake_cuda gpu;
  payload_launchers refused = on(gpu);
  refused.multiply = [](auto&&...) { return std::string("cudaErrorNoKernelImageForDevice: planted"); };
  CHECK_THROWS_WITH(measure_device(gpu, 0, job, refused),
                    doctest::Contains("device_failed: cudaErrorNoKernelImageForDevice: planted"));
  gpu.memory_left = 1'000;
  CHECK_THROWS_WITH(measure_device(gpu, 0, job, on(gpu)), doctest::Contains("cudaErrorMemoryAllocation"));
}

TEST_CASE("`parley tune --device cuda --sim` says where its times come from, or that there is no GPU") {
  const command_folder here;
  here.write("two.json", two_stages);
  const auto ran = here.parley("tune two.json --sim --device cuda --json --microbatches 10");
  const boost::json::object d = ran.document();
  if (const auto gpu = find_cuda(); !gpu) {
    CHECK(ran.status == 1);
    CHECK(std::string(d.at("error").as_string()) == gpu.reason().what());
    return;
  }
  CHECK(ran.status == 0);
  CHECK(d.at("simulated").at("measured_on").at("kernels").as_array().size() == 2);
}
