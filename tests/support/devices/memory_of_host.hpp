#pragma once
/// A space of host memory for tests that allocate its blocks in their own way:
///
///     struct counting final : memory_of_host {
///       std::unique_ptr<block> make(std::size_t bytes) override { … }
///     };
#include <parley/runtime/dataflow/memory_space.hpp>

#include <cstddef>
#include <span>

namespace parley::tests {

class memory_of_host : public runtime::memory_space {
 public:
  runtime::task<> copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    return runtime::host_memory().copy(to, from);
  }
  void gather(std::span<std::byte> packed, const runtime::memory_pieces& pieces, runtime::device_stream s) override {
    runtime::host_memory().gather(packed, pieces, s);
  }
  void scatter(const runtime::memory_pieces& pieces, std::span<const std::byte> packed,
               runtime::device_stream s) override {
    runtime::host_memory().scatter(pieces, packed, s);
  }

 protected:
  ~memory_of_host() = default;
};

}  // namespace parley::tests
