#pragma once
/// Sends device buffers over a link that moves only host memory, such as UCX between processes.
///
///     cuda_link wire(ucx, copies);                  // a rank uses it instead of `ucx`; its loop polls ucx and copies
///     wire.send(1, channel::data, header, device_bytes, &done);
///
/// Host buffers are passed to the link below. Device buffers travel in one of these planes:
/// - `staged`: a message from or into device memory goes through pinned host memory. A copy engine copies the payload down, the link
///   below sends it, and the receiver's copy engine copies it up. A config that cuts the payload into chunks overlaps the three steps.
/// - `cuda_ipc`: puts and gets of exposed device memory go from GPU to GPU, over an IPC handle in the key. The origin's copy engine copies,
///   or a kernel of the origin if the config chooses that (`runtime::device_copy`). The peer's processor and multiprocessors take no part.
///   If a stream of the peer waits for the buffer (`cuda_copies::wait_on`), the origin's stream sets the flag after the last put, so that
///   the peer's stream continues at once.
/// - `ucx`: if the link below can move device memory (`moves_devices`; UCX with its CUDA transports can), `send_device` and `fetch_device`
///   pass the device buffers to it.
/// - `nccl`: with `options::nccl`, both GPUs together can also make a get of device memory (`joint_get`, transports/nccl/nccl_pairs.hpp),
///   even if the memory cannot be exported.
///
/// If the driver refuses to export memory, this rank does not offer `put` and `get`, and reports the reason. Exposing memory still
/// succeeds, but puts and gets of it return `unavailable`. If a peer cannot import the memory, the rehearsals of `put` and `get` fail
/// there.
///
/// CUDA cannot revoke a mapping: a peer keeps memory mapped until its link ends, or until it unmaps the oldest of many mappings.
/// Withdrawing device memory therefore returns `may_land`: peers may still have copies in flight, and the memory must not be freed
/// before these have ended.
///
/// Keys come from other ranks and are checked. If a handle does not open any memory, the put fails. If the GPU fails, operations end with
/// `device_failed`. Destroy this link before the link below and before the copies.
#include <parley/cuda_copies.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/transports/nccl/nccl_pairs.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace parley::transports {

class cuda_link final : public runtime::link {
 public:
  struct options {
    nccl_library* nccl = nullptr;  ///< null: no NCCL, for the reason in `no_nccl`
    std::string no_nccl = "no NCCL was given to this rank's link";
    nccl_pairs::options pairs{};
    std::string no_ipc{};                                   ///< why this rank must not export memory; empty: it may
    std::size_t most_pinned_bytes = std::size_t{2} << 30U;  ///< limit of the pinned memory of messages in flight
  };
  cuda_link(runtime::link& below, cuda_copies& copies) : cuda_link(below, copies, options{}) {}
  cuda_link(runtime::link& below, cuda_copies& copies, options o);
  ~cuda_link() override;
  cuda_link(const cuda_link&) = delete;
  cuda_link& operator=(const cuda_link&) = delete;

  runtime::rank_id rank() const noexcept override { return below_.rank(); }
  runtime::rank_id world_size() const noexcept override { return below_.world_size(); }
  void listen(channel on, handler* to) override { below_.listen(on, to); }
  void on_failure(failure_handler* to) override { below_.on_failure(to); }
  runtime::errc send(runtime::rank_id to, channel on, std::span<const std::byte> header,
                     std::span<const std::byte> payload, runtime::completion* done) override;
  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  void cancel(runtime::completion& pending) override;
  void abandon(runtime::completion& pending) noexcept override;
  const counters& statistics() const noexcept override { return below_.statistics(); }
  runtime::result<> one_sided() const override { return below_.one_sided(); }
  /// The result of a test export of one byte in the constructor. If `options::no_ipc` is set, an error with that text.
  runtime::result<> one_sided_devices() const override { return ipc_; }
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override;
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override;
  void prepare(const runtime::remote_place& at) override;
  runtime::errc put(runtime::rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                    runtime::completion* done) override;
  runtime::errc get(runtime::rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                    runtime::completion* done) override;
  void set_flag(runtime::rank_id to, const runtime::remote_place& at, std::uint64_t flag,
                std::span<const std::byte> data) override;
  runtime::errc fence(runtime::rank_id to, runtime::completion* done) override;
  /// Plane `ucx`: passes device buffers to the link below once no kernel uses them any more.
  runtime::result<> moves_devices() const override { return below_.moves_devices(); }
  runtime::errc send_device(runtime::rank_id to, channel on, std::span<const std::byte> header,
                            std::span<const std::byte> payload, runtime::completion* done) override;
  runtime::errc fetch_device(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  runtime::result<> joint() const override;
  runtime::errc joint_get(runtime::rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                          runtime::completion* done) override;

  /// Poll it together with the copies. Null without NCCL.
  nccl_pairs* nccl() noexcept { return nccl_ ? &*nccl_ : nullptr; }
  const nccl_pairs* nccl() const noexcept { return nccl_ ? &*nccl_ : nullptr; }
  /// Ends the NCCL transfers with that peer. Needed because the link below notices a peer's death only if it has operations with that peer.
  void on_peer_failed(runtime::rank_id peer) noexcept;
  /// Ends all NCCL transfers, so that nothing in flight waits for another rank.
  void end_joint() noexcept { nccl_.reset(); }

  struct plane_counters {
    std::uint64_t staged = 0;  ///< messages that went through pinned memory
    std::uint64_t staged_bytes = 0;
    std::uint64_t ipc = 0;  ///< puts and gets from GPU to GPU
    std::uint64_t ipc_bytes = 0;
    std::uint64_t by_transport = 0;  ///< device messages that the link below moved directly
    std::uint64_t by_transport_bytes = 0;
    std::uint64_t flags_set = 0;  ///< flags that this rank's device has set for the devices of peers
    std::string ipc_refused;      ///< why memory could not be exported or imported, if that happened
  };
  const plane_counters& planes() const noexcept { return planes_; }

 private:
  void stop(runtime::completion& pending, void (runtime::link::*how)(runtime::completion&));
  struct shared;
  struct staging;
  struct handing;
  struct peer_copy;
  struct mapped {
    std::span<std::byte> all;
    std::uint64_t last_use;
  };
  struct waiting_fence {
    runtime::rank_id to = 0;
    std::uint64_t last_put = 0;
    runtime::completion* done = nullptr;
  };
  void release(const void*, bool) noexcept override {}  // arrivals belong to the link below
  bool on_device(const void* address) const noexcept;
  const exported_memory& exported_flags();
  std::span<std::byte> map(const cuda_ipc_handle& handle, runtime::errc& why);
  std::byte* reach(const runtime::remote_place& at, std::size_t bytes, runtime::errc& why);
  runtime::errc copy_peer(std::span<std::byte> to, std::span<const std::byte> from, runtime::rank_id put_to,
                          runtime::device_copy by, runtime::completion* done);
  runtime::errc hand_over(std::span<const std::byte> memory, runtime::completion* done,
                          std::function<runtime::errc(runtime::link& below, runtime::completion* done)> give);
  void look_at_fences();
  bool is_exposed(const nccl_pairs::place& at) const noexcept;

  runtime::link& below_;
  cuda_copies& copies_;
  std::shared_ptr<shared> shared_;
  std::map<cuda_ipc_handle, mapped> mapped_;
  std::uint64_t uses_of_mapped_ = 0;
  std::deque<std::pair<runtime::rank_id, std::uint64_t>> puts_;  // in flight: target rank and number of each put
  std::vector<waiting_fence> fences_;
  std::uint64_t last_put_ = 0;
  runtime::errc put_failed_ = runtime::errc::none;         // of the first failed put; stays: its device has failed
  std::map<std::uint64_t, std::span<std::byte>> exposed_;  // device memory, by number
  std::uint64_t last_exposed_ = 0;
  std::optional<exported_memory> flags_exported_;  // zeros: no flags were exported
  plane_counters planes_;
  std::string no_nccl_;
  runtime::result<> ipc_;
  std::optional<nccl_pairs> nccl_;
};

}  // namespace parley::transports
