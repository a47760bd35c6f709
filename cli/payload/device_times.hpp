#pragma once
/// Measures, once and in one process, how long the computations of `parley tune` and a copy take on a GPU. Virtual ranks then take these
/// times (`--device cuda --sim`).
///
///     const device_times seen = measure_device(*find_cuda().value(), /*device=*/0, job);
///     runtime::time_ns t = seen.of({.factor = 3}, 1_MiB);              // as long as the kernels of that step took
///
/// The times are medians of several launches by the device's own clock, each in an otherwise empty stream. A time is measured from one
/// event to the next, so the times of the shortest kernels include the cost of events. Throws `unavailable`, or `device_failed` with CUDA's
/// message.
#include <parley/cli/payload/cuda.hpp>
#include <parley/cli/payload/payload_engine.hpp>
#include <parley/cli/spec/spec.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/simulation/world/network.hpp>

#include <boost/json/object.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace parley::cli {

/// Launch the kernels. Both return an empty text, or CUDA's message.
struct payload_launchers {
  std::function<std::string(std::uint64_t number, std::span<std::byte>, int device, transports::cuda_stream)> make =
      launch_make_payload;
  std::function<std::string(std::span<std::byte>, std::uint16_t factor, int device, transports::cuda_stream)> multiply =
      launch_multiply;
};

struct device_times {
  struct kernel {
    enum class name : std::uint8_t { make_payload, multiply } what = name::multiply;
    std::uint64_t bytes = 0;
    runtime::time_ns time_ns = 0;
  };
  int device = 0;
  std::string device_name;
  std::vector<kernel> kernels;   ///< one for each kernel and size that the spec's ops need
  int copied_from = 0;           ///< another device, if there is one
  runtime::time_ns copy_ns = 0;  ///< per copy; each byte adds `copy_ns_per_byte`
  double copy_ns_per_byte = 0;

  /// The time for which a rank computes on a payload of that size; 0 if no kernel was measured for it.
  runtime::time_ns of(const payload_step& step, std::uint64_t bytes) const noexcept;
  /// Links that move payloads as fast as the device copies them.
  simulation::link_model links() const noexcept;
  boost::json::object report() const;
};

device_times measure_device(transports::cuda_driver& gpu, int device, const spec& job,
                            const payload_launchers& with = {});

}  // namespace parley::cli
