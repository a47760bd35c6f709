#pragma once
/// Messages between the ranks of a job over UCX active messages: shared memory inside a host, TCP or RDMA across.
///
///     ucx_link wire({.rank = place.rank, .world_size = place.world_size});
///     auto addresses = exchange(wire.address());                     // the rendezvous does it
///     for (rank_id peer = 0; peer < place.world_size; ++peer) wire.connect(peer, addresses[peer]);
///     wire.listen(runtime::link::channel::control, &handler);
///     wire.send(1, runtime::link::channel::control, header, payload, &completion);
///     while (working) wire.poll();
///
/// The contracts are those of runtime/wire/link.hpp and runtime/time/poller.hpp. In addition:
///
/// - The link makes an endpoint at the first use of a peer, so that ranks that do not communicate share no resources.
///   A rank may send to itself.
/// - If header and payload of a message fit an `arrival`, the link itself sends it without an allocation or a copy. Other
///   messages use a record from a pool while they are in flight.
/// - If the receiver drops a large message, its send still ends with `none`, as in UCX: "accepted" does not mean "read".
/// - Payloads of 32 KiB (512 KiB if there are more ranks than cores) to 4 MiB bypass UCX between processes of one host
///   that may read each other's memory: the receiver's kernel copies them (lent_payloads.hpp). Their sends end when the
///   receiver has fetched or dropped them. UCX_TLS without `cma` switches this off.
/// - A peer fails when UCX reports it or when the program calls `give_up`. UCX reports a killed process on this host
///   within about a second (`options::keepalive_interval_ns`), but considers a zombie alive until its parent has waited
///   for it. UCX watches only peers that this rank has sent to or fetched from. All pending operations with a failed
///   peer end with `peer_failed`, then the failure handler is called, once; later sends return `peer_failed` at once.
/// - A new process may take the place of a failed one (`connect` again). Large messages and one-sided transfers name the
///   process that sent them, and the link drops late ones from an older process. Small messages name their session or
///   generation, which their readers check. The link accepts messages of a newer process before `connect` names it.
/// - The destructor spends up to `options::close_within_ns` on finishing sends, then closes without waiting for peers. It
///   calls completions that are still pending with `closed`. Arrivals that handlers kept must be destroyed before.
///
/// The user's own UCX_* environment variables take precedence over the link's choices (transports/ucx/ucx_worker.hpp).
/// Set-up faults and misuse throw `failure`. One thread only.
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/transports/ucx/ucx_worker.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::transports {

/// How puts and gets are done. `best`: by a network card if one reaches the peer's memory, otherwise as messages
/// (carried_memory.hpp). `by_ucx`: always by UCX, which may emulate them; for tests.
enum class transfer_way : std::uint8_t { best, by_ucx };

class ucx_link final : public runtime::link, public runtime::poller {
 public:
  struct options {
    runtime::rank_id rank = 0;
    runtime::rank_id world_size = 1;
    ucx_reach reach = ucx_reach::one_host;
    /// How often UCX checks whether a silent peer is alive; detection takes at most twice this.
    runtime::time_ns keepalive_interval_ns = 500'000'000;
    runtime::time_ns close_within_ns = 200'000'000;
    transfer_way transfers = transfer_way::best;
    ucx_memory_kinds memory = ucx_memory_kinds::host;
    std::uint32_t restarts =
        0;  ///< how many earlier processes held this rank's place before (runtime/wire/incarnations.hpp)
  };

  explicit ucx_link(const options& chosen);
  ~ucx_link() override;
  ucx_link(const ucx_link&) = delete;
  ucx_link& operator=(const ucx_link&) = delete;

  /// The bytes that other ranks pass to `connect`.
  std::vector<std::byte> address() const;
  /// True if these bytes are a complete, unchanged address of a link. A deliberately forged address can pass this check and
  /// make UCX end the process.
  static bool is_address(std::span<const std::byte> bytes);
  /// Sets the peer's address, which must come from an authenticated roster: UCX reads it without knowing its length.
  /// Throws `bad_argument` for a rank out of range, a second address of one rank, or bytes that are not an address. For a
  /// peer that `has_failed`: sets the address of the new process in its place, which must have a higher `restarts`.
  void connect(runtime::rank_id peer, std::span<const std::byte> address, std::uint32_t restarts = 0);
  /// True if the failure handler was called for the process that last held that rank's place.
  bool has_failed(runtime::rank_id peer) const noexcept;
  /// True if this link itself broke the connection to the peer, as `abandon` may have to. The peer's process may be healthy.
  bool has_cut(runtime::rank_id peer) const noexcept;
  /// Declares a peer dead before UCX does, for instance because a heartbeat or the launcher reported its death.
  void give_up(runtime::rank_id peer);
  /// `is_due(peer)` says whether a peer whose connection broke is about to report why. The link calls it for up to a second
  /// and fails the operations with that peer only then, so that their errors can include the reason.
  void ask_for_last_words(std::function<bool(runtime::rank_id)> is_due);
  /// `lives(peer)` says whether the peer's process may continue and still move data. `abandon` waits up to ten seconds for a
  /// peer that may; for all other peers a tenth of a second is enough.
  void ask_whether_living(std::function<bool(runtime::rank_id)> lives);
  /// The version and transports in use, for `parley doctor`.
  std::string description() const;

  // runtime::link
  runtime::rank_id rank() const noexcept override;
  runtime::rank_id world_size() const noexcept override;
  void listen(channel on, handler* to) override;
  void on_failure(failure_handler* to) override;
  /// `bad_argument` for a rank out of range or never connected, or a header longer than `max_header_bytes`.
  runtime::errc send(runtime::rank_id to, channel on, std::span<const std::byte> header,
                     std::span<const std::byte> payload, runtime::completion* done) override;
  /// `buffer_too_small` drops the message and writes nothing.
  runtime::errc fetch(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;
  void cancel(runtime::completion& pending) override;
  /// Breaks the connection to the peer.
  void abandon(runtime::completion& pending) noexcept override;
  const counters& statistics() const noexcept override;
  std::size_t short_bytes() const noexcept override;
  runtime::result<> one_sided() const override { return {}; }
  runtime::result<runtime::exposed_memory> expose(std::span<std::byte> memory) override;
  runtime::late_writes withdraw(const runtime::exposed_memory& memory) override;
  /// `put` and `get` return `bad_argument` for a rank out of range or never connected, or an invalid key or address.
  runtime::errc put(runtime::rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                    runtime::completion* done) override;
  runtime::errc get(runtime::rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                    runtime::completion* done) override;
  runtime::errc fence(runtime::rank_id to, runtime::completion* done) override;
  runtime::errc announce(runtime::rank_id to, channel on, std::span<const std::byte> header,
                         runtime::completion* done) override;

  /// Available if `options::memory` says so and UCX has CUDA transports. Device payloads always use the rendezvous protocol, so that
  /// the receiver's UCX writes them to its device.
  runtime::result<> moves_devices() const override;
  runtime::errc send_device(runtime::rank_id to, channel on, std::span<const std::byte> header,
                            std::span<const std::byte> payload, runtime::completion* done) override;
  runtime::errc fetch_device(runtime::arrival&& message, std::span<std::byte> into, runtime::completion* done) override;

  // runtime::poller
  bool poll() override;
  arm_state arm() override;
  int event_fd() const override;

 private:
  class state;
  void release(const void* held, bool remote) noexcept override;

  std::unique_ptr<state> state_;
};

}  // namespace parley::transports
