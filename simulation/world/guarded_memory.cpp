#include <parley/simulation/world/guarded_memory.hpp>

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
    of_.keep_for_a_while(std::move(all_));
  }
  std::span<std::byte> bytes() const noexcept override {
    return std::span(all_).subspan(margin, all_.size() - 2 * margin);
  }
  bool clean() const {
    const std::span<const std::byte> all(all_);
    return is_untouched(all.first(margin)) && is_untouched(all.last(margin));
  }

 private:
  guarded_memory& of_;
  mutable std::vector<std::byte> all_;
  std::list<const guarded_block*>::iterator place_;
};

std::unique_ptr<runtime::memory_space::block> guarded_memory::make(std::size_t bytes) {
  return std::make_unique<guarded_block>(*this, bytes);
}

bool guarded_memory::is_untouched(std::span<const std::byte> bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == untouched; });
}

void guarded_memory::keep_for_a_while(std::vector<std::byte> gone) {
  std::fill(gone.begin(), gone.end(), untouched);
  gone_.push_back(std::move(gone));
  if (gone_.size() <= most_gone) return;
  spoiled_ += is_untouched(gone_.front()) ? 0 : 1;
  gone_.pop_front();
}

std::size_t guarded_memory::spoiled() const {
  const auto beside = [](const guarded_block* b) { return !b->clean(); };
  const auto after = [](const std::vector<std::byte>& gone) { return !is_untouched(gone); };
  return spoiled_ + static_cast<std::size_t>(std::count_if(live_.begin(), live_.end(), beside)) +
         static_cast<std::size_t>(std::count_if(gone_.begin(), gone_.end(), after));
}

}  // namespace parley::simulation
