// Ranks that are set up like separate processes: device buffers over a link that moves host memory only.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/devices/fake_nccl.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/errors.hpp>

#include <doctest/doctest.h>
#include <parley/config.hpp>
#include <parley/cuda_link.hpp>
#include <parley/cuda_space.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/transfer.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace {

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

void move_until_tried(two_ranks& w, std::span<std::byte> from, std::span<std::byte> to) {
  for (const deadline limit; !limit.is_over();) {
    w.move(from, to, 20);
    if (w.decided(from.size())) return;
  }
  FAIL("no config was decided on");
}

TEST_CASE("a link that moves host memory sends device buffers through pinned memory, whole or in overlapping chunks") {
  fake_cuda gpu;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{64}, std::size_t{5'000}, std::size_t{200'001}}) {
    const auto from = transports::cuda_memory::on_device(gpu, 0, bytes);
    const auto to = transports::cuda_memory::on_device(gpu, 0, bytes);
    two_ranks w(gpu, {direct(), chunked(30'000, 3)});
    fill(gpu, from.bytes(), 3);
    move_until_tried(w, from.bytes(), to.bytes());
    CHECK(holds(gpu, to.bytes(), 3));
    CHECK(w.wires[0]->planes().staged > 0);
    CHECK(w.wires[0]->planes().ipc == 0);
  }
  CHECK(gpu.pinned() == 0);
  CHECK(gpu.blocks() == 0);
}

TEST_CASE("a send that is cancelled during its copy to pinned memory does not send its whole payload") {
  fake_cuda gpu;
  parley::tests::awaited done;
  two_ranks w(gpu, {direct()});
  const auto from = transports::cuda_memory::on_device(gpu, 0, 100'000);
  const std::array<std::byte, 8> header{};
  const auto sent = [&] { return w.wires[0]->statistics().payload_bytes_sent; };
  const std::uint64_t before = sent();
  REQUIRE(w.wires[0]->send(1, link::channel::transfers, header, from.bytes(), &done) == errc::pending);
  w.wires[0]->cancel(done);
  run_until(w.loop, [&] { return done.calls == 1 || sent() - before >= from.bytes().size(); });
  CHECK(done.outcome == errc::cancelled);
  CHECK(sent() - before < from.bytes().size());
}

TEST_CASE("puts and gets copy from device to device over exported memory, and leave nothing mapped") {
  fake_cuda gpu;
  for (const config_ptr& way : {put(), put(30'000, 2), get(), get(30'000, 2)}) {
    const auto from = transports::cuda_memory::on_device(gpu, 0, 100'001);
    const auto to = transports::cuda_memory::on_device(gpu, 0, 100'001);
    {
      two_ranks w(gpu, {direct(), way});
      fill(gpu, from.bytes(), 4);
      move_until_tried(w, from.bytes(), to.bytes());
      CHECK(holds(gpu, to.bytes(), 4));
      CHECK(w.wires[0]->planes().ipc + w.wires[1]->planes().ipc > 0);
      CHECK(gpu.imported > 0);
    }
    CHECK(gpu.imported == 0);
  }
}

TEST_CASE("no rank reads or writes another's memory before the kernels that the owner has enqueued there have ended") {
  fake_cuda gpu;
  for (const config_ptr& way : {chunked(30'000, 2), put(), get()}) {
    CAPTURE(way->id());
    const auto from = transports::cuda_memory::on_device(gpu, 0, 100'001);
    const auto to = transports::cuda_memory::on_device(gpu, 0, 100'001);
    two_ranks w(gpu, {direct(), way});
    const auto known_at_sender = w.ends[0].registered(from.bytes());
    const auto known_at_receiver = w.ends[1].registered(to.bytes());
    const transports::cuda_stream makes = gpu.make_stream(0);
    const transports::cuda_stream uses = gpu.make_stream(0);
    fill(gpu, to.bytes(), 0);
    unsigned wrong = 0;
    unsigned overwritten = 0;
    unsigned i = 1;
    const deadline limit;
    for (; !limit.is_over() && !w.decided(100'001); ++i) {
      gpu.launch(makes, way->what_it_needs() == needs::credit ? 50 : 2'000,
                 [&gpu, &from, i] { fill(gpu, from.bytes(), i); });
      gpu.launch(uses, way->what_it_needs() == needs::credit ? 2'000 : 50,
                 [&, i] { overwritten += holds(gpu, to.bytes(), i - 1) ? 0 : 1; });
      REQUIRE(w.copies[0]->after(from.bytes(), makes) == errc::none);
      REQUIRE(w.copies[1]->after(to.bytes(), uses) == errc::none);
      w.move(from.bytes(), to.bytes(), 1);
      wrong += holds(gpu, to.bytes(), i) ? 0 : 1;
    }
    REQUIRE(w.decided(100'001));
    CHECK(w.search(100'001)->trials() > 0);
    CHECK(wrong == 0);
    CHECK(overwritten == 0);
    CHECK((way->what_it_needs() != needs::known_payload || w.wires[1]->planes().ipc > 0));
    gpu.destroy(makes);
    gpu.destroy(uses);
  }
}

TEST_CASE("a config is not charged for the time of the kernels that write its payload") {
  for (const config_ptr& way : {chunked(500, 2), put(), get()}) {
    CAPTURE(way->id());
    fake_cuda gpu;
    constexpr auto kernel = std::chrono::milliseconds(20);
    const auto from = transports::cuda_memory::on_device(gpu, 0, 1'000);
    const auto to = transports::cuda_memory::on_device(gpu, 0, 1'000);
    two_ranks w(gpu, {direct(), way});
    const auto known_at_sender = w.ends[0].registered(from.bytes());
    const auto known_at_receiver = w.ends[1].registered(to.bytes());
    const transports::cuda_stream makes = gpu.make_stream(0);
    for (const deadline limit; !limit.is_over() && !w.decided(1'000);) {
      gpu.launch_until(
          makes, [end = std::chrono::steady_clock::now() + kernel] { return std::chrono::steady_clock::now() >= end; });
      REQUIRE(w.copies[0]->after(from.bytes(), makes) == errc::none);
      w.move(from.bytes(), to.bytes(), 1);
    }
    REQUIRE(w.decided(1'000));
    for (const auto& a : w.search(1'000)->aggregates()) {
      CHECK(a.measured());
      CHECK(a.time_ns < std::chrono::nanoseconds(kernel).count());
    }
    gpu.destroy(makes);
  }
}

// Adds 1 to each byte forward and doubles it backward, in kernels that end long after the call that enqueued them.
class kernel_stage final : public training_work {
 public:
  enum class inputs { are_here, are_waited_for };
  kernel_stage(fake_cuda& gpu, transports::cuda_copies& copies, std::size_t bytes, inputs when)
      : gpu_(gpu), copies_(copies), stream_(gpu.make_stream(0)), bytes_(bytes), ahead_(when == inputs::are_waited_for) {
  }
  kernel_stage(const kernel_stage&) = delete;
  kernel_stage& operator=(const kernel_stage&) = delete;
  ~kernel_stage() override { gpu_.destroy(stream_); }
  std::uint64_t activation_bytes(std::uint32_t) const override { return bytes_; }
  bool waits_on_device() const override { return ahead_; }
  task<> work(pipeline_action a, pipeline_memory m) override {
    const bool forward = a.what == pipeline_action::kind::forward;
    const auto in = forward ? m.in : a.stage == 1 ? m.out : m.gradient_out;
    const auto out = forward ? m.out : m.gradient_in;
    if (ahead_) CHECK(copies_.wait_on(in, stream_) == errc::none);
    most_enqueued = std::max(most_enqueued, ++enqueued_);
    gpu_.launch(stream_, 300, [this, a, forward, in, out] {
      ++kernels;
      --enqueued_;
      for (std::size_t i = 0; i < bytes_; ++i) {
        const auto fresh = static_cast<std::uint8_t>(a.microbatch * 7 + i);
        auto x = static_cast<std::uint8_t>(forward ? fresh + a.stage : fresh + 2);
        if (!forward && a.stage == 0) x = static_cast<std::uint8_t>(2 * x);
        if (!in.empty()) wrong += gpu_.shadow(in.data())[i] == std::byte{x} ? 0 : 1;
        if (!out.empty()) gpu_.shadow(out.data())[i] = std::byte{static_cast<std::uint8_t>(forward ? x + 1 : 2 * x)};
      }
    });
    for (const auto& part : {in, std::span<const std::byte>(out)})
      if (!part.empty()) CHECK(copies_.after(part, stream_) == errc::none);
    co_return;
  }
  std::size_t kernels = 0;
  std::size_t wrong = 0;
  std::size_t most_enqueued = 0;

 private:
  fake_cuda& gpu_;
  transports::cuda_copies& copies_;
  transports::cuda_stream stream_;
  std::size_t bytes_;
  bool ahead_;
  std::size_t enqueued_ = 0;
};

task<> train(training_pipeline t, kernel_stage* stage, int passes) {
  for (int n = 0; n < passes; ++n) co_await t.run(*stage);
}

TEST_CASE("stages of a pipeline do not wait for their kernels: messages do, and so does each new use of the memory") {
  fake_cuda gpu;
  using inputs = kernel_stage::inputs;
  for (const auto& [way, when] : {std::pair(direct(), inputs::are_here), std::pair(put(), inputs::are_here),
                                  std::pair(get(), inputs::are_here), std::pair(direct(), inputs::are_waited_for),
                                  std::pair(put(), inputs::are_waited_for), std::pair(get(), inputs::are_waited_for)}) {
    CAPTURE(way->id());
    CAPTURE(static_cast<int>(when));
    two_ranks w(gpu, {direct()});
    std::vector<config_ptr> configs{direct()};
    if (way->id() != "direct") configs.push_back(way);
    constexpr std::uint32_t microbatches = 5;
    constexpr int passes = 20;
    std::vector<std::unique_ptr<kernel_stage>> stages;
    {
      runtime::scope both(w.loop);
      for (rank_id r = 0; r < 2; ++r) {
        stages.push_back(std::make_unique<kernel_stage>(gpu, *w.copies[r], 10'001, when));
        both.spawn(train(training_pipeline(*w.ranks[r], {.name = "layers",
                                                         .schedule = one_forward_one_backward(2, microbatches),
                                                         .configs = configs,
                                                         .memory = w.spaces[r].get()}),
                         stages[r].get(), passes));
      }
      run_until(w.loop, [&] { return both.running() == 0; });
    }
    for (auto& c : w.copies) c->drain();
    for (const auto& s : stages) {
      CHECK(s->kernels == std::size_t{2} * microbatches * passes);
      CHECK(s->wrong == 0);
      CHECK((when == inputs::are_here || s->most_enqueued == 2));
    }
    const auto flags = w.wires[0]->planes().flags_set + w.wires[1]->planes().flags_set;
    CHECK((flags > 0) == (way->id() == "put" && when == inputs::are_waited_for));
    CHECK((way->id() == "direct") == (w.wires[0]->planes().ipc + w.wires[1]->planes().ipc == 0));
  }
}

// A receive whose kernel is enqueued before any data has arrived. `right`: the kernel saw the whole message. `before_the_processor`: the
// kernel ran before the host knew that the message had arrived.
struct ahead_of_its_message {
  bool ran = false;
  bool right = false;
  bool before_the_processor = false;
};

task<> move_ahead(two_ranks& w, fake_cuda& gpu, transports::cuda_stream stream, std::span<std::byte> from,
                  std::span<std::byte> to, unsigned seed, ahead_of_its_message* seen) {
  bool over = false;
  runtime::scope& here = co_await this_scope;
  runtime::scope receiving(here);
  runtime::scope sending(here);
  const receive_options expected{.from = 0, .expected = w.copies[1]->expect(to)};
  receiving.spawn(two_ranks::takes(w.ends[1], to, expected));
  CHECK(w.copies[1]->wait_on(to, stream) == errc::none);
  gpu.launch(stream, 0, [&] {
    seen->ran = true;
    seen->right = holds(gpu, to, seed);
    seen->before_the_processor = !over;
  });
  CHECK(w.copies[1]->after(to, stream) == errc::none);
  const time_ns later = w.loop.deadline_in(100'000);  // time for the credit, which takes turns of this loop
  static_cast<void>(co_await sleep_until(later));
  sending.spawn(two_ranks::sends(w.ends[0], from, 1));
  co_await receiving.join();
  over = true;
  co_await sending.join();
  // Each call of `busy` lets the fake GPU progress. A buffer that kernels still use would get no credit for the next message.
  while (w.copies[1]->busy(to) || !seen->ran) co_await yield;
}

TEST_CASE("kernels that are enqueued before their message arrives wait for the message, with every config") {
  for (const config_ptr& way : {direct(), chunked(30'000, 2), put(), put(30'000, 2), get()}) {
    CAPTURE(way->id());
    fake_cuda gpu;
    const auto from = transports::cuda_memory::on_device(gpu, 0, 100'001);
    const auto to = transports::cuda_memory::on_device(gpu, 0, 100'001);
    std::vector<config_ptr> configs{direct()};
    if (way->id() != "direct") configs.push_back(way);
    two_ranks w(gpu, configs);
    const auto known_at_sender = w.ends[0].registered(from.bytes());
    const auto known_at_receiver = w.ends[1].registered(to.bytes());
    const transports::cuda_stream stream = gpu.make_stream(0);
    unsigned wrong = 0;
    unsigned early = 0;
    const auto tried = [&] { return configs.size() == 1 || w.decided(100'001); };
    const deadline limit;
    for (unsigned i = 1; !limit.is_over() && (i < 10 || !tried()); ++i) {
      fill(gpu, from.bytes(), i);
      ahead_of_its_message seen;
      runtime::run(w.loop, move_ahead(w, gpu, stream, from.bytes(), to.bytes(), i, &seen));
      wrong += seen.right ? 0 : 1;
      early += seen.before_the_processor ? 1 : 0;
    }
    CHECK(tried());
    CHECK(wrong == 0);
    const bool puts = way->what_it_needs() == needs::credit;
    CHECK((w.wires[0]->planes().flags_set > 0) == puts);
    CHECK((early > 0) == puts);
    gpu.destroy(stream);
  }
}

TEST_CASE("a failed receive releases the kernels that were enqueued behind it") {
  fake_cuda gpu;
  const auto to = transports::cuda_memory::on_device(gpu, 0, 1'000);
  two_ranks w(gpu, {direct()});
  const transports::cuda_stream stream = gpu.make_stream(0);
  bool ran = false;
  const std::uint64_t expected = w.copies[1]->expect(to.bytes());
  CHECK(w.copies[1]->wait_on(to.bytes(), stream) == errc::none);
  gpu.launch(stream, 1, [&] { ran = true; });
  CHECK(w.copies[1]->after(to.bytes(), stream) == errc::none);
  struct program {
    static task<> run(transfer t, std::span<std::byte> into, std::uint64_t expected) {
      const receive_options soon{.from = 0, .timeout = 1ms, .expected = expected};
      co_await t.receive(into, soon);
    }
  };
  CHECK_THROWS_WITH(runtime::run(w.loop, program::run(w.ends[1], to.bytes(), expected)), doctest::Contains("timeout"));
  for (const deadline limit; !limit.is_over() && w.copies[1]->busy(to.bytes());) {}
  CHECK(ran);
  gpu.destroy(stream);
}

namespace {
task<> noted(std::function<task<>()> call, result<>* how, bool* over) {
  *how = co_await attempt(call());
  *over = true;
}
}  // namespace

TEST_CASE(
    "a rank whose device fails while it writes into a peer's memory gets device_failed, and does not blame the peer") {
  int midst_of_puts = 0;
  for (int messages = 1; messages < 80; messages += 3) {
    CAPTURE(messages);
    fake_cuda gpu(2);
    const auto from = transports::cuda_memory::on_device(gpu, 0, 100'001);
    const auto to = transports::cuda_memory::on_device(gpu, 1, 100'001);
    two_ranks w(gpu, {direct(), put()});
    w.move(from.bytes(), to.bytes(), messages);
    const transports::cuda_stream stream = gpu.make_stream(0);
    gpu.launch(stream, 50, [&] { gpu.fault_now(0); });
    REQUIRE(w.copies[0]->after(from.bytes(), stream) == errc::none);
    result<> sent;
    result<> received;
    bool over = false;
    bool heard = false;
    {
      scope both(w.loop);
      const auto sends = [&] { return two_ranks::sends(w.ends[0], from.bytes(), 1); };
      const auto receives = [&] { return two_ranks::receives(w.ends[1], to.bytes(), 1); };
      both.spawn(noted(sends, &sent, &over));
      both.spawn(noted(receives, &received, &heard));
      run_until(w.loop, [&] { return over; });
      CHECK_FALSE(heard);
      w.ranks[1]->on_lost(0, "its connections ended");
      run_until(w.loop, [&] { return heard; });
    }
    CAPTURE((sent ? std::string() : sent.reason().what()));
    CHECK(sent.code() == errc::device_failed);
    CHECK(received.code() == errc::peer_failed);
    if (sent.reason().about().config == "put") {
      ++midst_of_puts;
      CHECK_THROWS_WITH_AS(runtime::run(w.loop, two_ranks::sends(w.ends[0], from.bytes(), 1)),
                           doctest::Contains("its device failed before its writes into memory of rank 1 had completed; "
                                             "device 0: cudaErrorIllegalAddress: planted"),
                           failure);
    }
    gpu.destroy(stream);
  }
  CHECK(midst_of_puts > 0);
}

TEST_CASE("puts and gets are no candidates if memory cannot be exported, and the default still moves the data") {
  fake_cuda gpu;
  gpu.ipc = fake_cuda::ipc_state::refused;
  const auto from = transports::cuda_memory::on_device(gpu, 0, 10'000);
  const auto to = transports::cuda_memory::on_device(gpu, 0, 10'000);
  two_ranks w(gpu, {direct(), put(), get()});
  fill(gpu, from.bytes(), 6);
  const auto missing = [&] { return w.ranks[0]->agreements().front().no_common_config; };
  for (const deadline limit; missing().empty() && !limit.is_over();) w.move(from.bytes(), to.bytes(), 10);
  w.move(from.bytes(), to.bytes(), 100);
  CHECK(holds(gpu, to.bytes(), 6));
  const auto* const tried = w.search(10'000);
  CHECK((tried == nullptr || tried->trials() == 0));
  CHECK(w.ranks[0]->participants().front()->unavailable ==
        std::vector<std::string>{"put: cudaErrorNotSupported: planted", "get: cudaErrorNotSupported: planted"});
  CHECK(w.wires[0]->planes().ipc == 0);
  // Both configs still work for host memory.
  for (const auto& c : {put(), get()}) CHECK(c->works_over(*w.wires[0], nullptr));
}

TEST_CASE("NCCL moves payloads from device to device, and needs no exported memory") {
  fake_cuda gpu;
  gpu.ipc = fake_cuda::ipc_state::refused;
  fake_nccl library(gpu);
  const auto from = transports::cuda_memory::on_device(gpu, 0, 100'001);
  const auto to = transports::cuda_memory::on_device(gpu, 0, 100'001);
  {
    two_ranks w(gpu, {direct(), nccl()}, &library);
    fill(gpu, from.bytes(), 4);
    move_until_tried(w, from.bytes(), to.bytes());
    CHECK(holds(gpu, to.bytes(), 4));
    CHECK(w.search(100'001)->trials() > 0);
    CHECK(w.wires[1]->nccl()->statistics().gets > 1);
    CHECK(w.wires[1]->nccl()->statistics().communicators == 1);
    CHECK(w.wires[0]->nccl()->statistics().sends == w.wires[1]->nccl()->statistics().gets);
    CHECK(w.wires[1]->nccl()->statistics().aborted == 0);
  }
  CHECK(library.mismatches == 0);
  CHECK(library.communicators() == 0);
}

TEST_CASE("without NCCL the config nccl is not offered, and the error says why") {
  fake_cuda gpu;
  const auto from = transports::cuda_memory::on_device(gpu, 0, 10'000);
  const auto to = transports::cuda_memory::on_device(gpu, 0, 10'000);
  two_ranks w(gpu, {direct(), nccl()});
  fill(gpu, from.bytes(), 6);
  const auto missing = [&] { return w.ranks[0]->agreements().front().no_common_config; };
  for (const deadline limit; missing().empty() && !limit.is_over();) w.move(from.bytes(), to.bytes(), 10);
  CHECK(holds(gpu, to.bytes(), 6));
  CHECK_FALSE(missing().empty());  // wording.cpp checks the sentence
  CHECK(nccl()->works_over(*w.wires[1], w.spaces[1].get()).reason().text() == "no NCCL was given to this rank's link");
}

TEST_CASE("an NCCL communicator that cannot be made fails the rehearsal, and the other configs still run") {
  fake_cuda gpu;
  fake_nccl library(gpu);
  library.connecting = fake_nccl::connecting_state::refused;
  const auto from = transports::cuda_memory::on_device(gpu, 0, 10'000);
  const auto to = transports::cuda_memory::on_device(gpu, 0, 10'000);
  two_ranks w(gpu, {direct(), nccl(), get()}, &library);
  fill(gpu, from.bytes(), 6);
  move_until_tried(w, from.bytes(), to.bytes());
  CHECK(holds(gpu, to.bytes(), 6));
  CHECK(w.search(10'000)->chosen().config != "nccl");
  CHECK(w.wires[1]->nccl()->statistics().why.find("duplicate GPU") != std::string::npos);
}

TEST_CASE("a put is refused if its key does not match exposed memory") {
  fake_cuda gpu;
  const auto mine = transports::cuda_memory::on_device(gpu, 0, 1'000);
  two_ranks w(gpu, {direct()});
  auto exposed = w.wires[1]->expose(mine.bytes()).value();
  const auto address = reinterpret_cast<std::uint64_t>(mine.bytes().data());
  const auto try_key = [&](std::span<const std::byte> key, std::uint64_t at, std::size_t bytes) {
    return w.wires[0]->put(1, {key, at}, mine.bytes().first(bytes), nullptr);
  };
  CHECK(try_key(exposed.key, address, 1'000) == errc::pending);
  CHECK(try_key(exposed.key, address + 1, 1'000) == errc::bad_argument);
  CHECK(try_key(exposed.key, address - 1, 10) == errc::bad_argument);
  CHECK(try_key(std::span(exposed.key).first(20), address, 10) == errc::bad_argument);
  CHECK(try_key({}, address, 10) == errc::bad_argument);
  exposed.key[1] ^= std::byte{0x55};  // changes the handle in the key
  CHECK(try_key(exposed.key, address, 10) == errc::unavailable);
}

}  // namespace
