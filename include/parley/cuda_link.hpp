#pragma once
/// Device buffers over a link that moves host memory only, such as UCX between processes.
///
///     cuda_link wire(ucx, copies);                  // takes the place of `ucx` for a rank; `loop` has both ucx and copies
///     wire.send(1, channel::data, header, device_bytes, &done);
///
/// Buffers in host memory go straight to the link below. A message from or into device memory is staged through pinned host
/// memory (plane `staged`): down by a copy engine, across, up again; a config that cuts a payload into chunks overlaps the
/// three. Puts and gets of exposed device memory go from GPU to GPU by the origin's copy engine, or by a kernel of the origin's
/// where a config says so (`runtime::device_copy`), over an IPC handle in the key (plane `cuda_ipc`), and need neither the peer's
/// processor nor its multiprocessors. Behind the last put into a buffer that a stream of the peer's waits for
/// (`cuda_copies::wait_on`) the origin's stream sets its flag, so that the peer's goes on at once.
///
/// Where the link below can be given memory of devices (`moves_devices`, as UCX with its CUDA transports), `send_device` and
/// `fetch_device` do so (plane `ucx`).
///
/// With an NCCL (`options::nccl`), device memory can also be got by both GPUs (`joint_get`, transports/nccl/nccl_pairs.hpp), where
/// memory cannot be exported, too.
///
/// Where the driver refuses to export memory, `put` and `get` are no configs of this rank's, with the reason. Exposing memory still
/// succeeds then, and puts and gets of it answer `unavailable`; where a peer cannot import it their rehearsals fail. What a peer
/// has mapped stays mapped there, until that peer's link ends or it is the oldest of many, because CUDA cannot revoke it:
/// withdrawn memory answers `may_land` while peers may have copies under way, and must not be freed before they have ended.
/// Keys are remote input: they are checked, and a handle that opens nothing fails the put. When the GPU fails, operations end
/// with `device_failed`. Destroy it before the link below and the copies.
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
    nccl_library* nccl = nullptr;  ///< null: why there is none stands in `no_nccl`
    std::string no_nccl = "no NCCL was given to this rank's link";
    nccl_pairs::options pairs{};
    std::string no_ipc{};  ///< why this rank's memory is not to be exported; empty: it is
    std::size_t most_pinned_bytes = std::size_t{2} << 30U;  ///< for messages on their way
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
  /// What came of exporting a byte, when it was made.
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
  /// Plane `ucx`: buffers on the device go straight to the link below, once no kernel uses them any more.
  runtime::result<> moves_devices() const override { return below_.moves_devices(); }
  runtime::errc send_device(runtime::rank_id to, channel on, std::span<const std::byte> header,
                            std::span<const std::byte> payload, runtime::completion* done) override;
  runtime::errc fetch_device(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  runtime::result<> joint() const override;
  runtime::errc joint_get(runtime::rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                          runtime::completion* done) override;

  /// To be polled beside the copies; null without NCCL.
  nccl_pairs* nccl() noexcept { return nccl_ ? &*nccl_ : nullptr; }
  const nccl_pairs* nccl() const noexcept { return nccl_ ? &*nccl_ : nullptr; }
  /// What its GPU does for that peer ends: the link below notices a death only of peers that it has operations with.
  void on_peer_failed(runtime::rank_id peer) noexcept;
  /// Ends what both GPUs do together, so that nothing that is under way waits for another rank any more.
  void end_joint() noexcept { nccl_.reset(); }

  struct plane_counters {
    std::uint64_t staged = 0;  ///< messages that went through pinned memory
    std::uint64_t staged_bytes = 0;
    std::uint64_t ipc = 0;  ///< puts and gets from GPU to GPU
    std::uint64_t ipc_bytes = 0;
    std::uint64_t by_transport = 0;  ///< messages that the link below moved by itself
    std::uint64_t by_transport_bytes = 0;
    std::uint64_t flags_set = 0;  ///< of peers, which their devices see without their processors
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
  std::deque<std::pair<runtime::rank_id, std::uint64_t>> puts_;  // under way: to whom, and their numbers
  std::vector<waiting_fence> fences_;
  std::uint64_t last_put_ = 0;
  runtime::errc put_failed_ = runtime::errc::none;         // how; with its device, as a copy fails alone by that
  std::map<std::uint64_t, std::span<std::byte>> exposed_;  // device memory, by number
  std::uint64_t last_exposed_ = 0;
  std::optional<exported_memory> flags_exported_;  // zeros where there are none
  plane_counters planes_;
  std::string no_nccl_;
  runtime::result<> ipc_;
  std::optional<nccl_pairs> nccl_;
};

}  // namespace parley::transports
