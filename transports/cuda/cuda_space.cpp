#include <parley/cuda_space.hpp>

#include <algorithm>

namespace parley::transports {

using runtime::errc;

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
  const auto [first, last] = kept_->equal_range(bytes);
  const auto free = std::find_if(first, last, [this](const auto& k) { return !copies_.busy(k.second.bytes()); });
  if (free != last) return std::make_unique<device_block>(std::move(kept_->extract(free).mapped()), kept_);
  return std::make_unique<device_block>(cuda_memory::on_device(copies_.driver(), copies_.device(), bytes), kept_);
}

runtime::task<> cuda_space::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (from.empty()) co_return;
  auto ended = co_await copied(copies_, to, from);
  ended.value();
}

// Blocks until one copy has ended. The copy waits for no kernel.
void cuda_space::prepare(runtime::memory_pieces& pieces) {
  if (pieces.offsets.empty()) return;
  const auto from = std::as_bytes(std::span(pieces.offsets));
  std::shared_ptr<block> list = make(from.size());
  struct end final : runtime::completion {
    end() noexcept : completion(&on_over) {}
    static void on_over(completion& self, errc how) noexcept { static_cast<end&>(self).outcome = how; }
    errc outcome = errc::pending;
  } over;
  const errc started = copies_.copy(list->bytes(), from, &over);
  if (started != errc::pending) over.outcome = started;
  while (over.outcome == errc::pending) copies_.poll();
  copies_.in_words(over.outcome).value();
  const auto* const there = reinterpret_cast<const std::uint64_t*>(list->bytes().data());
  pieces.offsets_there = {std::move(list), there};
}

void cuda_space::gather(std::span<std::byte> packed, const runtime::memory_pieces& pieces, runtime::device_stream s) {
  auto& gpu = copies_.driver();
  copies_.in_words(gpu.move_pieces(packed.data(), pieces, pieces_way::gather, static_cast<cuda_stream>(s))).value();
}

void cuda_space::scatter(const runtime::memory_pieces& pieces, std::span<const std::byte> packed,
                         runtime::device_stream s) {
  auto& gpu = copies_.driver();
  auto* const from = const_cast<std::byte*>(packed.data());  // only read
  copies_.in_words(gpu.move_pieces(from, pieces, pieces_way::scatter, static_cast<cuda_stream>(s))).value();
}

void cuda_space::behind_own(std::span<const std::byte> written, std::span<const std::byte> read) {
  after(written, copies_.prompt());
  after(read, copies_.prompt());
}

void cuda_space::add(std::span<std::byte> into, std::span<const std::byte> from, runtime::summand of) {
  if (from.empty()) return;
  copies_.in_words(copies_.driver().add(into.data(), from.data(), from.size(), of, copies_.prompt())).value();
  behind_own(into, from);
}

void cuda_space::assign(std::span<std::byte> to, std::span<const std::byte> from) {
  if (from.empty()) return;
  copies_.in_words(copies_.driver().copy(to.data(), from.data(), from.size(), copies_.prompt())).value();
  behind_own(to, from);
}

std::string cuda_space::words_of(errc outcome) const {
  if (outcome == errc::device_failed && copies_.driver().fault().empty()) return {};  // another rank's device failed
  const auto said = copies_.in_words(outcome);
  return said ? std::string() : said.reason().text();
}

void cuda_space::after(std::span<const std::byte> memory, runtime::device_stream stream) {
  copies_.in_words(copies_.after(memory, static_cast<cuda_stream>(stream))).value();
}

runtime::device_moment cuda_space::moment_of(runtime::device_stream stream) {
  return copies_.moment_of(static_cast<cuda_stream>(stream));
}

void cuda_space::wait_for(const runtime::device_moment& earlier, runtime::device_stream stream) {
  const auto event = std::static_pointer_cast<const cuda_event>(earlier);
  copies_.in_words(copies_.order(static_cast<cuda_stream>(stream), event)).value();
}

void cuda_space::wait_on(std::span<const std::byte> memory, runtime::device_stream stream) {
  copies_.in_words(copies_.wait_on(memory, static_cast<cuda_stream>(stream))).value();
}

runtime::task<> cuda_space::settled(std::span<const std::byte> memory) {
  auto ended =
      co_await device_step(copies_, [this, memory](runtime::completion* done) { return copies_.settle(memory, done); });
  ended.value();
}

}  // namespace parley::transports
