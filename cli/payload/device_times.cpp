#include <parley/cli/payload/device_times.hpp>

#include <parley/cli/payload/payload.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <boost/json/array.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace parley::cli {

namespace json = boost::json;
using runtime::errc;
using runtime::time_ns;
using kernel = device_times::kernel;

namespace {

constexpr int repetitions = 20;
constexpr int before_them = 3;  // untimed: they load the kernel and raise the clocks
constexpr std::size_t small_copy_bytes = 4096;
constexpr std::size_t large_copy_bytes = std::size_t{16} << 20U;

/// A stream that measures how long work takes in it.
class stopwatch {
 public:
  stopwatch(transports::cuda_driver& gpu, int device)
      : gpu_(gpu), stream_(gpu.make_stream(device)), began_(gpu.make_timed_event(device)),
        ended_(gpu.make_timed_event(device)) {}
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    gpu_.destroy(began_);
    gpu_.destroy(ended_);
    gpu_.destroy(stream_);
  }
  /// `put_into(stream)` throws if it fails.
  template <class PutInto>
  double median_ns(const PutInto& put_into) {
    std::vector<double> times;
    for (int i = 0; i < before_them + repetitions; ++i) {
      const double once = once_ns(put_into);
      if (i >= before_them) times.push_back(once);
    }
    return tuning::median(std::move(times));
  }

 private:
  template <class PutInto>
  double once_ns(const PutInto& put_into) {
    must(gpu_.record(began_, stream_));
    put_into(stream_);
    must(gpu_.record(ended_, stream_));
    errc seen = errc::pending;
    while (seen == errc::pending) seen = gpu_.query(ended_);
    must(seen);
    return gpu_.elapsed_ns(began_, ended_).value();
  }
  void must(errc e) const {
    if (e != errc::none) runtime::raise({e, gpu_.fault()});
  }
  transports::cuda_driver& gpu_;
  transports::cuda_stream stream_;
  transports::cuda_event began_;
  transports::cuda_event ended_;
};

// Senders of a transfer make their payloads. All stages of a pipeline multiply their input; the first one also makes it.
std::vector<kernel> kernels_of(const spec& job) {
  using name = kernel::name;
  std::vector<kernel> all;
  for (const op_spec& op : job.ops) {
    for (const std::uint64_t bytes : op.sizes) {
      all.push_back({name::make_payload, bytes, 0});
      if (op.kind == op_kind::pipeline) all.push_back({name::multiply, bytes, 0});
    }
  }
  const auto place = [](const kernel& k) { return std::pair(k.what, k.bytes); };
  std::ranges::sort(all, {}, place);
  const auto again = std::ranges::unique(all, {}, place);
  all.erase(again.begin(), again.end());
  return all;
}

// Copies from another device's memory if there is one, because most messages will.
void measure_copies(device_times& into, transports::cuda_driver& gpu, stopwatch& watch) {
  if (gpu.devices().size() > 1) into.copied_from = (into.device + 1) % static_cast<int>(gpu.devices().size());
  const auto from = transports::cuda_memory::on_device(gpu, into.copied_from, large_copy_bytes);
  const auto to = transports::cuda_memory::on_device(gpu, into.device, large_copy_bytes);
  const auto copies = [&](std::size_t bytes) {
    return watch.median_ns([&](transports::cuda_stream s) {
      const errc started = gpu.copy(to.bytes().data(), from.bytes().data(), bytes, s);
      if (started != errc::none) runtime::raise({started, gpu.fault()});
    });
  };
  const double small_ns = copies(small_copy_bytes);
  const double large_ns = copies(large_copy_bytes);
  into.copy_ns_per_byte = std::max(0.0, large_ns - small_ns) / double(large_copy_bytes - small_copy_bytes);
  into.copy_ns = std::llround(std::max(0.0, small_ns - into.copy_ns_per_byte * double(small_copy_bytes)));
}

}  // namespace

device_times measure_device(transports::cuda_driver& gpu, int device, const spec& job, const payload_launchers& with) {
  device_times seen;
  seen.device = seen.copied_from = device;
  seen.device_name = gpu.devices().at(static_cast<std::size_t>(device)).name;
  seen.kernels = kernels_of(job);
  stopwatch watch(gpu, device);
  std::uint64_t largest = 0;
  for (const kernel& k : seen.kernels) largest = std::max(largest, k.bytes);
  const auto memory = transports::cuda_memory::on_device(gpu, device, largest);
  for (kernel& k : seen.kernels) {
    const std::span<std::byte> payload = memory.bytes().first(k.bytes);
    k.time_ns = std::llround(watch.median_ns([&](transports::cuda_stream s) {
      must_launch(k.what == kernel::name::multiply ? with.multiply(payload, factor_of_stage(1), device, s)
                                                   : with.make(0, payload, device, s));
    }));
  }
  measure_copies(seen, gpu, watch);
  return seen;
}

time_ns device_times::of(const payload_step& step, std::uint64_t bytes) const noexcept {
  time_ns all = 0;
  for (const kernel& k : kernels) {
    const bool runs = k.what == kernel::name::multiply ? step.factor != 1 : step.makes;
    if (runs && k.bytes == bytes) all += k.time_ns;
  }
  return all;
}

simulation::link_model device_times::links() const noexcept {
  simulation::link_model made;
  made.ns_per_byte = made.one_sided_ns_per_byte = copy_ns_per_byte;
  made.per_message_ns = copy_ns;
  made.shared_wire = true;
  return made;
}

json::object device_times::report() const {
  json::array measured;
  for (const kernel& k : kernels)
    measured.push_back(json::object{{"kernel", k.what == kernel::name::multiply ? "multiply" : "make_payload"},
                                    {"bytes", k.bytes},
                                    {"time_ns", k.time_ns}});
  return {{"device", device},
          {"name", device_name},
          {"repetitions", repetitions},
          {"kernels", std::move(measured)},
          {"copies", json::object{{"from_device", copied_from}, {"ns", copy_ns}, {"ns_per_byte", copy_ns_per_byte}}}};
}

}  // namespace parley::cli
