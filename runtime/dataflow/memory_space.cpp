#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstring>
#include <vector>

namespace parley::runtime {

namespace {

class host_space final : public memory_space {
 public:
  std::unique_ptr<block> make(std::size_t bytes) override { return std::make_unique<host_block>(bytes); }
  task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    co_return;
  }
  void gather(std::span<std::byte> packed, const memory_pieces& pieces, device_stream) override {
    pieces.gather(packed.data());
  }
  void scatter(const memory_pieces& pieces, std::span<const std::byte> packed, device_stream) override {
    pieces.scatter(packed.data());
  }

 private:
  class host_block final : public block {
   public:
    explicit host_block(std::size_t bytes) : bytes_(bytes) {}
    std::span<std::byte> bytes() const noexcept override { return bytes_; }

   private:
    mutable std::vector<std::byte> bytes_;
  };
};

[[noreturn]] void no_streams() {
  raise({errc::bad_argument, "a stream was given, but the op's memory has no streams; set the op's `memory` to that of "
                             "the device that holds its buffers"});
}

}  // namespace

void memory_space::prepare(memory_pieces&) {}
result<> memory_space::check(std::span<const std::byte>, std::size_t) { return {}; }
void memory_space::add(std::span<std::byte>, std::span<const std::byte>, summand) {
  raise({errc::unavailable, "this memory has no device that adds numbers"});
}
void memory_space::assign(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}
task<> memory_space::settled(std::span<const std::byte>) { co_return; }

void memory_space::after(std::span<const std::byte>, device_stream) { no_streams(); }
device_moment memory_space::moment_of(device_stream) { no_streams(); }
void memory_space::wait_for(const device_moment&, device_stream) { no_streams(); }
errc memory_space::when_reached(device_stream, completion*) noexcept { return errc::bad_argument; }
std::uint64_t memory_space::hold(device_stream) { no_streams(); }
std::uint64_t memory_space::expect(std::span<const std::byte>) { no_streams(); }
void memory_space::wait_on(std::span<const std::byte>, device_stream) { no_streams(); }
void memory_space::came(std::uint64_t, errc) noexcept {}

namespace {
constinit thread_local memory_space* instead = nullptr;
}  // namespace

memory_space& host_memory() noexcept {
  static host_space space;
  return instead == nullptr ? space : *instead;
}

host_memory_instead::host_memory_instead(memory_space& other) noexcept : before_(std::exchange(instead, &other)) {}
host_memory_instead::~host_memory_instead() { instead = before_; }

}  // namespace parley::runtime
