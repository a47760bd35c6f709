#include "cuda.hpp"

#include "flow_calls.hpp"

#include <dlfcn.h>
#include <parley/cuda_space.hpp>
#ifdef PARLEY_PYTHON_CUDA
#include <parley/cuda_runtime.hpp>
#include <parley/nccl_runtime.hpp>
#endif

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace parley::python {

using runtime::errc;
using transports::cuda_driver;

namespace {

#ifdef PARLEY_PYTHON_CUDA
constexpr bool has_cuda = true;
runtime::result<cuda_driver*> driver() { return transports::cuda_runtime(); }
runtime::result<transports::nccl_library*> nccl() { return transports::nccl_runtime(); }
#else
constexpr bool has_cuda = false;
runtime::error not_built() {
  return {errc::unavailable, "this package was built without the CUDA toolkit, so it has no planes for GPUs"};
}
runtime::result<cuda_driver*> driver() { return not_built(); }
runtime::result<transports::nccl_library*> nccl() { return not_built(); }
#endif

/// CUDA's own knowledge of an allocation. The functions of libcuda, which CUDA's runtime has loaded.
struct allocation_facts {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::uint64_t id = 0;
};
std::optional<allocation_facts> allocation_of(const void* address) {
  using range_function = int (*)(unsigned long long*, std::size_t*, unsigned long long);
  using attribute_function = int (*)(void*, int, unsigned long long);
  constexpr int buffer_id = 7;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  static const auto range = reinterpret_cast<range_function>(::dlsym(library, "cuMemGetAddressRange_v2"));
  static const auto attribute = reinterpret_cast<attribute_function>(::dlsym(library, "cuPointerGetAttribute"));
  if (range == nullptr || attribute == nullptr) return {};
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  unsigned long long begin = 0;
  unsigned long long id = 0;
  allocation_facts found;
  if (range(&begin, &found.bytes, at) != 0 || attribute(&id, buffer_id, at) != 0) return {};
  found.begin = begin;
  found.id = id;
  return found;
}

/// True if this process has used a GPU already. Loads nothing.
bool has_context() {
  using count_function = int (*)(int*);
  using state_function = int (*)(int, unsigned*, int*);
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto count = reinterpret_cast<count_function>(::dlsym(library, "cuDeviceGetCount"));
  const auto state = reinterpret_cast<state_function>(::dlsym(library, "cuDevicePrimaryCtxGetState"));
  int devices = 0;
  if (count == nullptr || state == nullptr || count(&devices) != 0) return false;
  for (int d = 0; d < devices; ++d) {
    unsigned flags = 0;
    int active = 0;
    if (state(d, &flags, &active) == 0 && active != 0) return true;
  }
  return false;
}

std::string why_no_gpu() {
  const auto found = driver();
  return found ? std::string() : found.reason().text();
}
int device_count() {
  const auto found = driver();
  return found ? static_cast<int>((*found)->devices().size()) : 0;
}

}  // namespace

void choose_gpu(ops::job_options& o, const std::string& device) {
  if (device == "cpu") return;
  std::string_view number = device;
  const bool is_cuda = number.starts_with("cuda");
  if (is_cuda) number.remove_prefix(4);
  int index = 0;
  const bool is_numbered = number.starts_with(':');
  if (is_numbered) number.remove_prefix(1);
  const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), index);
  const bool is_whole = is_numbered ? failed == std::errc() && end == number.data() + number.size() : number.empty();
  if (!is_cuda || !is_whole)
    runtime::raise({errc::bad_argument, "device=\"" + device + "\": a device is cpu, cuda, or cuda:1 and the like"});
  o.gpu = driver().value();
  const int count = device_count();
  if (is_numbered && (index < 0 || index >= count))
    runtime::raise({errc::bad_argument, "device=\"" + device + "\": this process sees " + std::to_string(count) +
                                            (count == 1 ? " GPU" : " GPUs")});
  if (is_numbered) o.device = index;
  if (const auto found = nccl()) {
    o.planes.nccl = *found;
  } else {
    o.planes.no_nccl = found.reason().text();
  }
}

runtime::device_stream stream_of(nb::handle stream) {
  if (stream.is_none()) return nullptr;
  nb::object number = nb::borrow(stream);
  if (nb::hasattr(stream, "cuda_stream")) {
    number = stream.attr("cuda_stream");
  } else if (nb::hasattr(stream, "__cuda_stream__")) {
    number = stream.attr("__cuda_stream__")()[1];
  } else if (nb::hasattr(stream, "ptr")) {
    number = stream.attr("ptr");
  }
  std::uintptr_t handle = 0;
  if (!nb::try_cast(number, handle))
    runtime::raise({errc::bad_argument,
                    "`stream` is a stream of torch or CuPy, an object with `__cuda_stream__`, or the number of one"});
  constexpr std::uintptr_t legacy_default = 1;  // cudaStreamLegacy: for parley, null is no stream
  return reinterpret_cast<runtime::device_stream>(handle == 0 ? legacy_default : handle);
}

transports::cuda_stream current_stream(int device) {
  const nb::object found = nb::module_::import_("parley.cuda").attr("current_stream")(device);
  return reinterpret_cast<transports::cuda_stream>(nb::cast<std::uintptr_t>(found));
}

const std::shared_ptr<runtime::dataflow>& rank_gpu::flow_of_streams(const rank_home& where) {
  // A flow remembers which buffers have failed, and the program may have filled them since.
  if (flow_ == nullptr || flow_->running() == 0) flow_ = flow_of(where);
  return flow_;
}

void rank_gpu::note(use u) {
  std::erase_if(uses_, [](const use& each) { return *each.over; });
  uses_.push_back(std::move(u));
}

rank_gpu::~rank_gpu() {
  if (stream_ != nullptr) copies().driver().destroy(stream_);
}

void rank_gpu::after_producer(const buffer& b, runtime::device_stream stream) {
  if (!b.producer.is_valid()) return;
  if (stream == nullptr)
    stream = stream_of(nb::module_::import_("parley.cuda").attr("stream_of_tensor")(b.producer, copies().device()));
  if (stream == nullptr && nb::hasattr(b.producer, "__dlpack__")) {
    // The producer makes this stream wait for its own.
    if (stream_ == nullptr) stream_ = copies().driver().make_stream(copies().device());
    stream = stream_;
    b.producer.attr("__dlpack__")(nb::arg("stream") = reinterpret_cast<std::uintptr_t>(stream));
  } else if (stream == nullptr) {
    const nb::dict facts = nb::cast<nb::dict>(b.producer.attr("__cuda_array_interface__"));
    if (!facts.contains("stream") || facts["stream"].is_none()) return;  // it says that nothing is under way
    stream = stream_of(facts["stream"]);
  }
  space().after(b.bytes, stream);
}

op_memory::op_memory(rank_home& rank, const std::string& device, const std::string& op)
    : home_(&rank), gpu_(rank.gpu.get()) {
  if (device != "cpu" && device != "cuda")
    runtime::raise({errc::bad_argument, "op " + op + ": its device is cpu or cuda, and not \"" + device +
                                            "\"; `parley.join(device=…)` chooses among GPUs"});
  if (device == "cpu") gpu_ = nullptr;
  if (device == "cuda" && gpu_ == nullptr)
    runtime::raise(
        {errc::bad_argument,
         "op " + op + ": its buffers are to lie on a GPU, and this rank has none; join with device=\"cuda\""});
}

void op_memory::until_sent(const ops::p2p_operation& o) const {
  const bool sends = o.what == ops::p2p_operation::kind::send;
  const auto hinders = [&](const rank_gpu::use& u) {
    return u.in_flow ? u.sends && u.stream_waits != home_->stream_waits : !(u.sends && sends);
  };
  const auto is_free = [&] { return !gpu_->any_use(o.bytes, hinders); };
  if (!is_free() && !home_->wait_until(is_free, 0)) throw nb::python_error();
}

void op_memory::after_producer(const buffer& b, runtime::device_stream stream) const {
  if (gpu_ == nullptr) return;
  const auto is_free = [&] { return !gpu_->any_use(b.bytes, [](const rank_gpu::use&) { return true; }); };
  if (!is_free() && !home_->wait_until(is_free, 0)) throw nb::python_error();
  gpu_->after_producer(b, stream);
}

op_memory::~op_memory() {
  if (registered_.empty()) return;
  const hold held(*home_);
  registered_.clear();
}

runtime::memory_space* op_memory::space() const noexcept { return gpu_ == nullptr ? nullptr : &gpu_->space(); }

void op_memory::check(const buffer& b, const char* what) const {
  if (gpu_ == nullptr && b.is_on_gpu)
    runtime::raise({errc::bad_argument, std::string(what) +
                                            ": it lies on a GPU, and this operation is for host memory; make the "
                                            "operation with device=\"cuda\", or copy the data to the host"});
  if (gpu_ == nullptr || !b.is_on_gpu || b.device == buffer::unknown_device || b.device == gpu_->copies().device())
    return;
  runtime::raise({errc::bad_argument, std::string(what) + ": it lies on cuda:" + std::to_string(b.device) +
                                          ", and this rank's GPU is cuda:" + std::to_string(gpu_->copies().device())});
}

void op_memory::let_peers_in(const buffer& b, const registration& registers) {
  if (gpu_ == nullptr || !b.is_on_gpu || b.bytes.empty()) return;
  const auto found = allocation_of(b.bytes.data());
  if (!found) return;
  const auto known = registered_.find(found->begin);
  if (known != registered_.end() && known->second.id == found->id) return;
  std::erase_if(registered_, [](const auto& each) {
    const auto now = allocation_of(reinterpret_cast<const void*>(each.first));
    return !now || now->id != each.second.id;
  });
  actors::registered_memory made;
  try {
    made = registers({reinterpret_cast<std::byte*>(found->begin), found->bytes});
  } catch (const runtime::failure& f) {
    if (f.code() != errc::unavailable) throw;
  }
  registered_.insert_or_assign(found->begin, allocation{found->id, std::move(made)});
}

void ask_for_queues() {
  if (std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr || has_context()) return;
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

void check_queues(const rank_gpu& gpu) {
  constexpr unsigned enough = 16;  // parley's own streams, and some of the program's
  const unsigned queues = gpu.copies().driver().queues();
  if (queues >= enough) return;
  runtime::raise({errc::unavailable,
                  "this process has " + std::to_string(queues) +
                      " queues of its GPU, and a stream that waits for a message could hold up the one that brings it; "
                      "import parley before the first use of CUDA, or set CUDA_DEVICE_MAX_CONNECTIONS=32"});
}

void add_cuda(nb::module_& m) {
  ask_for_queues();
  m.attr("has_cuda") = has_cuda;
  m.def("why_no_gpu", &why_no_gpu, "Why this process can use no GPU; empty: it can.");
  m.def("gpu_count", &device_count, "How many GPUs this process sees.");
}

}  // namespace parley::python
