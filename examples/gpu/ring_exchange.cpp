// The two-round ring of ../ring_exchange.cpp on GPUs, a process each: kernels, sends and receives in the order of a stream. The host
// enqueues a step while the GPU works on the one before; no step waits for it.
//
//     parley run -n 2 -- gpu_ring_exchange [-b 8] [-e 64M] [-f 8] [-n 200] [-w 400] [-c 1] [-g 1] [--only put]
//
// Options and columns are those of nccl-tests' sendrecv_perf: -b smallest size in bytes, -e largest, -f factor from one to the next, -n steps
// that are timed, -w steps before them, in which the ranks agree on a config, -c 0 for results that are not compared, -g GPUs of a rank, which has
// one. --only names the only config beside the default. A line for each size: the time of a step, which is two messages each way and four
// kernels.
#include "device.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace parley::literals;
using examples::device_array;
using examples::must;

constexpr float c = 1.000244140625F;

examples::size_sweep options;
std::string only;  // config beside the default

// What one step works on. Three of them, so that the host may be two steps ahead of the messages.
struct buffers {
  buffers(parley::transports::cuda_space& space, std::size_t count)
      : x0(space, count), t0(space, count), y0(space, count), a(space, count), t1(space, count), y1(space, count),
        out(space, count) {}
  device_array<float> x0, t0, y0, a, t1, y1, out;
  std::array<parley::flow_work, 3> works{};
};

class ring {
 public:
  ring(parley::job& here, parley::transports::cuda_space& space, parley::p2p op, std::size_t count)
      : gpu_(*here.gpu()), space_(space), self_(here.self()), count_(count), op_(op),
        sets_{buffers(space, count), buffers(space, count), buffers(space, count)} {
    const parley::rank_id world = self_.world_size();
    next_ = (self_.id() + 1) % world;
    previous_ = (self_.id() + world - 1) % world;
    for (buffers& b : sets_) {
      for (const auto* memory : {&b.x0, &b.y0, &b.a, &b.y1}) registered_.push_back(op_.registered(memory->bytes()));
    }
  }

  // Receives are started a step before they are needed, so that their sender knows where to write.
  void expect(parley::dataflow& flow, buffers& b) {
    b.works[0] =
        op_.start(flow, {op_.irecv(b.y0.all(), {.from = previous_}), op_.irecv(b.y1.all(), {.from = previous_})},
                  {.stream = stream_, .ahead = true});
  }
  void step(parley::dataflow& flow, buffers& b) {
    cudaStream_t s = stream_;
    b.works[1] = op_.start(flow, {op_.isend(b.x0.all(), {.to = next_})}, {.stream = s});
    must(examples::launch_scale(b.t0.data(), b.x0.data(), 2, 1, count_, s), "kernel");
    space_.wait_on(b.y0.bytes(), s);
    must(examples::launch_add(b.a.data(), b.y0.data(), b.t0.data(), count_, s), "kernel");
    b.works[2] = op_.start(flow, {op_.isend(b.a.all(), {.to = next_})}, {.stream = s});
    must(examples::launch_scale(b.t1.data(), b.a.data(), c, 0, count_, s), "kernel");
    space_.wait_on(b.y1.bytes(), s);
    must(examples::launch_add(b.out.data(), b.y1.data(), b.t1.data(), count_, s), "kernel");
  }
  static parley::task<> steps(parley::dataflow& flow, ring* r, int count) {
    auto& sets = r->sets_;
    r->expect(flow, sets[0]);
    for (int i = 0; i < count; ++i) {
      buffers& after = sets[static_cast<std::size_t>(i + 1) % sets.size()];
      for (const parley::flow_work& w : after.works) {  // two steps old
        if (w.size() != 0) co_await w;
      }
      if (i + 1 < count) r->expect(flow, after);
      r->step(flow, sets[static_cast<std::size_t>(i) % sets.size()]);
    }
    co_await flow.join();
    auto ended = co_await parley::transports::reached(r->gpu_, r->stream_);
    ended.value();
    for (buffers& b : sets) b.works = {};
  }

  parley::task<> begin() {
    std::vector<float> x(count_);
    for (std::size_t i = 0; i < count_; ++i) x[i] = at_first(self_.id(), i);
    for (buffers& b : sets_) co_await space_.copy(b.x0.bytes(), std::as_bytes(std::span(x)));
  }
  parley::task<std::size_t> wrong() {
    const parley::rank_id world = self_.world_size();
    const parley::rank_id second = (self_.id() + world - 2) % world;
    std::size_t count = 0;
    std::vector<float> out(count_);
    for (buffers& b : sets_) {
      co_await space_.copy(std::as_writable_bytes(std::span(out)), b.out.bytes());
      for (std::size_t i = 0; i < count_; ++i) {
        const auto sum = [&](parley::rank_id left, parley::rank_id here) {
          return at_first(left, i) + (2 * at_first(here, i) + 1);
        };
        const float scaled = sum(previous_, self_.id()) * c;
        count += out[i] == sum(second, previous_) + scaled ? 0 : 1;
      }
    }
    co_return count;
  }
  std::string config() const {
    const parley::decision now = op_.to(next_).decision(count_ * sizeof(float));
    return now.decided ? now.config : "(not yet)";
  }

 private:
  static float at_first(parley::rank_id r, std::size_t i) { return static_cast<float>((17 * r + i) % 512); }
  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  std::size_t count_;
  parley::p2p op_;
  parley::rank_id next_ = 0;
  parley::rank_id previous_ = 0;
  examples::stream stream_;
  std::array<buffers, 3> sets_;
  std::vector<parley::actors::registered_memory> registered_;
};

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  std::vector<parley::config_ptr> configs{parley::direct(), parley::put(), parley::get()};
  if (!only.empty()) std::erase_if(configs, [](const auto& one) { return one->id() != "direct" && one->id() != only; });
  const parley::p2p op =
      self.declare(parley::point_to_point{.name = "ring", .configs = std::move(configs), .memory = &space});
  if (self.id() == 0)
    std::printf("#%13s %12s %8s %6s %6s %12s %10s %10s %8s  config\n#%13s %12s %8s %6s %6s %12s %10s %10s\n", "size",
                "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "", "",
                "(us)", "(GB/s)", "(GB/s)");
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest; bytes *= options.factor) {
    const std::size_t count = std::max<std::size_t>(bytes / sizeof(float), 1);
    ring r(here, space, op, count);
    co_await r.begin();
    co_await parley::with_dataflow(ring::steps, &r, options.before);
    const parley::time_ns began = self.where().precise_now();
    co_await parley::with_dataflow(ring::steps, &r, options.timed);
    const double step_us = static_cast<double>(self.where().precise_now() - began) / 1e3 / options.timed;
    std::size_t wrong = 0;
    if (options.check != 0) wrong = co_await r.wrong();
    const double moved = 2 * static_cast<double>(count * sizeof(float));
    if (self.id() == 0)
      std::printf("%14zu %12zu %8s %6s %6d %12.2f %10.2f %10.2f %8s  %s\n", count * sizeof(float), count, "float",
                  "sum", -1, step_us, moved / step_us / 1e3, moved / step_us / 1e3, options.wrong(wrong).c_str(),
                  r.config().c_str());
    std::fflush(stdout);
    if (wrong != 0)
      parley::runtime::raise({parley::errc::config_failed, std::to_string(wrong) + " elements are wrong"});
  }
}

}  // namespace

int main(int argc, char** argv) {
  options.options().text("--only", only).take(argc, argv);
  return examples::run_on_gpus(rank_main);
}
