#include <parley/runtime/memory_space.hpp>

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

 private:
  class host_block final : public block {
   public:
    explicit host_block(std::size_t bytes) : bytes_(bytes) {}
    std::span<std::byte> bytes() const noexcept override { return bytes_; }

   private:
    mutable std::vector<std::byte> bytes_;
  };
};

}  // namespace

task<> memory_space::settled(std::span<const std::byte>) { co_return; }

memory_space& host_memory() noexcept {
  static host_space space;
  return space;
}

}  // namespace parley::runtime
