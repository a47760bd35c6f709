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
/// The contracts are those of runtime/wire/link.hpp and runtime/time/poller.hpp. What is particular here:
///
/// - Endpoints are made at the first use of a peer, so that ranks that have nothing to say to each other share nothing.
///   A rank may send to itself.
/// - A message whose header and payload fit an `arrival` leaves without an allocation or a copy here.
///   Others need a record from a pool while they are on their way.
/// - A large message that the receiver drops ends with `none` at its sender, as UCX has it: "accepted" is not "read".
/// - Payloads of 32 KiB (512 KiB where there are more ranks than cores) to 4 MiB do not go through UCX between processes of one host that may read each other's memory: the receiver's
///   kernel copies them (lent_payloads.hpp). Their sends end when they are fetched or dropped. UCX_TLS without `cma` switches that off.
/// - A peer fails when UCX says so (a killed neighbour on this host within about a second, see
///   `options::keepalive_interval_ns`; a zombie counts as alive until its parent has waited for it) or when the program
///   calls `give_up`. UCX watches only peers that this rank has sent to or fetched from. All pending operations with it
///   end with `peer_failed`, then the failure handler is told, once; later sends to it answer `peer_failed` at once.
/// - A new process may take the place of one that has failed (`connect` again). Large messages and one-sided transfers name the
///   process that sent them, and what comes late of an older one is dropped; small messages name their session or generation,
///   which their readers check. What a newer process sends before `connect` knows of it is taken in.
/// - The destructor tries for `options::close_within_ns` to bring out what was sent, then closes without waiting for
///   anybody. Completions that are still pending are called with `closed` from it; kept arrivals must be gone before.
///
/// The user's own UCX_* environment variables win over what the link would choose (see transports/ucx/ucx_worker.hpp).
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

/// How puts and gets travel: a card that reaches the peer's memory does them, where there is one, or messages carry them. UCX's
/// own emulation is there for tests.
enum class transfer_way : std::uint8_t { best, by_ucx };

class ucx_link final : public runtime::link, public runtime::poller {
 public:
  struct options {
    runtime::rank_id rank = 0;
    runtime::rank_id world_size = 1;
    ucx_reach reach = ucx_reach::one_host;
    /// How often UCX asks whether a silent peer still lives; the detection time is at most twice this.
    runtime::time_ns keepalive_interval_ns = 500'000'000;
    runtime::time_ns close_within_ns = 200'000'000;
    transfer_way transfers = transfer_way::best;
    ucx_memory_kinds memory = ucx_memory_kinds::host;
    std::uint32_t restarts =
        0;  ///< how many processes have been in this rank's place before (runtime/wire/incarnations.hpp)
  };

  explicit ucx_link(const options& chosen);
  ~ucx_link() override;
  ucx_link(const ucx_link&) = delete;
  ucx_link& operator=(const ucx_link&) = delete;

  /// What the other ranks give to `connect`.
  std::vector<std::byte> address() const;
  /// Whether a link may have given these bytes as its address: nothing is missing, and none has changed. Whoever forges one on
  /// purpose can make this true, and UCX end the process.
  static bool is_address(std::span<const std::byte> bytes);
  /// Names the peer's address, which must come from an authenticated roster: UCX reads it without knowing its length.
  /// Throws `bad_argument` for a rank out of range, a second address of one rank, or bytes that are no address. Of a peer
  /// that `has_failed`: the address of the new process in its place, which has to be newer.
  void connect(runtime::rank_id peer, std::span<const std::byte> address, std::uint32_t restarts = 0);
  /// Whether the failure handler has been told of the process in that place.
  bool has_failed(runtime::rank_id peer) const noexcept;
  /// Whether this link has broken the connection to it itself, as `abandon` may have to: the process there may be as good as ever.
  bool has_cut(runtime::rank_id peer) const noexcept;
  /// Declares a peer dead that UCX has not given up yet: a heartbeat or the launcher knows more.
  void give_up(runtime::rank_id peer);
  /// Whether a peer, whose connection broke, is about to say why. The link asks for up to a second, and fails what goes on with that peer
  /// only then, so that those calls can say it, too.
  void ask_for_last_words(std::function<bool(runtime::rank_id)> is_due);
  /// The version and transports in use, for `parley doctor`.
  std::string description() const;

  // runtime::link
  runtime::rank_id rank() const noexcept override;
  runtime::rank_id world_size() const noexcept override;
  void listen(channel on, handler* to) override;
  void on_failure(failure_handler* to) override;
  /// `bad_argument` for a rank out of range or never connected, or a header that is too long.
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
  /// `bad_argument` for a rank out of range or never connected, or a key that is none. The same for `get`.
  runtime::errc put(runtime::rank_id to, const runtime::remote_place& at, std::span<const std::byte> data,
                    runtime::completion* done) override;
  runtime::errc get(runtime::rank_id from, const runtime::remote_place& at, std::span<std::byte> into,
                    runtime::completion* done) override;
  runtime::errc fence(runtime::rank_id to, runtime::completion* done) override;
  runtime::errc announce(runtime::rank_id to, channel on, std::span<const std::byte> header,
                         runtime::completion* done) override;

  /// Where the options say so and UCX has CUDA transports. Always by rendezvous, so that the receiver's UCX brings it to its device.
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
