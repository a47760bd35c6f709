#include <parley/transports/cuda_space.hpp>

namespace parley::transports {

class cuda_space::device_block final : public block {
 public:
  device_block(cuda_copies& copies, std::size_t bytes)
      : memory_(cuda_memory::on_device(copies.driver(), copies.device(), bytes)) {}
  std::span<std::byte> bytes() const noexcept override { return memory_.bytes(); }

 private:
  cuda_memory memory_;
};

std::unique_ptr<runtime::memory_space::block> cuda_space::make(std::size_t bytes) {
  return std::make_unique<device_block>(copies_, bytes);
}

runtime::task<> cuda_space::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (from.empty()) co_return;
  auto ended = co_await copied(copies_, to, from);
  ended.value();
}

runtime::task<> cuda_space::settled(std::span<const std::byte> memory) {
  if (!copies_.busy(memory)) co_return;
  auto ended =
      co_await device_step(copies_, [this, memory](runtime::completion* done) { return copies_.settle(memory, done); });
  ended.value();
}

}  // namespace parley::transports
