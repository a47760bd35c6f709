#include <parley/simulation/guarded_memory.hpp>

#include <algorithm>
#include <vector>

namespace parley::simulation {

class guarded_memory::guarded_block final : public block {
 public:
  guarded_block(guarded_memory& of, std::size_t bytes) : of_(of), all_(bytes + 2 * margin, untouched) {
    std::fill(all_.begin() + margin, all_.end() - margin, std::byte{});
    ++of.made_;
    place_ = of.live_.insert(of.live_.end(), this);
  }
  guarded_block(const guarded_block&) = delete;
  guarded_block& operator=(const guarded_block&) = delete;
  ~guarded_block() override {
    of_.spoiled_ += clean() ? 0 : 1;
    of_.live_.erase(place_);
  }
  std::span<std::byte> bytes() const noexcept override {
    return std::span(all_).subspan(margin, all_.size() - 2 * margin);
  }
  bool clean() const {
    const auto is_clean = [](std::byte b) { return b == untouched; };
    return std::all_of(all_.begin(), all_.begin() + margin, is_clean) &&
           std::all_of(all_.end() - margin, all_.end(), is_clean);
  }

 private:
  guarded_memory& of_;
  mutable std::vector<std::byte> all_;
  std::list<const guarded_block*>::iterator place_;
};

std::unique_ptr<runtime::memory_space::block> guarded_memory::make(std::size_t bytes) {
  return std::make_unique<guarded_block>(*this, bytes);
}

std::size_t guarded_memory::spoiled() const {
  const auto written = [](const guarded_block* b) { return !b->clean(); };
  return spoiled_ + static_cast<std::size_t>(std::count_if(live_.begin(), live_.end(), written));
}

}  // namespace parley::simulation
