#pragma once
/// Memory that a user has registered with an op, so that its messages may be put there or got from there.
///
///     registered_memory mine(net, bytes);          // from here on peers may be let in
///     edge_book.add(mine);                         // the book of an edge finds it by address
///     memory_region* r = edge_book.find(buffer);   // null for memory that nobody has registered
///
/// The handle must outlive the calls that use the memory; destroying it withdraws the memory. Making one throws
/// `unavailable` with the link's reason.
///
/// A sender that is only declared dead may still write where it has a credit. Then the memory is withdrawn before the
/// receive ends, for all who use it. Where the transport cannot stop such a write it may land later, for as
/// long as that process lives: `lost` says so, and the memory must not be used for anything else until that process has ended.
/// What the library has made for itself and been given to `keep` stays then.
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace parley::actors {

/// One piece of exposed memory, shared by the handle and the edges that know it.
struct memory_region {
  enum class state : std::uint8_t { exposed, withdrawn, lost };
  memory_region(runtime::link& n, runtime::exposed_memory m) noexcept : net(n), memory(std::move(m)) {}

  bool contains(std::span<const std::byte> part) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory.bytes.data());
    const auto at = reinterpret_cast<std::uintptr_t>(part.data());
    return where == state::exposed && at >= begin && part.size() <= memory.bytes.size() &&
           at - begin <= memory.bytes.size() - part.size();
  }
  /// Nobody has a credit for it.
  void withdraw() noexcept {
    if (where != state::exposed) return;
    where = state::withdrawn;
    net.withdraw(memory);
    owner.reset();
  }
  /// Someone who was declared dead has a credit for it.
  void withdraw_from_the_dead() noexcept {
    if (where != state::exposed) return;
    where = net.withdraw(memory) == runtime::late_writes::fail ? state::withdrawn : state::lost;
    if (where == state::withdrawn) owner.reset();
  }

  runtime::link& net;
  runtime::exposed_memory memory;
  state where = state::exposed;
  std::shared_ptr<void> owner;  ///< of the memory, if somebody has said whose it is
};

class [[nodiscard]] registered_memory {
 public:
  /// Registers nothing.
  registered_memory() noexcept = default;
  registered_memory(runtime::link& net, std::span<std::byte> bytes)
      : region_(std::make_shared<memory_region>(net, net.expose(bytes).value())) {}
  registered_memory(registered_memory&&) noexcept = default;
  registered_memory& operator=(registered_memory&& other) noexcept {
    if (region_) region_->withdraw();
    region_ = std::move(other.region_);
    return *this;
  }
  ~registered_memory() {
    if (region_) region_->withdraw();
  }

  explicit operator bool() const noexcept { return region_ != nullptr; }
  /// `owner` frees the memory: where it is lost not before this rank ends, as what a process has sent off may land after its end.
  void keep(std::shared_ptr<void> owner) noexcept {
    if (region_) region_->owner = std::move(owner);
  }
  std::span<std::byte> bytes() const noexcept { return region_ ? region_->memory.bytes : std::span<std::byte>(); }
  /// Whether a rank that was declared dead may still write into it.
  bool lost() const noexcept { return region_ && region_->where == memory_region::state::lost; }
  const std::shared_ptr<memory_region>& region() const noexcept { return region_; }

 private:
  std::shared_ptr<memory_region> region_;
};

/// What an edge knows of registered memory.
class memory_book {
 public:
  void add(const std::shared_ptr<memory_region>& region) {
    std::erase_if(regions_, [](const auto& r) { return r->where != memory_region::state::exposed; });
    if (region) regions_.push_back(region);
  }
  std::shared_ptr<memory_region> find(std::span<const std::byte> part) const noexcept {
    for (const auto& r : regions_) {
      if (r->contains(part)) return r;
    }
    return nullptr;
  }

 private:
  std::vector<std::shared_ptr<memory_region>> regions_;
};

}  // namespace parley::actors
