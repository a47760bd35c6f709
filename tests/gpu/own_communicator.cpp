// A program keeps sums in flight on its own NCCL communicator while parley rehearses and tries NCCL: for transfers, in communicators of two
// ranks, and for sums of all ranks, in communicators from fresh ids. All sums of the program must be right, and its communicator must
// stay as usable as before.
//
//     parley run -n 2 -- gpu_own_communicator [--steps 4000]
//
// Exits with status 1 if a sum is wrong, NCCL reports an error, or parley tried nothing of NCCL meanwhile.
#include <parley/examples/gpu/blocking_nccl.hpp>
#include <parley/examples/gpu/sums.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using examples::device_array;
using parley::task;

int steps = 4000;
constexpr std::size_t count = 64 * 1024;
constexpr std::size_t in_flight = 4;

/// The program's own sums, several of them in flight.
class own_sums {
 public:
  own_sums(parley::rank& self, parley::transports::cuda_space& space)
      : self_(self), space_(space), ones_(space, count) {
    for (std::size_t i = 0; i < in_flight; ++i) slots_.emplace_back(space);
  }
  task<> begin() {
    co_await nccl_.meet(&self_);
    const std::vector<float> ones(count, 1);
    co_await space_.copy(ones_.bytes(), std::as_bytes(std::span(ones)));
  }
  task<> start_one() {
    slot& s = slots_[static_cast<std::size_t>(started_) % in_flight];
    if (s.number) co_await check(s);
    s.number = started_++;
    examples::must(examples::launch_scale(s.x.data(), ones_.data(), factor(self_.id(), *s.number), 0, count, stream_),
                   "kernel");
    nccl_.all_reduce(s.x.all(), stream_);
    s.ended.record(stream_);
  }
  task<> finish() {
    for (slot& s : slots_) {
      if (s.number) co_await check(s);
    }
    nccl_.check_state();
  }
  int started() const noexcept { return started_; }
  std::size_t wrong() const noexcept { return wrong_; }

 private:
  struct slot {
    explicit slot(parley::transports::cuda_space& space) : x(space, count) {}
    device_array<float> x;
    examples::event ended;
    std::optional<int> number;
  };
  static float factor(parley::rank_id r, int number) { return static_cast<float>((r + 1) * (1 + number % 5)); }
  task<> check(slot& s) {
    while (!s.ended.happened()) co_await parley::runtime::yield;
    std::vector<float> seen(count);
    co_await space_.copy(std::as_writable_bytes(std::span(seen)), s.x.bytes());
    float right = 0;
    for (parley::rank_id r = 0; r < self_.world_size(); ++r) right += factor(r, *s.number);
    wrong_ += static_cast<std::size_t>(std::ranges::count_if(seen, [right](float x) { return x != right; }));
    s.number.reset();
  }
  parley::rank& self_;
  parley::transports::cuda_space& space_;
  device_array<float> ones_;
  std::deque<slot> slots_;  // a deque, because its elements never move
  examples::stream stream_;
  examples::blocking_nccl nccl_;
  int started_ = 0;
  std::size_t wrong_ = 0;
};

/// How often a config was timed for the decision, as far as this rank knows.
std::size_t times_tried(const parley::ops::decision& d, std::uint64_t config) {
  std::size_t repetitions = 0;
  for (const auto& e : d.evidence) repetitions += e.status == "measured" && e.digest == config ? e.repetitions : 0;
  return repetitions;
}

/// The result of each config, one line each.
std::string evidence(const parley::ops::decision& d) {
  std::string lines = "\n  " + d.op + ", " + d.key + ": " + (d.decided ? d.config : "undecided") + " (" + d.why + ")";
  for (const auto& e : d.evidence)
    lines += "\n    " + e.config + ": " + e.status + ", " + std::to_string(e.repetitions) + " times" +
             (e.detail.empty() ? "" : ", " + e.detail);
  return lines;
}

task<> one_message(parley::transfer* messages, parley::rank* self, std::span<std::byte> buffer) {
  if (self->id() % 2 == 0) {
    co_await messages->send(buffer, {.to = self->id() + 1});
  } else {
    co_await messages->receive(buffer, {.from = self->id() - 1});
  }
}

task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  own_sums own(self, space);
  co_await own.begin();
  parley::transfer_options pairs{
      .name = "messages", .configs = {parley::configs::direct(), parley::configs::nccl()}, .memory = &space};
  pairs.role = [](parley::rank_id r) { return r % 2 == 0 ? parley::role::sender : parley::role::receiver; };
  parley::transfer messages(self, pairs);
  parley::ops::symmetric_options op = co_await examples::sums_of_all(here, space, "sums");
  op.configs = {parley::configs::nccl_sum(), parley::configs::nccl_graph_sum(), parley::configs::kernel_sum(8)};
  parley::ops::symmetric sums(self, op);
  device_array<float> message(space, count);
  device_array<float> summed(space, count);
  const auto registered = messages.registered(message.bytes());
  for (int i = 0; i < steps; ++i) {
    co_await own.start_one();
    co_await one_message(&messages, &self, message.bytes());
    co_await own.start_one();
    co_await sums.run(summed.bytes());
  }
  co_await own.finish();
  const parley::ops::decision for_messages = messages.decision(message.bytes().size());
  const parley::ops::decision for_sums = sums.decision(summed.bytes().size());
  const std::size_t of_messages = times_tried(for_messages, parley::configs::nccl()->digest());
  const std::size_t of_sums = times_tried(for_sums, parley::configs::nccl_graph_sum()->digest());
  std::printf("rank %u: %d sums of its own, %zu elements wrong; meanwhile parley timed NCCL %zu times for messages, "
              "%zu times for sums\n",
              self.id(), own.started(), own.wrong(), of_messages, of_sums);
  if (own.wrong() != 0) parley::runtime::raise({parley::errc::config_failed, "sums of the program's own are wrong"});
  if (of_messages == 0 || of_sums == 0)
    parley::runtime::raise(
        {parley::errc::config_failed, "NCCL was not timed for both meanwhile; are more --steps needed?" +
                                          evidence(for_messages) + evidence(for_sums)});
}

}  // namespace

int main(int argc, char** argv) {
  examples::option_list().number("--steps", steps, 1).take(argc, argv);
  parley::job_options job;
  job.settings.plan.budget_fraction = 1;
  // Without this, messages of the job have no NCCL config, whatever an op lists.
  if (const auto library = parley::transports::nccl_runtime()) {
    job.planes.nccl = *library;
  } else {
    job.planes.no_nccl = library.reason().text();
  }
  return examples::run_on_gpus(rank_main, std::move(job));
}
