// Capabilities of a rank's machine, and the mask of those that the rank must do without, for all ops of a job.
#include <parley/tests/support/cases/mixture_case.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/devices/fake_nccl.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/group_config.hpp>
#include <parley/machine.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/kernels/role_op.hpp>
#include <parley/symmetric.hpp>

#include <doctest/doctest.h>

#include <algorithm>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

std::vector<masked_capability> masks(std::string_view text) { return parse_masks(text).value(); }

std::string why(const machine& m, std::string_view capability) {
  const auto has = m.has(capability);
  return has ? "" : has.reason().text();
}

// An H100 with one neighbour, GPU 1.
std::vector<transports::cuda_device> one_h100() {
  return {{.name = "H100",
           .compute_capability = 90,
           .memory_bytes = 1U << 30U,
           .multiprocessors = 132,
           .uuid = "GPU-fake-0",
           .peers = {1},
           .nvlink = {1}}};
}

/// A config that needs sm_90 and has a wire class of its own, so that both ends must have such a GPU.
class h100_optimized final : public paired_config {
 public:
  h100_optimized() : paired_config({.name = "h100_optimized", .wire_class = "h100"}, every_size) {}
  std::vector<std::string> requirements() const override { return {"sm_90"}; }
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
};

/// A group config that runs as `real` does, and needs sm_90.
class needs_sm_90 final : public group_config {
 public:
  explicit needs_sm_90(group_config_ptr real) : group_config(real->identity()), real_(std::move(real)) {}
  std::vector<std::string> requirements() const override { return {"sm_90"}; }
  task<> lead(group_call& g) const override { co_await real_->lead(g); }
  task<> work(group_call& g) const override { co_await real_->work(g); }

 private:
  group_config_ptr real_;
};

rank_settings told(std::string_view mask) {
  rank_settings s = eager_trials();
  s.masked = masks(mask);
  return s;
}

}  // namespace

TEST_CASE("a machine has the capabilities that its GPU's driver reports, and says why it lacks the rest") {
  fake_cuda gpu(one_h100());
  const machine m = machine::with_gpu(gpu, 0);
  for (const char* has : {"gpu", "sm_75", "sm_90", "peer_access", "nvlink", "ipc", "nccl", "ucx", "h100_optimized"})
    CHECK(why(m, has) == "");
  CHECK(why(m, "sm_100") == "GPU 0, H100, is sm_90");
  CHECK(why(m, "cuda_13") == "");
  CHECK(why(m, "cuda_12.4") == "");
  CHECK(why(m, "cuda_13.1") == "the driver is for CUDA 13.0");
  CHECK(why(m, "memory_1") == "");
  CHECK(why(m, "memory_2") == "GPU 0, H100, has 1 GiB of memory");
  CHECK(why(m, "nccl_2") == "this job was given no NCCL");
  fake_nccl nccl(gpu);
  const machine with_nccl = machine::with_gpu(gpu, 0, &nccl);
  for (const char* has : {"nccl_2", "nccl_2.8", "nccl_2.28", "nccl_2.28.9"}) CHECK(why(with_nccl, has) == "");
  for (const char* newer : {"nccl_3", "nccl_2.29", "nccl_2.28.10"})
    CHECK(why(with_nccl, newer) == "NCCL is version 2.28.9");
  for (const char* own : {"nccl_2.28.9.1", "nccl_ours", "cuda_", "sm_90a"})
    CHECK(why(with_nccl, own) == "");   // not versions, so ordinary names
  CHECK(with_nccl.lets_run("nccl_8"));  // here it names a config
  CHECK(why(with_nccl, "nccl_8") != "");
  fake_cuda alone;
  CHECK(why(machine::with_gpu(alone, 0), "nvlink") == "");  // other processes may see further GPUs
  fake_cuda apart(2);
  const machine poor = machine::with_gpu(apart, 0);
  CHECK(why(poor, "peer_access") == "GPU 0, fake, reaches the memory of no other GPU");
  CHECK(why(poor, "nvlink") == "GPU 0, fake, has no NVLink to another GPU");
  CHECK(why(machine::without_gpu(), "sm_90") == "this job was given no GPU");
  CHECK(why(machine::without_gpu(), "cuda_12") == "this job was given no GPU");
  CHECK(why(machine::without_gpu(), "nccl_2") == "this job was given no GPU");
  CHECK(why(machine::without_gpu(), "memory_1") == "this job was given no GPU");
  CHECK(why(machine(), "sm_90") == "");  // a machine of which nothing is known
}

TEST_CASE("a mask of a capability also hides newer versions of it, only on the ranks that the mask names") {
  fake_cuda gpu(one_h100());
  machine m = machine::with_gpu(gpu, 0);
  m.mask(masks("2:sm_90,3:nccl,nvlink"), 2);
  CHECK(why(m, "sm_90") == "this rank must do without sm_90 (PARLEY_MASK)");
  CHECK(why(m, "sm_100") == "this rank must do without sm_90 (PARLEY_MASK)");
  CHECK(why(m, "sm_80") == "");
  CHECK(why(m, "nccl") == "");
  fake_nccl library(gpu);
  machine older = machine::with_gpu(gpu, 0, &library);
  older.mask(masks("nccl_2.20,cuda_12.9"), 2);
  CHECK(why(older, "nccl_2.19") == "");
  CHECK(why(older, "nccl_2.20") == "this rank must do without nccl_2.20 (PARLEY_MASK)");
  CHECK(why(older, "nccl_2.28") == "this rank must do without nccl_2.20 (PARLEY_MASK)");
  CHECK(why(older, "nccl") == "");
  CHECK(why(older, "cuda_13") != "");
  CHECK(why(older, "cuda_12") == "");
  auto devices = one_h100();
  devices.front().memory_bytes = std::uint64_t{81'079} << 20U;  // the size that an H100 of 80 GB reports
  fake_cuda large(devices);
  CHECK(why(machine::with_gpu(large, 0), "memory_79") == "");
  CHECK(why(machine::with_gpu(large, 0), "memory_80") == "GPU 0, H100, has 79 GiB of memory");
  machine smaller = machine::with_gpu(large, 0);
  smaller.mask(masks("2:memory_41"), 2);
  CHECK(why(smaller, "memory_40") == "");
  CHECK(why(smaller, "memory_41") == "this rank must do without memory_41 (PARLEY_MASK)");
  CHECK(why(smaller, "memory_64") == "this rank must do without memory_41 (PARLEY_MASK)");
  machine none = machine::with_gpu(gpu, 0, &library);
  none.mask(masks("nccl"), 2);
  CHECK(why(none, "nccl_2") == "this rank must do without nccl (PARLEY_MASK)");
  CHECK(why(m, "nvlink") != "");
}

TEST_CASE("masks have one text, whatever their order, and a malformed mask is an error that quotes it") {
  CHECK(text_of(masks("nccl,3:sm_90,2:sm_90,3:sm_90")) == "2:sm_90 3:sm_90 nccl");
  CHECK(text_of(masks("nccl,3:sm_90,2:ipc"), 3) == "nccl sm_90");
  CHECK(masks("").empty());
  CHECK(parse_masks("x:nccl").reason().text() ==
        "\"x:nccl\" does not begin with a rank; write RANK:CAPABILITY, for example 2:sm_90");
  CHECK(parse_masks("nccl,2:").reason().text().find("\"2:\" names no capability") == 0);
  const auto lookup = [](const std::string& name) {
    return name == "PARLEY_MASK" ? std::optional<std::string>("1:ipc") : std::nullopt;
  };
  CHECK(text_of(heed_environment(told("2:nccl"), lookup).settings.masked) == "1:ipc");
  const auto broken = [](const std::string& name) {
    return name == "PARLEY_MASK" ? std::optional<std::string>("1:") : std::nullopt;
  };
  CHECK_THROWS_WITH(heed_environment({}, broken), doctest::Contains("malformed: PARLEY_MASK=1:: \"1:\" names no"));
}

TEST_CASE("a mask on one of two equal ranks keeps a transfer's config from being a candidate") {
  for (const char* mask : {"1:sm_90", "1:h100_optimized"}) {
    CAPTURE(mask);
    world w(2, told(mask));
    const std::vector<config_ptr> configs{direct(), std::make_shared<h100_optimized>(), chunked(1'000)};
    CHECK(move_each(w, configs, configs, std::vector<std::size_t>(200, 10'000)).failed() == 0);
    const auto* const c = w[0].agreements().front().assigned;
    CHECK(c->ids() == std::vector<std::string>{"direct", chunked(1'000)->id()});
    const auto unavailable = [&](rank_id r) { return w[r].participants().front()->unavailable; };
    CHECK(unavailable(0).empty());
    REQUIRE(unavailable(1).size() == 1);
    CHECK(unavailable(1).front().find("h100_optimized: ") == 0);
    CHECK(unavailable(1).front().find("this rank must do without ") != std::string::npos);
    const auto is_mask = [](const tuning::validator& v) { return v.name == "PARLEY_MASK"; };
    const auto results = w[0].results();
    REQUIRE(std::ranges::count_if(results.validators(), is_mask) == 1);
    CHECK(std::ranges::find_if(results.validators(), is_mask)->value == mask);
  }
  world w(2, eager_trials());
  const std::vector<config_ptr> configs{direct(), std::make_shared<h100_optimized>()};
  CHECK(move_each(w, configs, configs, std::vector<std::size_t>(200, 10'000)).failed() == 0);
  CHECK(w[0].agreements().front().assigned->ids().size() == 2);
  const auto results = w[0].results();
  for (const auto& v : results.validators()) CHECK(v.name != "PARLEY_MASK");
}

TEST_CASE("a rank that cannot run the default is refused with the reason, whether a mask or the config gives it") {
  class broken final : public paired_config {
   public:
    broken() : paired_config({.name = "broken", .wire_class = "broken"}) {}
    result<> available() const override { return error{errc::unavailable, "no such kernel here"}; }
    task<> send(part_sender&, std::span<const std::byte>) const override { co_return; }
    task<> receive(part_receiver&, std::span<std::byte>) const override { co_return; }
  };
  const auto refused = [](world& w, config_ptr first) -> std::string {
    try {
      static_cast<void>(transfer(w[1], {.name = "acts", .edges = {{0, 1}}, .configs = {std::move(first), direct()}}));
    } catch (const failure& f) {
      return f.what();
    }
    return {};
  };
  world masked(2, told("1:sm_90,h100_optimized"));
  CHECK(refused(masked, std::make_shared<h100_optimized>())
            .find("rank 1 cannot run h100_optimized, which is the default and must run on every rank: this rank must "
                  "do without h100_optimized (PARLEY_MASK); list a config first that all ranks can run") !=
        std::string::npos);
  world without(2, told("1:sm_90"));
  CHECK(refused(without, std::make_shared<h100_optimized>()).find("it needs sm_90: ") != std::string::npos);
  world whole(2, eager_trials());
  CHECK(refused(whole, std::make_shared<h100_optimized>()).empty());
  CHECK(refused(whole, std::make_shared<broken>()).find("no such kernel here") != std::string::npos);
}

TEST_CASE("a mask that names no capability and no config is reported at the end") {
  world w(2, told("1:chunkd,chunked,direct(a=1),sm_90"));
  const std::vector<config_ptr> configs{direct(), chunked(1'000)};
  CHECK(move_each(w, configs, configs, {100}).failed() == 0);
  REQUIRE(w[0].idle_masks().size() == 1);
  CHECK(w[0].idle_masks()[0].find("the mask direct(a=1) hides nothing on rank 0: ") == 0);
  REQUIRE(w[1].idle_masks().size() == 1);
  CHECK(w[1].idle_masks()[0].find("the mask 1:chunkd hides nothing on rank 1: ") == 0);
}

TEST_CASE("masks let equal ranks act as H100 and A100: a group runs h100_optimized only on the unmasked ranks") {
  using namespace mixture_case;
  machine_room room;
  world w(4, told("2:sm_90,3:sm_90"));
  collective_options op = led_by(0, {});
  op.configs = {
      std::make_shared<timed_star>(room, w.clock, "nccl", "wire", std::vector<time_ns>{10_ms, 10_ms, 4_ms, 4_ms}),
      std::make_shared<needs_sm_90>(
          std::make_shared<timed_star>(room, w.clock, "h100_optimized", "wire", everywhere(5_ms)))};
  const auto groups = declare_all(w, op);
  for (int round = 0; round < 5; ++round) {
    CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
    wait_a_while(w, 1_s);
  }
  CHECK(w[0].agreements().front().assigned->find(4000)->chosen().config == "h100_optimized");
  room.ran.clear();
  CHECK(reduce_all(w, groups, {1000, 1000}).failed() == 0);
  CHECK(room.ran["h100_optimized"] == std::map<std::size_t, int>{{0, 2}, {1, 2}});
  CHECK(room.ran["nccl"] == std::map<std::size_t, int>{{2, 2}, {3, 2}});
}

TEST_CASE("a sum of GPUs is no candidate if a capability that it needs is masked, or missing") {
  const auto configs = [](rank& self, std::vector<symmetric_config_ptr> list, const char* name = "gradients") {
    symmetric_options op{.name = name, .configs = std::move(list), .communicator = {}};
    static_cast<void>(symmetric(self, op));
    return self.participants().back()->unavailable;
  };
  world w(1, told("nccl"));
  const auto lacking = configs(w[0], {kernel_sum(8), nccl_sum(), nccl_graph_sum()});
  REQUIRE(lacking.size() == 2);
  CHECK(lacking.front() == "nccl_sum: it needs nccl: this rank must do without nccl (PARLEY_MASK)");
  CHECK_THROWS_WITH_AS(configs(w[0], {nccl_sum(), kernel_sum(8)}, "sums"),
                       doctest::Contains("rank 0 cannot run nccl_sum, which is the default and must run on every rank"),
                       failure);
  fake_cuda gpu(2);
  one_process job({.ranks = 1, .gpu = &gpu});
  const auto here = configs(job[0], {nccl_sum(), nccl_graph_sum(), kernel_sum(8)});
  REQUIRE(here.size() == 1);
  CHECK(here.front() == "kernel_sum(blocks=8): it needs peer_access: GPU 0, fake, reaches the memory of no other GPU");
}

TEST_CASE("a GPU's validator names its links, and whether processes may share its memory") {
  const auto text = [](const std::vector<transports::cuda_device>& of) {
    fake_cuda gpu(of);
    return gpu_validators(gpu).front().value;
  };
  auto devices = one_h100();
  CHECK(text(devices) == "H100 sm_90 1024 MiB reaches 1 NVLink 1 IPC");
  devices.front().nvlink.clear();
  devices.front().ipc = false;
  CHECK(text(devices) == "H100 sm_90 1024 MiB reaches 1 NVLink  no IPC");
}
