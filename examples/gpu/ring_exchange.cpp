// The two-round ring of ../ring_exchange.cpp on GPUs, one process per GPU: kernels, sends and receives in the order
// of a stream. The host enqueues a step while the GPU works on the previous one; it does not wait for each step.
//
//     parley run -n 2 -- gpu_ring_exchange [-b 8] [-e 64M] [-f 8] [-n 200] [-w 400] [-c 1] [-g 1] [--only put]
//
// Options and columns are those of nccl-tests' sendrecv_perf: -b smallest size in bytes, -e largest, -f factor from
// one size to the next, -n timed steps, -w steps before them, in which the ranks agree on a config, -c 0 to skip the
// comparison of results, -g GPUs per rank, always 1. --only names the one config that is tried in addition to the
// default. Each size prints a line with the time of a step, which has two messages each way and four kernels.
//
// The program compares the results of all steps before the timed ones, and of the last three timed ones. A kernel
// that starts before its message has arrived finds different numbers, those of three steps before.
#include "device.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace parley::literals;
using examples::device_array;
using examples::must;

constexpr float c = 1.000244140625F;

examples::size_sweep options;
std::string only;  // the one config besides the default

// The buffers of one step. There are three sets, so that the host may run two steps ahead of the messages.
struct buffers {
  buffers(parley::transports::cuda_space& space, std::size_t count)
      : t0(space, count), y0(space, count), a(space, count), t1(space, count), y1(space, count), out(space, count) {}
  device_array<float> t0, y0, a, t1, y1, out;
  std::array<parley::flow_work, 3> works{};
};

// Input and expected result of a step. There are four sets, which differ in each element, so that consecutive uses of
// the same buffers see different numbers.
struct numbers {
  numbers(parley::transports::cuda_space& space, std::size_t count) : x0(space, count), right(space, count) {}
  device_array<float> x0, right;
};

enum class compared : std::uint8_t { each_step, none };

class ring {
 public:
  ring(parley::job& here, parley::transports::cuda_space& space, parley::p2p op, std::size_t count)
      : gpu_(*here.gpu()), space_(space), self_(here.self()), count_(count), op_(std::move(op)),
        sets_{buffers(space, count), buffers(space, count), buffers(space, count)},
        numbers_{numbers(space, count), numbers(space, count), numbers(space, count), numbers(space, count)},
        unlike_(space, 1) {
    const parley::rank_id world = self_.world_size();
    next_ = (self_.id() + 1) % world;
    previous_ = (self_.id() + world - 1) % world;
    for (const numbers& n : numbers_) registered_.push_back(op_.registered(n.x0.bytes()));
    for (const buffers& b : sets_) {
      for (const auto* memory : {&b.y0, &b.a, &b.y1}) registered_.push_back(op_.registered(memory->bytes()));
    }
  }

  // Starts the receives one step before they are needed, so that the sender already knows where to write.
  void expect(parley::dataflow& flow, buffers& b) {
    b.works[0] =
        op_.start(flow, {op_.irecv(b.y0.all(), {.from = previous_}), op_.irecv(b.y1.all(), {.from = previous_})},
                  {.stream = stream_, .ahead = true});
  }
  void step(parley::dataflow& flow, std::size_t number) {
    buffers& b = set_of(number);
    const device_array<float>& x0 = numbers_of(number).x0;
    cudaStream_t s = stream_;
    b.works[1] = op_.start(flow, {op_.isend(x0.all(), {.to = next_})}, {.stream = s});
    must(examples::launch_scale(b.t0.data(), x0.data(), 2, 1, count_, s), "kernel");
    space_.wait_on(b.y0.bytes(), s);
    must(examples::launch_add(b.a.data(), b.y0.data(), b.t0.data(), count_, s), "kernel");
    b.works[2] = op_.start(flow, {op_.isend(b.a.all(), {.to = next_})}, {.stream = s});
    must(examples::launch_scale(b.t1.data(), b.a.data(), c, 0, count_, s), "kernel");
    space_.wait_on(b.y1.bytes(), s);
    must(examples::launch_add(b.out.data(), b.y1.data(), b.t1.data(), count_, s), "kernel");
  }
  static parley::task<> steps(parley::dataflow& flow, ring* r, int count, compared how) {
    const std::size_t end = r->begun_ + static_cast<std::size_t>(count);
    if (count > 0) r->expect(flow, r->set_of(r->begun_));
    for (; r->begun_ < end; ++r->begun_) {
      buffers& after = r->set_of(r->begun_ + 1);
      for (const parley::flow_work& w : after.works) {  // from two steps ago
        if (w.size() != 0) co_await w;
      }
      if (r->begun_ + 1 < end) r->expect(flow, after);
      r->step(flow, r->begun_);
      if (how == compared::each_step) r->compare(r->begun_);
    }
    co_await flow.join();
    auto ended = co_await parley::transports::reached(r->gpu_, r->stream_);
    ended.value();
    for (buffers& b : r->sets_) b.works = {};
  }

  parley::task<> begin() {
    const std::array<unsigned, 1> none{};
    co_await space_.copy(unlike_.bytes(), std::as_bytes(std::span(none)));
    for (const buffers& b : sets_) {
      for (const auto* memory : {&b.t0, &b.y0, &b.a, &b.t1, &b.y1, &b.out})
        must(cudaMemsetAsync(memory->data(), 0xff, memory->bytes().size(), stream_), "cudaMemset");  // NaN
    }
    const parley::rank_id world = self_.world_size();
    const parley::rank_id second = (self_.id() + world - 2) % world;
    std::vector<float> values(count_);
    for (std::size_t n = 0; n < numbers_.size(); ++n) {
      for (std::size_t i = 0; i < count_; ++i) values[i] = at_first(n, self_.id(), i);
      co_await space_.copy(numbers_[n].x0.bytes(), std::as_bytes(std::span(values)));
      const auto sum = [n](parley::rank_id left, parley::rank_id here, std::size_t i) {
        return at_first(n, left, i) + (2 * at_first(n, here, i) + 1);
      };
      for (std::size_t i = 0; i < count_; ++i) {
        const float scaled = sum(previous_, self_.id(), i) * c;
        values[i] = sum(second, previous_, i) + scaled;
      }
      co_await space_.copy(numbers_[n].right.bytes(), std::as_bytes(std::span(values)));
    }
  }
  // Number of wrong elements in the steps compared so far and in the last steps, whose results are still in the
  // buffers.
  parley::task<std::size_t> wrong() {
    for (std::size_t back = std::min(begun_, sets_.size()); back > 0; --back) compare(begun_ - back);
    auto ended = co_await parley::transports::reached(gpu_, stream_);
    ended.value();
    std::array<unsigned, 1> count{};
    co_await space_.copy(std::as_writable_bytes(std::span(count)), unlike_.bytes());
    co_return count[0];
  }
  std::string config() const {
    const parley::decision now = op_.to(next_).decision(count_ * sizeof(float));
    return now.decided ? now.config : "(not yet)";
  }

 private:
  // Element i of numbers_[n].x0 on rank r.
  static float at_first(std::size_t n, parley::rank_id r, std::size_t i) {
    return static_cast<float>((17 * r + i + 128 * n) % 512);
  }
  buffers& set_of(std::size_t step) { return sets_[step % sets_.size()]; }
  const numbers& numbers_of(std::size_t step) const { return numbers_[step % numbers_.size()]; }
  void compare(std::size_t step) {
    must(examples::launch_count_unlike(unlike_.data(), set_of(step).out.data(), numbers_of(step).right.data(), count_,
                                       stream_),
         "kernel");
  }
  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  std::size_t count_;
  parley::p2p op_;
  parley::rank_id next_ = 0;
  parley::rank_id previous_ = 0;
  examples::stream stream_;
  std::array<buffers, 3> sets_;
  std::array<numbers, 4> numbers_;
  device_array<unsigned> unlike_;  // number of wrong elements
  std::size_t begun_ = 0;          // number of steps so far
  std::vector<parley::actors::registered_memory> registered_;
};

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  std::vector<parley::config_ptr> configs{parley::configs::direct(), parley::configs::put(), parley::configs::get()};
  if (!only.empty()) std::erase_if(configs, [](const auto& one) { return one->id() != "direct" && one->id() != only; });
  const parley::p2p op(self, {.name = "ring", .configs = std::move(configs), .memory = &space});
  if (self.id() == 0)
    std::printf("#%13s %12s %8s %6s %6s %12s %10s %10s %8s  config\n#%13s %12s %8s %6s %6s %12s %10s %10s\n", "size",
                "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "(B)", "(elements)", "", "", "",
                "(us)", "(GB/s)", "(GB/s)");
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest; bytes *= options.factor) {
    const std::size_t count = std::max<std::size_t>(bytes / sizeof(float), 1);
    ring r(here, space, op, count);
    co_await r.begin();
    const compared how = options.check != 0 ? compared::each_step : compared::none;
    co_await parley::with_dataflow(ring::steps, &r, options.before, how);
    const parley::time_ns began = self.where().precise_now();
    co_await parley::with_dataflow(ring::steps, &r, options.timed, compared::none);
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
