#pragma once
// An NCCL communicator that a program makes for itself, separate from parley's.
#include <parley/nccl_runtime.hpp>
#include <parley/parley.hpp>

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace examples {

/// NCCL as PyTorch uses it: a blocking communicator, and calls that are enqueued on a stream.
class blocking_nccl {
 public:
  parley::task<> meet(parley::rank* self) {
    parley::transports::nccl_id id;
    if (self->id() == 0) id = known().make_id().value();
    parley::transfer_options op{.name = "NCCL's id"};
    for (parley::rank_id r = 1; r < self->world_size(); ++r) op.edges.emplace_back(0, r);
    parley::transfer ids(*self, op);
    if (self->id() != 0) co_await ids.receive(id.bytes, {.from = 0});
    for (parley::rank_id r = 1; self->id() == 0 && r < self->world_size(); ++r) co_await ids.send(id.bytes, {.to = r});
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const auto connect = find<decltype(&ncclCommInitRank)>(library, "ncclCommInitRank");
    gather_ = find<decltype(&ncclAllGather)>(library, "ncclAllGather");
    scatter_ = find<decltype(&ncclReduceScatter)>(library, "ncclReduceScatter");
    reduce_ = find<decltype(&ncclAllReduce)>(library, "ncclAllReduce");
    error_ = find<decltype(&ncclCommGetAsyncError)>(library, "ncclCommGetAsyncError");
    abort_ = find<decltype(&ncclCommAbort)>(library, "ncclCommAbort");
    ncclUniqueId same{};
    static_assert(sizeof same == sizeof id.bytes);
    std::memcpy(&same, id.bytes.data(), sizeof same);
    check(connect(&world_, static_cast<int>(self->world_size()), same, static_cast<int>(self->id())),
          "ncclCommInitRank");
  }
  blocking_nccl() = default;
  blocking_nccl(const blocking_nccl&) = delete;
  blocking_nccl& operator=(const blocking_nccl&) = delete;
  ~blocking_nccl() {
    if (world_ != nullptr) abort_(world_);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, cudaStream_t s) {
    check(gather_(mine.data(), all.data(), mine.size(), ncclInt8, world_, s), "ncclAllGather");
  }
  /// Sums all ranks' `parts` (bf16). Each rank gets its `count` elements of the sum.
  void reduce_scatter(const std::uint16_t* parts, std::uint16_t* sum, std::size_t count, cudaStream_t s) {
    check(scatter_(parts, sum, count, ncclBfloat16, ncclSum, world_, s), "ncclReduceScatter");
  }
  /// Sums all ranks' floats, in place.
  void all_reduce(std::span<float> x, cudaStream_t s) {
    check(reduce_(x.data(), x.data(), x.size(), ncclFloat, ncclSum, world_, s), "ncclAllReduce");
  }
  /// Throws if NCCL has reported an asynchronous error.
  void check_state() const {
    ncclResult_t seen = ncclSuccess;
    check(error_(world_, &seen), "ncclCommGetAsyncError");
    check(seen, "a call that was enqueued");
  }

 private:
  static parley::transports::nccl_library& known() {
    const auto library = parley::transports::nccl_runtime();
    if (!library) parley::runtime::raise(library.reason());
    return **library;
  }
  template <class F>
  static F find(void* library, const char* name) {
    const auto found = library == nullptr ? nullptr : reinterpret_cast<F>(::dlsym(library, name));
    if (found == nullptr) parley::runtime::raise({parley::errc::unavailable, std::string("NCCL has no ") + name});
    return found;
  }
  static void check(ncclResult_t r, const char* what) {
    if (r != ncclSuccess)
      parley::runtime::raise(
          {parley::errc::device_failed, std::string(what) + ": NCCL's error " + std::to_string(static_cast<int>(r))});
  }
  decltype(&ncclAllGather) gather_ = nullptr;
  decltype(&ncclReduceScatter) scatter_ = nullptr;
  decltype(&ncclAllReduce) reduce_ = nullptr;
  decltype(&ncclCommGetAsyncError) error_ = nullptr;
  decltype(&ncclCommAbort) abort_ = nullptr;
  ncclComm_t world_ = nullptr;
};

}  // namespace examples
