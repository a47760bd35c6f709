#include <parley/cli/payload/device_planes.hpp>

#include <parley/cuda_link.hpp>
#include <parley/cuda_space.hpp>
#include <parley/transports/in_process/process_world.hpp>
#include <parley/transports/ucx/ucx_worker.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace parley::cli {

using runtime::errc;
using runtime::error;
using runtime::result;
using transports::cuda_copies;
using transports::cuda_memory;

namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::seconds for_one_step{5};
constexpr std::size_t tried_bytes = 10'000;  // too large to travel inside a message, with its header

struct outcome_of_step final : runtime::completion {
  outcome_of_step() noexcept : completion(&on_over) {}
  static void on_over(completion& self, errc how) noexcept { static_cast<outcome_of_step&>(self).how = how; }
  errc how = errc::pending;
};

/// Two ranks of this process, with a buffer on a device each.
class two_ends final : private runtime::link::handler {
 public:
  enum class way : std::uint8_t { cuda_copy, staged };
  two_ends(transports::cuda_driver& gpu, way how)
      : a_(gpu, 0, no_stream_waits), b_(gpu, static_cast<int>(gpu.devices().size()) - 1, no_stream_waits) {
    const bool through_host = how == way::staged;
    world_.emplace(through_host ? std::vector<cuda_copies*>(2, nullptr) : std::vector<cuda_copies*>{&a_, &b_});
    if (!through_host) return;
    over_a_.emplace((*world_)[0], a_);
    over_b_.emplace((*world_)[1], b_);
  }
  ~two_ends() { net(1).listen(runtime::link::channel::data, nullptr); }
  two_ends(const two_ends&) = delete;
  two_ends& operator=(const two_ends&) = delete;

  /// Throws `failure`.
  void exchange() {
    sent_ = cuda_memory::on_device(a_.driver(), a_.device(), tried_bytes);
    received_ = cuda_memory::on_device(b_.driver(), b_.device(), tried_bytes);
    std::vector<std::byte> data(tried_bytes);
    for (std::size_t i = 0; i < tried_bytes; ++i) data[i] = static_cast<std::byte>(i * 31 + i / 256);
    step([&](outcome_of_step& over) { return a_.copy(sent_.bytes(), data, &over); });
    net(1).listen(runtime::link::channel::data, this);
    const std::array<std::byte, 8> header{};
    step([&](outcome_of_step& over) {
      return net(0).send(1, runtime::link::channel::data, header, sent_.bytes(), &over);
    });
    wait_for(fetched_);
    std::vector<std::byte> came(tried_bytes);
    step([&](outcome_of_step& over) { return b_.copy(came, received_.bytes(), &over); });
    if (came != data) runtime::raise({errc::device_failed, "the received message differs from the sent one"});
  }

 private:
  runtime::link& net(runtime::rank_id r) {
    if (over_a_) return r == 0 ? *over_a_ : *over_b_;
    return (*world_)[r];
  }
  void on_arrival(runtime::arrival&& message) noexcept override {
    const errc started = net(1).fetch(std::move(message), received_.bytes(), &fetched_);
    if (started != errc::pending) fetched_.how = started;
  }
  template <class Start>
  void step(const Start& start) {
    outcome_of_step over;
    const errc started = start(over);
    if (started != errc::pending) over.how = started;
    wait_for(over);
  }
  void wait_for(const outcome_of_step& over) {
    for (const auto until = clock::now() + for_one_step; over.how == errc::pending;) {
      world_->poll();
      a_.poll();
      b_.poll();
      if (clock::now() > until) runtime::raise({errc::timeout, "a message did not arrive within 5 s"});
    }
    if (over.how == errc::none) return;
    a_.in_words(over.how).value();
  }

  static constexpr cuda_copies::options no_stream_waits{.expects_messages = false};
  cuda_memory sent_;
  cuda_memory received_;
  cuda_copies a_;
  cuda_copies b_;
  std::optional<transports::process_world> world_;
  std::optional<transports::cuda_link> over_a_;
  std::optional<transports::cuda_link> over_b_;
  outcome_of_step fetched_;
};

result<> tried(transports::cuda_driver& gpu, two_ends::way how) {
  std::unique_ptr<two_ends> ends;
  try {
    ends = std::make_unique<two_ends>(gpu, how);
    ends->exchange();
    return {};
  } catch (const runtime::failure& f) {
    if (f.code() == errc::timeout) static_cast<void>(ends.release());  // its destructor would wait for ever
    return f.reason();
  }
}

}  // namespace

result<> try_cuda_copy(transports::cuda_driver& gpu) { return tried(gpu, two_ends::way::cuda_copy); }
result<> try_staged(transports::cuda_driver& gpu) { return tried(gpu, two_ends::way::staged); }

runtime::result<> ask_ucx(transports::cuda_driver& gpu) {
  try {
    gpu.make_current(0);
    const transports::ucx_worker worker(transports::ucx_reach::one_host, transports::ucx_memory_kinds::host_and_devices,
                                        500'000'000);
    return worker.takes_devices();
  } catch (const runtime::failure& f) {
    return f.reason();
  }
}

const char* what_nccl_takes(std::size_t gpus) noexcept {
  if (gpus == 1)
    return "between processes that each have their own GPU; this machine has one GPU, so its ranks use the other "
           "planes";
  return "between processes that each have their own GPU, by nccl; two ranks cannot share a GPU";
}

}  // namespace parley::cli
