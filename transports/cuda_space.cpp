#include <parley/transports/cuda_space.hpp>

namespace parley::transports {

class cuda_space::device_block final : public block {
 public:
  device_block(cuda_memory memory, std::shared_ptr<kept> back) : memory_(std::move(memory)), back_(std::move(back)) {}
  ~device_block() override { back_->emplace(memory_.bytes().size(), std::move(memory_)); }
  device_block(const device_block&) = delete;
  device_block& operator=(const device_block&) = delete;
  std::span<std::byte> bytes() const noexcept override { return memory_.bytes(); }

 private:
  cuda_memory memory_;
  std::shared_ptr<kept> back_;
};

std::unique_ptr<runtime::memory_space::block> cuda_space::make(std::size_t bytes) {
  if (auto same = kept_->extract(bytes)) return std::make_unique<device_block>(std::move(same.mapped()), kept_);
  return std::make_unique<device_block>(cuda_memory::on_device(copies_.driver(), copies_.device(), bytes), kept_);
}

runtime::task<> cuda_space::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (from.empty()) co_return;
  auto ended = co_await copied(copies_, to, from);
  ended.value();
}

runtime::task<> cuda_space::settled(std::span<const std::byte> memory) {
  auto ended =
      co_await device_step(copies_, [this, memory](runtime::completion* done) { return copies_.settle(memory, done); });
  ended.value();
}

}  // namespace parley::transports
