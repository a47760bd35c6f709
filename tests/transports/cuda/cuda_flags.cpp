#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <doctest/doctest.h>
#include <parley/cuda_copies.hpp>
#include <parley/transports/cuda/device_rest.hpp>

namespace {

using namespace parley;
using namespace parley::tests;
using runtime::errc;
using transports::cuda_copies;
using transports::cuda_flags;
using transports::cuda_memory;

// A device with a buffer, and a stream of the user's.
struct expecting {
  fake_cuda gpu;
  cuda_memory memory = cuda_memory::on_device(gpu, 0, 1'000);
  cuda_memory other = cuda_memory::on_device(gpu, 0, 1'000);
  cuda_copies copies{gpu, 0};
  transports::cuda_stream stream = gpu.make_stream(0);
  bool ran = false;

  void launch() {
    CHECK(copies.wait_on(memory.bytes(), stream) == errc::none);
    gpu.launch(stream, 1, [this] { ran = true; });
    CHECK(copies.after(memory.bytes(), stream) == errc::none);
  }
  // Runs long enough for everything that can happen to happen.
  void go_on() {
    for (int i = 0; i < 100; ++i) {
      awaited done;
      CHECK(copies.copy(other.bytes(), other.bytes(), &done) == errc::pending);
      copies.drain();
    }
  }
};

TEST_CASE("a stream waits for the message expected in its memory, and for no other") {
  expecting e;
  const std::uint64_t flag = e.copies.expect(e.memory.bytes());
  const std::uint64_t other = e.copies.expect(e.other.bytes());
  e.launch();
  e.go_on();
  CHECK_FALSE(e.ran);
  e.copies.came(other, errc::none);
  e.go_on();
  CHECK_FALSE(e.ran);
  e.copies.came(flag, errc::none);
  e.go_on();
  CHECK(e.ran);
  e.ran = false;
  e.launch();  // nothing is expected any more
  e.go_on();
  CHECK(e.ran);
  e.gpu.destroy(e.stream);
}

TEST_CASE("device_rest is not at rest while a stream waits for a message, and is at rest when all waits have ended") {
  using std::chrono::milliseconds;
  auto& rest = transports::device_rest::of_this_process();
  const auto at_rest = [&] { return transports::device_rest::quiet(rest, milliseconds(1)).at_rest(); };
  {
    expecting e;
    const std::uint64_t first = e.copies.expect(e.memory.bytes());
    static_cast<void>(e.copies.expect(e.other.bytes()));
    CHECK(at_rest());  // a flag is expected, but no stream waits for it yet
    CHECK(e.copies.wait_on(e.memory.bytes(), e.stream) == errc::none);
    CHECK_FALSE(at_rest());
    CHECK(e.copies.wait_on(e.memory.bytes(), e.stream) == errc::none);
    CHECK(e.copies.wait_on(e.other.bytes(), e.stream) == errc::none);
    e.copies.came(first, errc::timeout);
    e.copies.came(first, errc::timeout);
    CHECK_FALSE(at_rest());
    e.gpu.destroy(e.stream);
  }
  CHECK(at_rest());
}

TEST_CASE("a flag's word is reused with a new value, unless its receive failed") {
  expecting e;
  std::uint64_t before = 0;
  for (int i = 0; i < 3; ++i) {
    e.ran = false;
    const std::uint64_t flag = e.copies.expect(e.memory.bytes());
    CHECK(cuda_flags::is_one(flag));
    CHECK(flag != before);
    CHECK((i == 0 || cuda_flags::offset_of(flag) == cuda_flags::offset_of(before)));
    before = flag;
    e.launch();
    e.go_on();
    CHECK_FALSE(e.ran);
    e.copies.came(flag, i == 2 ? errc::timeout : errc::none);
    e.go_on();
    CHECK(e.ran);
  }
  const std::uint64_t flag = e.copies.expect(e.memory.bytes());
  CHECK(cuda_flags::offset_of(flag) != cuda_flags::offset_of(before));
  CHECK(e.copies.flags().down_for(e.memory.bytes().subspan(999)) == std::vector{flag});
  e.copies.came(flag, errc::none);
  CHECK(e.copies.flags().down_for(e.memory.bytes()).empty());
  e.gpu.destroy(e.stream);
}

TEST_CASE("a sender sets a flag's word only after the copies that it started before") {
  expecting e;
  cuda_copies sender(e.gpu, 0);
  const auto from = cuda_memory::on_device(e.gpu, 0, 1'000);
  fill(e.gpu, from.bytes(), 5);
  const std::uint64_t flag = e.copies.expect(e.memory.bytes());
  CHECK(e.copies.wait_on(e.memory.bytes(), e.stream) == errc::none);
  bool right = false;
  e.gpu.launch(e.stream, 1, [&] {
    e.ran = true;
    right = holds(e.gpu, e.memory.bytes(), 5);
  });
  std::array<awaited, 3> done;
  CHECK(sender.copy(e.memory.bytes().first(500), from.bytes().first(500), &done[0]) == errc::pending);
  CHECK(sender.copy(e.memory.bytes().subspan(500), from.bytes().subspan(500), &done[1]) == errc::pending);
  std::byte* const word = e.copies.flags().memory().data() + cuda_flags::offset_of(flag);
  CHECK(sender.write_behind(from.bytes(), word, cuda_flags::value_of(flag), &done[2]) == errc::pending);
  sender.drain();
  e.go_on();
  CHECK(e.ran);
  CHECK(right);
  CHECK(done[2].outcome == errc::none);
  e.gpu.destroy(e.stream);
}

TEST_CASE("kernels enqueued behind a message do not block the copy that brings the message") {
  expecting e;
  const auto from = cuda_memory::on_device(e.gpu, 0, 1'000);
  fill(e.gpu, from.bytes(), 6);
  const std::uint64_t flag = e.copies.expect(e.memory.bytes());
  e.launch();
  CHECK_FALSE(e.copies.busy(e.memory.bytes()));
  awaited done;
  CHECK(e.copies.copy(e.memory.bytes(), from.bytes(), &done) == errc::pending);
  e.go_on();
  REQUIRE(done.calls == 1);
  CHECK(holds(e.gpu, e.memory.bytes(), 6));
  CHECK_FALSE(e.ran);
  e.copies.came(flag, errc::none);
  CHECK(e.copies.busy(e.memory.bytes()));  // busy until the kernel has run
  e.go_on();
  CHECK(e.ran);
  CHECK_FALSE(e.copies.busy(e.memory.bytes()));
  e.gpu.destroy(e.stream);
}

TEST_CASE(
    "two messages into one buffer each release their own kernels, and the second waits for the kernels of the first") {
  expecting e;
  const auto from = cuda_memory::on_device(e.gpu, 0, 1'000);
  const std::uint64_t first = e.copies.expect(e.memory.bytes());
  bool first_right = false;
  CHECK(e.copies.wait_on(e.memory.bytes(), e.stream) == errc::none);
  e.gpu.launch(e.stream, 2'000, [&] { first_right = holds(e.gpu, e.memory.bytes(), 1); });
  CHECK(e.copies.after(e.memory.bytes(), e.stream) == errc::none);
  const std::uint64_t second = e.copies.expect(e.memory.bytes());
  e.launch();
  std::array<awaited, 2> done;
  fill(e.gpu, from.bytes(), 1);
  CHECK(e.copies.copy(e.memory.bytes(), from.bytes(), &done[0]) == errc::pending);
  e.copies.drain();
  e.copies.came(first, errc::none);
  fill(e.gpu, from.bytes(), 2);
  CHECK(e.copies.busy(e.memory.bytes()));
  CHECK(e.copies.copy(e.memory.bytes(), from.bytes(), &done[1]) == errc::pending);
  e.copies.drain();
  CHECK(first_right);
  CHECK_FALSE(e.ran);
  e.copies.came(second, errc::none);
  e.go_on();
  CHECK(e.ran);
  e.gpu.destroy(e.stream);
}

TEST_CASE("when_free waits for the kernels of both streams that use the memory") {
  expecting e;
  const transports::cuda_stream other = e.gpu.make_stream(0);
  int ended = 0;
  e.gpu.launch(e.stream, 2'000, [&] { ++ended; });
  e.gpu.launch(other, 10, [&] { ++ended; });
  CHECK(e.copies.after(e.memory.bytes(), e.stream) == errc::none);
  CHECK(e.copies.after(e.memory.bytes(), other) == errc::none);
  awaited free;
  CHECK(e.copies.when_free(e.memory.bytes(), &free) == errc::pending);
  e.copies.drain();
  CHECK(free.outcome == errc::none);
  CHECK(ended == 2);
  CHECK(e.copies.when_free(e.memory.bytes(), &free) == errc::none);
  e.gpu.destroy(other);
  e.gpu.destroy(e.stream);
}

TEST_CASE("more receives than words, and devices that cannot wait for words, are refused with a reason") {
  fake_cuda gpu;
  const auto memory = cuda_memory::on_device(gpu, 0, 2 * cuda_flags::words);
  {
    cuda_copies copies(gpu, 0);
    for (std::size_t i = 0; i < cuda_flags::words; ++i) copies.expect(memory.bytes().subspan(i, 1));
    CHECK_THROWS_WITH(copies.expect(memory.bytes().subspan(cuda_flags::words)),
                      doctest::Contains("full: more than 4096"));
  }
  gpu.waits_for_words = false;
  cuda_copies copies(gpu, 0);
  CHECK_THROWS_WITH(copies.expect(memory.bytes()),
                    doctest::Contains("unavailable: device 0 cannot let a stream wait for a message"));
  CHECK(copies.wait_on(memory.bytes(), nullptr) == errc::none);
  gpu.word_operations = false;
  const std::size_t streams = gpu.streams();
  const std::size_t events = gpu.events();
  CHECK_THROWS_WITH(cuda_copies(gpu, 0),
                    doctest::Contains("unavailable: device 0 cannot write a word to memory when it has copied"));
  CHECK(gpu.streams() == streams);
  CHECK(gpu.events() == events);
}

TEST_CASE("streams that still wait when cuda_copies is destroyed continue") {
  fake_cuda gpu;
  const auto memory = cuda_memory::on_device(gpu, 0, 1'000);
  const auto stream = gpu.make_stream(0);
  bool ran = false;
  {
    cuda_copies copies(gpu, 0);
    copies.expect(memory.bytes());
    CHECK(copies.wait_on(memory.bytes(), stream) == errc::none);
    gpu.launch(stream, 1, [&] { ran = true; });
  }
  cuda_copies others(gpu, 0);
  awaited done;
  CHECK(others.watch(stream, &done) == errc::pending);
  others.drain();
  CHECK(ran);
  gpu.destroy(stream);
}

}  // namespace
