#pragma once
/// The scratch memory of one call of a group (`group_call::scratch`). Its blocks lie in host memory, from the pool of this thread, or in
/// the memory of a device. They live as long as this object.
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <boost/container/small_vector.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace parley::ops {

class scratch_memory {
 public:
  /// `device`: null for host memory.
  std::span<std::byte> make(std::size_t bytes, runtime::memory_space* device) {
    if (device != nullptr) return device_blocks_.emplace_back(device->make(bytes))->bytes();
    return {static_cast<std::byte*>(host_blocks_.emplace_back(bytes).at), bytes};
  }

 private:
  struct host_block {
    explicit host_block(std::size_t size) : bytes(size), at(runtime::frame_pool::allocate(size)) {}
    host_block(host_block&& other) noexcept : bytes(other.bytes), at(std::exchange(other.at, nullptr)) {}
    host_block& operator=(host_block&&) = delete;
    ~host_block() {
      if (at != nullptr) runtime::frame_pool::release(at, bytes);
    }
    std::size_t bytes;
    void* at;
  };
  boost::container::small_vector<host_block, 2> host_blocks_;
  std::vector<std::unique_ptr<runtime::memory_space::block>> device_blocks_;
};

}  // namespace parley::ops
