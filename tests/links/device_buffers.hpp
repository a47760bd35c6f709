#pragma once
/// Lets programs that keep their bytes in host memory test a link with device buffers. The link below gets device memory for the payload
/// of each data message that is sent or fetched with a completion, for puts and gets, and for all exposed memory.
///
///     device_buffers wire(cuda_link, gpu, /*device=*/0);
///     wire.send(1, channel::data, header, host_bytes, &done);     // `cuda_link` gets a copy of them on the device
///     wire.refresh();                                             // copies to the program's memory what peers have put
///
/// It outlives the link below, because it owns that link's completions. It fills an abandoned buffer with 0xee.
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/link_over.hpp>

#include <parley/config.hpp>
#include <parley/runtime/wire/link.hpp>

#include <array>
#include <list>
#include <map>
#include <optional>

namespace parley::tests {

class device_buffers final : public link_over {
 public:
  using completion = runtime::completion;
  using remote_place = runtime::remote_place;

  device_buffers(link& below, fake_cuda& gpu, int device) : link_over(below), gpu_(gpu), device_(device) {
    for (const channel on : every_channel) lanes_[static_cast<std::size_t>(on)].emplace(*this);
  }

  /// Whether an abandoned buffer was written.
  bool wrote_late() const noexcept { return wrote_late_; }
  void refresh() noexcept {
    for (const exposed& e : exposed_) copy_out(e.there, e.here);
  }

  void listen(channel on, handler* to) override {
    lane& l = *lanes_[static_cast<std::size_t>(on)];
    l.to = to;
    below_.listen(on, to == nullptr ? nullptr : &l);
  }
  errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion* done) override {
    if (payload.empty() || done == nullptr || on == channel::control) return below_.send(to, on, header, payload, done);
    return with_copy_of(payload, {}, done, [&](std::span<std::byte> there, completion* moved) {
      return below_.send(to, on, header, there, moved);
    });
  }
  errc fetch(runtime::arrival&& message, std::span<std::byte> into, completion* done) override {
    if (into.empty() || done == nullptr) return below_.fetch(std::move(message), into, done);
    return with_copy_of(into, into, done, [&](std::span<std::byte> there, completion* moved) {
      return below_.fetch(std::move(message), there, moved);
    });
  }
  void cancel(completion& pending) override {
    if (moving* const m = find(pending)) return below_.cancel(*m);
    below_.cancel(pending);
  }
  void abandon(completion& pending) noexcept override {
    moving* const m = find(pending);
    if (m == nullptr) return below_.abandon(pending);
    below_.abandon(*m);
    m->abandoned = true;
    const auto seen = m->seen();
    std::fill(seen.begin(), seen.end(), held_afterwards);
  }
  runtime::result<> one_sided() const override { return below_.one_sided_devices(); }
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override {
    exposed_.push_back({memory, take(memory)});
    return below_.expose(exposed_.back().there.bytes().first(memory.size()));
  }
  /// Peers may still be copying, so the memory stays where it is.
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override { return below_.withdraw(memory); }
  errc put(rank_id to, const remote_place& at, std::span<const std::byte> data, completion* done) override {
    if (data.empty()) return below_.put(to, at, data, done);
    return with_copy_of(data, {}, done, [&](std::span<std::byte> there, completion* moved) {
      return below_.put(to, at, there, moved);
    });
  }
  errc get(rank_id from, const remote_place& at, std::span<std::byte> into, completion* done) override {
    if (into.empty()) return below_.get(from, at, into, done);
    return with_copy_of(into, into, done, [&](std::span<std::byte> there, completion* moved) {
      return below_.get(from, at, there, moved);
    });
  }
  errc fence(rank_id to, completion* done) override { return below_.fence(to, done); }

 private:
  static constexpr std::byte held_afterwards{0xee};

  // An operation whose buffer is on the device.
  struct moving final : completion {
    moving(device_buffers& o, std::size_t b, transports::cuda_memory t, std::span<std::byte> i, completion* d) noexcept
        : completion(&on_moved), of(o), bytes(b), there(std::move(t)), into(i), done(d) {}
    static void on_moved(completion& self, errc outcome) noexcept {
      auto& mine = static_cast<moving&>(self);
      completion* const told = mine.done;
      mine.of.finish(mine, outcome);
      told->on_end(*told, outcome);
    }
    std::span<std::byte> seen() noexcept { return of.shadow_of(there).first(bytes); }
    device_buffers& of;
    std::size_t bytes;
    transports::cuda_memory there;  // may be longer than the operation
    std::span<std::byte> into;      // the program's memory; empty if nothing is received
    completion* done;
    bool abandoned = false;
  };
  struct lane final : handler {
    explicit lane(device_buffers& o) noexcept : of(o) {}
    void on_arrival(runtime::arrival&& message) noexcept override {
      of.refresh();
      if (to != nullptr) to->on_arrival(std::move(message));
    }
    device_buffers& of;
    handler* to = nullptr;
  };
  struct exposed {
    std::span<std::byte> here;
    transports::cuda_memory there;
  };

  std::span<std::byte> shadow_of(const transports::cuda_memory& there) noexcept {
    return {gpu_.shadow(there.bytes().data()), there.bytes().size()};
  }
  // Reuses device memory. Freeing it would wait for all enqueued work and hide a link that does not wait.
  transports::cuda_memory take(std::span<const std::byte> bytes) {
    const auto kept = free_.lower_bound(bytes.size());
    transports::cuda_memory taken = kept == free_.end()
                                        ? transports::cuda_memory::on_device(gpu_, device_, bytes.size())
                                        : std::move(free_.extract(kept).mapped());
    std::copy(bytes.begin(), bytes.end(), shadow_of(taken).begin());
    return taken;
  }
  void copy_out(const transports::cuda_memory& there, std::span<std::byte> into) noexcept {
    const auto seen = shadow_of(there);
    std::copy(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(into.size()), into.begin());
  }
  template <class Start>
  errc with_copy_of(std::span<const std::byte> bytes, std::span<std::byte> into, completion* done, Start start) {
    moving& m = moving_.emplace_back(*this, bytes.size(), take(bytes), into, done);
    const errc started = start(m.there.bytes().first(bytes.size()), &m);
    if (started != errc::pending) finish(m, started);
    return started;
  }
  void finish(moving& m, errc outcome) noexcept {
    const auto is_other = [](std::byte b) { return b != held_afterwards; };
    const auto seen = m.seen();
    if (m.abandoned) {
      wrote_late_ = wrote_late_ || std::any_of(seen.begin(), seen.end(), is_other);
    } else if (outcome == errc::none) {
      copy_out(m.there, m.into);
    }
    free_.emplace(m.there.bytes().size(), std::move(m.there));
    moving_.remove_if([&m](const moving& each) { return &each == &m; });
  }
  moving* find(const completion& pending) noexcept {
    const auto at = std::find_if(moving_.begin(), moving_.end(), [&](const moving& m) { return m.done == &pending; });
    return at == moving_.end() ? nullptr : &*at;
  }
  fake_cuda& gpu_;
  int device_;
  std::array<std::optional<lane>, channels> lanes_;
  std::multimap<std::size_t, transports::cuda_memory> free_;  // by size
  std::list<moving> moving_;
  std::deque<exposed> exposed_;
  bool wrote_late_ = false;
};

}  // namespace parley::tests
