#pragma once
/// The runtime's interface to a transport: messages between ranks. A message has a small header and a payload of any
/// length. UCX active messages implement it, and so do the simulator's virtual links.
///
///     link.listen(link::channel::data, handler);
///     errc started = link.send(to, link::channel::data, header, payload, &completion);
///     // handler.on_arrival(message): read message.header(), then fetch(std::move(message), buffer, completion)
///
/// Everything happens on the rank's own thread. Handlers and completions run from `poll`, never inside a transport's callback, and may
/// start further operations. Messages between two ranks may overtake one another. An accepted message arrives at most once. If the peer
/// fails, every pending completion ends with `peer_failed`.
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

/// Called once when an operation that returned `pending` has ended. Must not move until then.
struct completion {
  using function = void (*)(completion& self, errc outcome) noexcept;
  explicit completion(function f) noexcept : on_end(f) {}
  function on_end;
};

/// A message that has arrived. Move-only: its holder may fetch its payload or drop it.
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
  /// Length of the payload, wherever the payload is.
  std::uint64_t length() const noexcept { return length_; }
  /// True if the payload is still at the sender, so that only `link::fetch` can get it.
  bool remote() const noexcept { return remote_; }
  /// The payload if it is already here; empty when `remote()`.
  std::span<const std::byte> payload() const noexcept {
    if (remote_) return {};
    if (held_ != nullptr) return {static_cast<const std::byte*>(held_), static_cast<std::size_t>(length_)};
    return {bytes_.data() + header_size_, static_cast<std::size_t>(length_)};
  }

  // For transports: `link::release` receives `held` when the message is dropped.
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
  /// Returns `held` without dropping the message, because the transport takes `held` over.
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
  std::vector<std::byte> key;  ///< a peer needs it, with an address; send it only over the control plane
};

/// The way in which a GPU copies, if one copies.
struct device_copy {
  /// Number of blocks of a copying kernel, which occupies this many multiprocessors; 0: a copy engine copies.
  std::uint32_t kernel_blocks = 0;
  /// Number of streams, as far as the rank has them; 0: the rank's usual number.
  std::uint32_t streams = 0;
  friend bool operator==(const device_copy&, const device_copy&) = default;
};

/// A place in a peer's exposed memory, and how a GPU copies to or from it. The key is remote input: the link checks it as far as it can,
/// and limits its length.
struct remote_place {
  std::span<const std::byte> key;
  std::uint64_t address = 0;
  device_copy by{};
};

/// The fate of writes that are still in flight when memory is withdrawn.
enum class late_writes : std::uint8_t {
  fail,      ///< they fail at their origin and change nothing
  may_land,  ///< the transport cannot stop them
};

class link {
 public:
  /// The handler that gets a message at the receiver.
  enum class channel : std::uint8_t {
    control,
    data,
    transfers,  ///< for a link itself, if it implements puts and gets by messages
    devices,    ///< for a link on top of this one, between the GPUs of both ranks
    loans,      ///< for a link itself, if it lends large payloads (transports/ucx/lent_payloads.hpp)
  };
  static constexpr std::size_t channels = 5;
  static constexpr std::array every_channel{channel::control, channel::data, channel::transfers, channel::devices,
                                            channel::loans};
  static constexpr std::size_t max_header_bytes = 64;

  class handler {
   public:
    /// Called from `poll`. The handler may move the message out and keep it; otherwise it is dropped.
    virtual void on_arrival(arrival&& message) noexcept = 0;

   protected:
    ~handler() = default;
  };
  class failure_handler {
   public:
    /// Called once per peer, from `poll`, when the transport has given the peer up.
    virtual void on_peer_failed(rank_id peer) noexcept = 0;

   protected:
    ~failure_handler() = default;
  };

  /// The traffic so far, for `--json`, tests and benchmarks.
  struct counters {
    std::uint64_t sent[channels]{};
    std::uint64_t received[channels]{};
    std::uint64_t payload_bytes_sent = 0;
    std::uint64_t copied_bytes = 0;  ///< payload bytes that were copied after they had arrived
  };

  virtual ~link() = default;
  virtual rank_id rank() const noexcept = 0;
  virtual rank_id world_size() const noexcept = 0;
  /// True if that rank is in this process, so that each rank can dereference the other's addresses.
  virtual bool shares_process_with(rank_id) const noexcept { return false; }

  /// Sets the handler of a channel or of failures. A handler must outlive the link or be replaced by nullptr. Messages that arrive before
  /// the first handler are kept.
  virtual void listen(channel on, handler* to) = 0;
  virtual void on_failure(failure_handler* to) = 0;

  /// Starts a send. The header (at most `max_header_bytes`) is copied before the call returns. Returns `none` if the payload may be reused
  /// at once, `pending` if `done` will be called (the payload must stay until then), or an error. Without `done` the payload is copied if
  /// needed, and the outcome is not reported.
  virtual errc send(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
                    completion* done) = 0;
  /// Up to this length a payload should be sent without `done`: it is sent inside its message, or copying it costs less than a wait.
  virtual std::size_t short_bytes() const noexcept { return arrival::inline_bytes - max_header_bytes; }

  /// Copies the payload of `message` into `into`, which has room for at least `message.length()` bytes. Has the return values of `send`,
  /// but returns `pending` only if the message is `remote()` or `into` is on a device.
  virtual errc fetch(arrival&& message, std::span<std::byte> into, completion* done) = 0;

  /// Asks a pending operation to end early. Its completion is still called, possibly much later and possibly with success; the
  /// operation uses its buffer until then.
  virtual void cancel(completion& pending) = 0;

  /// For a buffer that is about to be freed with the frame that started its operation: once this returns, the link neither reads nor writes
  /// the buffer. The link may have to cut the connection to the peer for that. The completion of `pending` is still called.
  virtual void abandon(completion& pending) noexcept { cancel(pending); }

  virtual const counters& statistics() const noexcept = 0;

  /// A message of this size makes the link set up all of its ways of sending: UCX wires its lanes at the first message of each kind, and
  /// rehearsals send such messages early. The size is the same on all ranks.
  virtual std::size_t wiring_bytes() const noexcept { return 300'000; }

  // One-sided transfers. If a link has none, `one_sided` returns the reason, and the other functions of this section are never called.

  static constexpr std::size_t max_remote_key_bytes = 1024;
  virtual result<> one_sided() const;
  /// Success if puts and gets of device memory go from device to device; an error says why not.
  virtual result<> one_sided_devices() const;
  /// Lets peers put into the memory and get from it until it is withdrawn.
  virtual result<exposed_memory> expose(std::span<std::byte> memory);
  virtual late_writes withdraw(const exposed_memory& memory);
  /// Announces a possible put or get at that place, so that the link can do its slow work for new memory now.
  virtual void prepare(const remote_place&) {}
  /// Starts a write into a peer's memory, with the return values of `send`. When it has ended, the data may be reused, but the peer may not
  /// see the data yet: only a fence ensures that.
  virtual errc put(rank_id to, const remote_place& at, std::span<const std::byte> data, completion* done);
  /// Starts a read of a peer's memory, with the return values of `fetch`.
  virtual errc get(rank_id from, const remote_place& at, std::span<std::byte> into, completion* done);
  /// If devices can do that: once the puts of `data` that were started have landed, sets `flag`, which came with the key of the peer's
  /// memory, for the peer's device. No processor takes part. The function may do nothing, because a fence and a message also follow.
  virtual void set_flag(rank_id /*to*/, const remote_place&, std::uint64_t /*flag*/,
                        std::span<const std::byte> /*data*/) {}
  /// Ends once all puts to `to` that were started before it have landed in the peer's memory. A put into withdrawn memory changes nothing,
  /// and counts as landed. If the fence fails, it is unknown which puts have landed. If the peer refused a put, this fence and all later
  /// fences fail until the peer is another process. `device_failed`: this rank's own device failed to make the puts.
  virtual errc fence(rank_id to, completion* done);
  /// A fence that carries a message without a payload: once the puts have landed, the peer's link gives `header` to its handler on `on`,
  /// without waiting until this rank knows that they have landed. If it fails, the peer receives no message. Returns `unavailable` if the
  /// link cannot do this: then use `fence`, and send the message afterwards.
  virtual errc announce(rank_id to, channel on, std::span<const std::byte> header, completion* done);

  // Payloads in device memory, for transports that can move them directly.

  /// Success if this link's transport can move device memory; an error says why not.
  virtual result<> moves_devices() const;
  /// Like `send`, for a payload in device memory, which is not copied into host memory first. `done` must not be null.
  virtual errc send_device(rank_id to, channel on, std::span<const std::byte> header,
                           std::span<const std::byte> payload, completion* done);
  /// Like `fetch`, for a message from `send_device`, into a buffer in device memory.
  virtual errc fetch_device(arrival&& message, std::span<std::byte> into, completion* done);

  /// Success if the link has reads in which the devices of both ranks take part (an NCCL receive needs a send).
  virtual result<> joint() const;
  /// A `get` in which the devices of both ranks take part; the other rank must poll for it. Once it has begun, cancelling it also ends all
  /// other joint gets in flight between the two ranks, with an error.
  virtual errc joint_get(rank_id from, const remote_place& at, std::span<std::byte> into, completion* done);

 private:
  friend class arrival;
  /// Drops a payload that was not fetched.
  virtual void release(const void* held, bool remote) noexcept = 0;
};

inline void arrival::drop() noexcept {
  if (held_ != nullptr) owner_->release(std::exchange(held_, nullptr), remote_);
}

}  // namespace parley::runtime
