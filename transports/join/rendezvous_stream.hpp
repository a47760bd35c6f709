#pragma once
/// One TCP connection of the rendezvous: splits the received bytes into frames, within its owner's limits, and sends frames
/// with tags. Internal to transports.
///
///     class mine : public stream_owner { ... };
///     auto link = std::make_shared<stream>(std::move(socket), weak_owner, wire::direction::to_host);
///     link->start();                                    // owner.on_frame and owner.on_end are called from the io_context
///     link->send(wire::type::hello, payload);
///
/// An owner that was destroyed is not called any more. `on_end` is called at most once and not after `close`.
#include <parley/transports/join/rendezvous_wire.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace parley::transports {

class stream;

/// One complete frame; valid during the call of `on_frame`.
struct incoming {
  wire::type kind;
  std::span<const std::byte> payload;
  std::span<const std::byte> tag;  ///< empty for types without one
};

class stream_owner {
 public:
  /// The longest payload in bytes that a frame of this type may have now; nothing if this type is not allowed now.
  virtual std::optional<std::size_t> limit(const stream& from, wire::type kind) const = 0;
  virtual void on_frame(stream& from, const incoming& frame) = 0;
  virtual void on_end(stream& from, const std::string& why) = 0;

 protected:
  ~stream_owner() = default;
};

class stream : public std::enable_shared_from_this<stream> {
 public:
  using socket = boost::asio::ip::tcp::socket;

  stream(socket connected, std::weak_ptr<stream_owner> owner, wire::direction outbound);
  virtual ~stream() = default;

  void start();
  /// Reads at most `allowance_bytes` more until `trust` is called.
  void distrust(std::size_t allowance_bytes) { allowance_ = allowance_bytes; }
  void trust() { allowance_.reset(); }
  void set_key(const wire::connection_key& key) { key_ = key; }
  /// True if the tag of `frame`, the next one in sequence, is right. Call it once per frame.
  bool authentic(const incoming& frame);

  void send(wire::type kind, std::span<const std::byte> payload);
  /// Sends a payload that several streams share; `payload_digest` is its SHA-256.
  void send(wire::type kind, std::shared_ptr<const wire::bytes> payload, const wire::digest& payload_digest);
  /// Stops reading, and closes once everything sent has been passed to the kernel.
  void finish();
  void close();

  bool open() const { return open_; }
  /// True if the stream ended because the other host stopped replying; false if that host's kernel ended the connection.
  bool fell_silent() const { return fell_silent_; }
  /// True if the other host has been silent for longer than a live host would be.
  bool seems_silent();
  int descriptor() { return open_ ? socket_.native_handle() : -1; }
  const std::string& peer() const { return peer_; }

 private:
  void read();
  void take_frames();
  void push(std::shared_ptr<const wire::bytes> part);
  void write();
  void watch();
  void end(const std::string& why);

  socket socket_;
  std::weak_ptr<stream_owner> owner_;
  wire::direction outbound_;
  std::string peer_;
  std::optional<wire::connection_key> key_;
  std::optional<std::size_t> allowance_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
  std::array<std::byte, 4096> chunk_;
  wire::bytes buffer_;
  std::deque<std::shared_ptr<const wire::bytes>> outgoing_;
  std::size_t written_ = 0;  ///< bytes written of the first part of `outgoing_`
  boost::asio::steady_timer patience_;
  bool watching_ = false;
  bool writing_ = false;
  bool finishing_ = false;
  bool fell_silent_ = false;
  bool open_ = true;
};

/// Sets close-on-exec, non-blocking mode, no delay, and keep-alive probes for when the other host falls silent.
void prepare(stream::socket& connected);

}  // namespace parley::transports
