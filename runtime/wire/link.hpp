#pragma once
/// What the runtime needs from a transport: messages between ranks. One message has a small header and a payload of any
/// length. UCX active messages implement it, and so do the simulator's virtual links.
///
///     link.listen(link::channel::data, handler);
///     errc started = link.send(to, link::channel::data, header, payload, &completion);
///     // handler.on_arrival(message): read message.header(), then fetch(std::move(message), buffer, completion)
///
/// Everything happens on the rank's own thread. Handlers and completions run from `poll`, never inside a transport's
/// callback, and may start further operations. Messages between two ranks may overtake one another. A message that was
/// accepted arrives at most once; if the peer fails, every pending completion ends with `peer_failed`.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace parley::runtime {

class link;

/// Called once when an operation that answered `pending` has ended. Must stay where it is until then.
struct completion {
  using function = void (*)(completion& self, errc outcome) noexcept;
  explicit completion(function f) noexcept : on_end(f) {}
  function on_end;
};

/// One message that has come in. Move-only: whoever holds it may fetch its payload or drop it.
class arrival {
 public:
  static constexpr std::size_t inline_bytes = 192;

  arrival() noexcept = default;
  arrival(arrival&& other) noexcept { take(other); }
  arrival& operator=(arrival&& other) noexcept {
    if (this != &other) {
      drop();
      take(other);
    }
    return *this;
  }
  arrival(const arrival&) = delete;
  arrival& operator=(const arrival&) = delete;
  ~arrival() { drop(); }

  std::span<const std::byte> header() const noexcept { return {bytes_.data(), header_size_}; }
  /// Bytes of payload, wherever they are.
  std::uint64_t length() const noexcept { return length_; }
  /// Whether the payload is still with the sender, so that only `link::fetch` can bring it.
  bool remote() const noexcept { return remote_; }
  /// The payload where it is already here; empty when `remote()`.
  std::span<const std::byte> payload() const noexcept {
    if (remote_) return {};
    if (held_ != nullptr) return {static_cast<const std::byte*>(held_), static_cast<std::size_t>(length_)};
    return {bytes_.data() + header_size_, static_cast<std::size_t>(length_)};
  }

  // For transports: `held` is what `link::release` gets when the message is dropped.
  arrival(link* owner, std::span<const std::byte> header, std::uint64_t length, const void* held, bool remote) noexcept
      : owner_(owner), held_(held), length_(length), header_size_(static_cast<std::uint8_t>(header.size())),
        remote_(remote) {
    if (!header.empty()) std::memcpy(bytes_.data(), header.data(), header.size());
  }
  /// For a payload that is small enough to be copied: header and payload together fit `inline_bytes`.
  arrival(std::span<const std::byte> header, std::span<const std::byte> payload) noexcept
      : length_(payload.size()), header_size_(static_cast<std::uint8_t>(header.size())) {
    if (!header.empty()) std::memcpy(bytes_.data(), header.data(), header.size());
    if (!payload.empty()) std::memcpy(bytes_.data() + header.size(), payload.data(), payload.size());
  }
  /// Gives up what is held without dropping it: the transport takes it over.
  const void* surrender() noexcept { return std::exchange(held_, nullptr); }

 private:
  inline void drop() noexcept;
  void take(arrival& other) noexcept {
    owner_ = other.owner_;
    held_ = std::exchange(other.held_, nullptr);
    length_ = other.length_;
    header_size_ = other.header_size_;
    remote_ = other.remote_;
    const std::size_t used = header_size_ + (held_ == nullptr && !remote_ ? static_cast<std::size_t>(length_) : 0);
    std::memcpy(bytes_.data(), other.bytes_.data(), used < inline_bytes ? used : inline_bytes);
    other.length_ = 0;
  }

  link* owner_ = nullptr;
  const void* held_ = nullptr;
  std::uint64_t length_ = 0;
  std::uint8_t header_size_ = 0;
  bool remote_ = false;
  std::array<std::byte, inline_bytes> bytes_;
};

/// Memory of this rank that peers may write and read without asking (`link::expose`).
struct exposed_memory {
  std::uint64_t number = 0;  ///< the link's own name for it
  std::span<std::byte> bytes;
  std::vector<std::byte> key;  ///< what a peer needs besides an address; to be sent over the control plane only
};

/// How a GPU is to copy, where one does.
struct device_copy {
  /// By a kernel of so many blocks, which takes as many multiprocessors; 0: by a copy engine.
  std::uint32_t kernel_blocks = 0;
  /// Over so many streams, as far as the rank has them; 0: as the rank does of itself.
  std::uint32_t streams = 0;
  friend bool operator==(const device_copy&, const device_copy&) = default;
};

/// A place in a peer's exposed memory, and how a GPU is to get there. The key is remote input: the link checks what it can and caps its
/// length.
struct remote_place {
  std::span<const std::byte> key;
  std::uint64_t address = 0;
  device_copy by{};
};

/// What becomes of writes that are still under way when memory is withdrawn.
enum class late_writes : std::uint8_t {
  fail,      ///< they fail at their origin and change nothing
  may_land,  ///< the transport cannot stop them
};

class link {
 public:
  /// Which handler takes a message on the other side.
  enum class channel : std::uint8_t {
    control,
    data,
    transfers,  ///< a link's own, where it carries puts and gets by messages
    devices,    ///< of a link over this one, between the GPUs of both ranks
    loans,      ///< a link's own, where it lends large payloads (transports/ucx/lent_payloads.hpp)
  };
  static constexpr std::size_t channels = 5;
  static constexpr std::array every_channel{channel::control, channel::data, channel::transfers, channel::devices,
                                            channel::loans};
  static constexpr std::size_t max_header_bytes = 64;

  class handler {
   public:
    /// Called from `poll`. The message may be moved out and kept; one that is left is dropped.
    virtual void on_arrival(arrival&& message) noexcept = 0;

   protected:
    ~handler() = default;
  };
  class failure_handler {
   public:
    /// Called once per peer, from `poll`, when the transport has given it up.
    virtual void on_peer_failed(rank_id peer) noexcept = 0;

   protected:
    ~failure_handler() = default;
  };

  /// What has passed, for `--json`, tests and benchmarks.
  struct counters {
    std::uint64_t sent[channels]{};
    std::uint64_t received[channels]{};
    std::uint64_t payload_bytes_sent = 0;
    std::uint64_t copied_bytes = 0;  ///< payload bytes that were copied after they had arrived
  };

  virtual ~link() = default;
  virtual rank_id rank() const noexcept = 0;
  virtual rank_id world_size() const noexcept = 0;
  /// Whether that rank is in this process, so that each can follow the other's addresses.
  virtual bool shares_process_with(rank_id) const noexcept { return false; }

  /// Handlers must outlive the link or be replaced by nullptr; messages that come before the first handler are kept.
  virtual void listen(channel on, handler* to) = 0;
  virtual void on_failure(failure_handler* to) = 0;

  /// Starts a send. The header (at most `max_header_bytes`) is copied before it returns. Answers `none` when the payload
  /// may be reused at once, `pending` when `done` will be called (the payload must stay until then), or what went wrong.
  /// Without `done` the payload is copied where needed and the outcome is not reported.
  virtual errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                    completion* done) = 0;
  /// Up to how long a payload is better sent without `done`: it travels inside its message, or a copy of it costs less than a wait.
  virtual std::size_t short_bytes() const noexcept { return arrival::inline_bytes - max_header_bytes; }

  /// Brings the payload of `message` into `into`, which holds at least `message.length()` bytes. Answers as `send` does, and
  /// never `pending` unless the message is `remote()` or `into` lies on a device.
  virtual errc fetch(arrival&& message, std::span<std::byte> into, completion* done) = 0;

  /// Asks for a pending operation to end early. Its completion is still called, possibly much later and possibly with
  /// success; the buffer is in use until then.
  virtual void cancel(completion& pending) = 0;

  /// The buffer of a pending operation is about to go, with the frame of whoever started it: once this returns, the link
  /// neither reads nor writes it. That may cost the connection to the peer. Its completion is still called.
  virtual void abandon(completion& pending) noexcept { cancel(pending); }

  virtual const counters& statistics() const noexcept = 0;

  /// Of a message that makes a link use every way that it has of sending one: UCX wires its lanes at the first message of each kind,
  /// which rehearsals are for. The same on all ranks.
  virtual std::size_t wiring_bytes() const noexcept { return 300'000; }

  // One-sided transfers. A link without them says why, and its other functions here are never called.

  static constexpr std::size_t max_remote_key_bytes = 1024;
  virtual result<> one_sided() const { return error{errc::unavailable, "this link has no one-sided transfers"}; }
  /// Whether they go from device to device where memory lies on devices; an error says why not.
  virtual result<> one_sided_devices() const { return one_sided(); }
  /// Makes memory reachable until it is withdrawn.
  virtual result<exposed_memory> expose(std::span<std::byte> memory);
  virtual late_writes withdraw(const exposed_memory& memory);
  /// A put or get there may come: what takes long and has to be done once for that memory is best done now.
  virtual void prepare(const remote_place&) {}
  /// Starts a write into a peer's memory; answers as `send` does. When it has ended the data may be reused, and may be seen
  /// by the peer or not: only a fence makes sure.
  virtual errc put(rank_id to, const remote_place& at, std::span<const std::byte> data, completion* done);
  /// Starts a read of a peer's memory; answers as `fetch` does.
  virtual errc get(rank_id from, const remote_place& at, std::span<std::byte> into, completion* done);
  /// Where devices can: once the puts of `data` that were started have landed, the peer's device sees so by `flag`, which came with
  /// the key of its memory, and no processor has a part in that. It may do nothing: a fence and a message are on their way as well.
  virtual void set_flag(rank_id /*to*/, const remote_place&, std::uint64_t /*flag*/,
                        std::span<const std::byte> /*data*/) {}
  /// Ends once all puts that were started towards `to` before it are in its memory, or too late: what was withdrawn there takes nothing in.
  /// If it fails, none is known to be there; where one was refused, it and all that follow fail until the peer is another process;
  /// with `device_failed` where it is this rank's own device that did not do them.
  virtual errc fence(rank_id to, completion* done);
  /// A fence that takes a message along, without a payload: once the puts are there the peer's link gives `header` to its handler
  /// on `on`, and does not wait until this rank has heard of that. If it fails the peer sees nothing of it. `unavailable` where
  /// the link cannot: fence, and send it then.
  virtual errc announce(rank_id /*to*/, channel /*on*/, std::span<const std::byte> /*header*/, completion* /*done*/) {
    return errc::unavailable;
  }

  // Payloads that lie on a device, for transports that move them by themselves.

  /// Whether it is one; an error says why not.
  virtual result<> moves_devices() const {
    return error{errc::unavailable, "this link's transport moves host memory alone"};
  }
  /// As `send`, with a payload on a device, which is not copied into host memory first; `done` is given.
  virtual errc send_device(rank_id /*to*/, channel, std::span<const std::byte> /*header*/,
                           std::span<const std::byte> /*payload*/, completion* /*done*/) {
    return errc::unavailable;
  }
  /// As `fetch`, of a message that was sent so, into a buffer on a device.
  virtual errc fetch_device(arrival&&, std::span<std::byte> /*into*/, completion* /*done*/) {
    return errc::unavailable;
  }

  /// Whether there are reads in which the devices of both ranks take part, as in NCCL, whose receive needs a send.
  virtual result<> joint() const { return error{errc::unavailable, "this link has no transfers by both devices"}; }
  /// A `get` of that kind; it needs the other rank to poll. One that has begun cannot be taken back: cancelling it costs all
  /// that are under way between the two, which end with an error.
  virtual errc joint_get(rank_id from, const remote_place& at, std::span<std::byte> into, completion* done);

 private:
  friend class arrival;
  /// Drops a payload that nobody fetched.
  virtual void release(const void* held, bool remote) noexcept = 0;
};

inline result<exposed_memory> link::expose(std::span<std::byte>) { return one_sided().reason(); }
inline late_writes link::withdraw(const exposed_memory&) { return late_writes::fail; }
inline errc link::put(rank_id, const remote_place&, std::span<const std::byte>, completion*) {
  return errc::unavailable;
}
inline errc link::get(rank_id, const remote_place&, std::span<std::byte>, completion*) { return errc::unavailable; }
inline errc link::fence(rank_id, completion*) { return errc::unavailable; }
inline errc link::joint_get(rank_id, const remote_place&, std::span<std::byte>, completion*) {
  return errc::unavailable;
}

inline void arrival::drop() noexcept {
  if (held_ != nullptr) owner_->release(std::exchange(held_, nullptr), remote_);
}

}  // namespace parley::runtime
