#pragma once
/// Memory that a user has registered with an op, so that peers may put payloads into it, or get payloads from it.
///
///     registered_memory mine(net, bytes);          // from here on peers may be let in
///     memory_book of_edge;
///     of_edge.add(mine.region());                  // the book of an edge finds it by address
///     auto r = of_edge.find(buffer);               // null for memory that nobody has registered
///
/// The handle must outlive the calls that use the memory. Destroying the handle withdraws the memory. The constructor throws
/// `unavailable` with the link's reason.
///
/// A sender that was declared dead may in fact be alive, and may still write where it has a credit. So the memory is withdrawn before the
/// receive ends, for all edges that use it. If the transport cannot stop such a write, the write may land later, as long as the sender's
/// process lives. In this case `lost` returns true, and the memory must not be used for anything else until that process has ended. Memory
/// of the library, with an owner that was passed to `keep`, then stays allocated.
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
  /// For memory that no peer has a credit for.
  void withdraw() noexcept {
    if (where != state::exposed) return;
    where = state::withdrawn;
    net.withdraw(memory);
    owner.reset();
  }
  /// For memory for which a rank that was declared dead has a credit.
  void withdraw_from_the_dead() noexcept {
    if (where != state::exposed) return;
    where = net.withdraw(memory) == runtime::late_writes::fail ? state::withdrawn : state::lost;
    if (where == state::withdrawn) owner.reset();
  }

  runtime::link& net;
  runtime::exposed_memory memory;
  state where = state::exposed;
  std::shared_ptr<void> owner;  ///< keeps the memory allocated; null: the memory has another owner
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
  /// `owner` frees the memory. Lost memory is not freed before this rank ends, because a write may land even after the process that sent it
  /// has ended.
  void keep(std::shared_ptr<void> owner) noexcept {
    if (region_) region_->owner = std::move(owner);
  }
  std::span<std::byte> bytes() const noexcept { return region_ ? region_->memory.bytes : std::span<std::byte>(); }
  /// True if a rank that was declared dead may still write into the memory.
  bool lost() const noexcept { return region_ && region_->where == memory_region::state::lost; }
  const std::shared_ptr<memory_region>& region() const noexcept { return region_; }

 private:
  std::shared_ptr<memory_region> region_;
};

/// The registered memory that an edge knows.
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
