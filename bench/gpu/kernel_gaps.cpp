// How parley's messages disturb kernels. A chain of equal kernels is enqueued in one stream before the first one
// runs: alone, during searches that tune messages in host memory (control messages and small payloads), and during
// searches on device memory, where the op also makes copies. Measured by the GPU's clock: the time of each kernel
// and the gap between two kernels.
//
//     parley run -n 2 -- gpu_kernel_gaps [--kernels 500] [--rounds 20] [--calls 1000] [--elements 1M]
//
// Each round of each kind tunes a new op with no limit on its cost; its buffers are allocated before the chain
// starts. For each kind, rank 0 prints the calls that it made and the control frames that it sent until the last
// kernel ended, and the median, 99th percentile and maximum of both times. The times are those of a kernel's first
// block.
#include "../../examples/gpu/device.hpp"
#include "../../examples/gpu/stage_kernel.hpp"

#include <parley/bench/measure.hpp>
#include <parley/cuda_link.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using parley::rank_id;
using parley::task;

struct settings {
  std::size_t kernels = 500;  // CUDA can queue about 1,000 launches that have not begun
  std::size_t rounds = 20;
  std::size_t calls = 1'000;
  std::size_t elements = 1 << 20;
} options;

enum kind : std::uint8_t { alone, host_messages, device_messages, kinds };
constexpr std::array<const char*, kinds> names{"alone", "host_messages", "device_messages"};
constexpr std::array<std::size_t, kinds> message_bytes{0, 64, 64 << 10};

struct kernel_times {
  std::uint64_t began = 0;
  std::uint64_t ended = 0;
};

struct seen {
  std::vector<double> kernels_ns;
  std::vector<double> gaps_ns;
  std::uint64_t control_frames = 0;
  std::uint64_t calls = 0;
};

/// Kernels that record when they began and ended.
class chain {
 public:
  chain(parley::transports::cuda_space& space, int device)
      : space_(space), device_(device), out_(space, options.elements), times_(space, options.kernels) {
    launch(0);
  }
  void launch_all() {
    for (std::size_t i = 0; i < options.kernels; ++i) launch(i);
  }
  cudaStream_t stream() const noexcept { return stream_; }
  task<> note(seen& into) {
    std::vector<kernel_times> all(options.kernels);
    co_await space_.copy(std::as_writable_bytes(std::span(all)), times_.bytes());
    for (std::size_t i = 0; i < all.size(); ++i) {
      into.kernels_ns.push_back(static_cast<double>(all[i].ended - all[i].began));
      if (i != 0) into.gaps_ns.push_back(static_cast<double>(all[i].began) - static_cast<double>(all[i - 1].ended));
    }
  }

 private:
  void launch(std::size_t i) {
    examples::stage_step step;
    step.out = out_.data();
    step.count = options.elements;
    step.times = reinterpret_cast<std::uint64_t*>(times_.data() + i);
    examples::must(examples::launch_stage(step, device_, stream_), "launching a kernel");
  }
  parley::transports::cuda_space& space_;
  int device_;
  examples::stream stream_;
  examples::device_array<float> out_;
  examples::device_array<kernel_times> times_;
};

task<> sends(parley::transfer t, rank_id to, std::span<const std::byte> data, std::uint64_t* made) {
  for (std::size_t i = 0; i < options.calls; ++i, ++*made) co_await t.send(data, {.to = to});
}
task<> receives(parley::transfer t, rank_id from, std::span<std::byte> data) {
  for (std::size_t i = 0; i < options.calls; ++i) co_await t.receive(data, {.from = from});
}

/// A new op in both directions, with its buffers.
class exchange {
 public:
  exchange(parley::job& here, parley::transports::cuda_space& space, kind what, std::size_t round)
      : peer_(1 - here.self().id()) {
    const std::size_t bytes = message_bytes[what];
    parley::transfer_options op{.name = std::string(names[what]) + "_" + std::to_string(round),
                                .edges = {{0, 1}, {1, 0}},
                                .configs = {parley::configs::direct(), parley::configs::put(), parley::configs::get(),
                                            parley::configs::put(bytes / 2), parley::configs::get(bytes / 2)}};
    if (what == device_messages) op.memory = &space;
    for (auto& b : on_device_) b = space.make(bytes);
    for (auto& b : in_host_) b.resize(bytes);
    const auto place = [&](std::size_t i) {
      return what == device_messages ? on_device_[i]->bytes() : std::span<std::byte>(in_host_[i]);
    };
    sent_ = place(0);
    received_ = place(1);
    op_ = parley::transfer(here.self(), op);
    known_ = {op_.registered(sent_), op_.registered(received_)};
  }
  task<> calls(std::uint64_t* made) {
    parley::runtime::scope& mine = co_await parley::this_scope;
    parley::runtime::scope both(mine);
    both.spawn(sends(op_, peer_, sent_, made));
    both.spawn(receives(op_, peer_, received_));
    co_await both.join();
  }

 private:
  rank_id peer_;
  std::array<std::unique_ptr<parley::runtime::memory_space::block>, 2> on_device_;
  std::array<std::vector<std::byte>, 2> in_host_;
  std::span<std::byte> sent_;
  std::span<std::byte> received_;
  parley::transfer op_;
  std::array<parley::actors::registered_memory, 2> known_;
};

void tell(const char* name, const seen& of) {
  const auto say = [&](const char* what, std::vector<double> all) {
    std::ranges::sort(all);
    const std::string prefix = std::string(name) + "_" + what;
    parley::bench::report(prefix + "_median", all[all.size() / 2], "ns");
    parley::bench::report(prefix + "_p99", all[all.size() * 99 / 100], "ns");
    parley::bench::report(prefix + "_longest", all.back(), "ns");
  };
  parley::bench::report(std::string(name) + "_calls", static_cast<double>(of.calls), "calls");
  parley::bench::report(std::string(name) + "_control_frames", static_cast<double>(of.control_frames), "frames");
  say("kernel", of.kernels_ns);
  say("gap", of.gaps_ns);
}

// Waits until the last kernel has ended, and adds the control frames and calls of that time.
task<> watch(parley::job& here, chain& kernels, const std::uint64_t* made, seen* into) {
  const auto frames = [&] {
    return here.wire().statistics().sent[static_cast<std::size_t>(parley::runtime::link::channel::control)];
  };
  const std::uint64_t before = frames();
  auto over = co_await parley::transports::reached(*here.gpu(), kernels.stream());
  over.value();
  into->control_frames += frames() - before;
  into->calls += *made;
}

task<> measure(parley::job& here, parley::transports::cuda_space& space) {
  chain kernels(space, here.gpu()->device());
  std::array<seen, kinds> all;
  parley::runtime::scope& mine = co_await parley::this_scope;
  for (std::size_t round = 0; round < options.rounds; ++round) {
    for (std::uint8_t k = 0; k < kinds; ++k) {
      std::optional<exchange> messages;
      if (k != alone) messages.emplace(here, space, static_cast<kind>(k), round);
      std::uint64_t made = 0;
      parley::runtime::scope both(mine);
      if (messages) both.spawn(messages->calls(&made));
      kernels.launch_all();
      both.spawn(watch(here, kernels, &made, &all[k]));
      co_await both.join();
      co_await kernels.note(all[k]);
    }
  }
  if (here.self().id() != 0) co_return;
  for (std::uint8_t k = 0; k < kinds; ++k) tell(names[k], all[k]);
}

}  // namespace

int main(int argc, char** argv) {
  examples::option_list known;
  known.number("--kernels", options.kernels, std::size_t{2}).number("--rounds", options.rounds, std::size_t{1});
  known.number("--calls", options.calls, std::size_t{1}).size("--elements", options.elements, 1);
  known.take(argc, argv);
  parley::job_options with;
  with.settings.plan.budget_fraction = 1e9;
  return examples::run_on_gpus(measure, with);
}
