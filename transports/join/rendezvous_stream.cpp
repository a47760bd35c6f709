#include <parley/transports/join/rendezvous_stream.hpp>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace parley::transports {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

bool tagged(wire::type kind) { return kind != wire::type::hello && kind != wire::type::reject; }

wire::direction opposite(wire::direction d) {
  return d == wire::direction::to_host ? wire::direction::to_member : wire::direction::to_host;
}

// A host that vanishes without closing its connections is noticed after this time.
constexpr std::chrono::seconds longest_silence{10};
constexpr std::chrono::seconds probed_after{4};
constexpr std::chrono::seconds probed_again_after{2};

std::chrono::milliseconds silence(int fd) {
  tcp_info now{};
  socklen_t size = sizeof now;
  ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &now, &size);
  return std::chrono::milliseconds(now.tcpi_last_ack_recv);
}

std::chrono::milliseconds left_to(int fd) { return longest_silence - silence(fd); }

// True if the kernel, or a router on the way, reports that the other side stopped answering.
bool of_silence(error_code fault) {
  return fault == asio::error::timed_out || fault == asio::error::host_unreachable ||
         fault == asio::error::network_unreachable;
}

// True if there are bytes that the other host has not acknowledged. They may be unsent: without a route the kernel keeps them.
bool has_unacknowledged(int fd) {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

std::shared_ptr<const wire::bytes> shared(wire::bytes data) {
  return std::make_shared<const wire::bytes>(std::move(data));
}

}  // namespace

void prepare(stream::socket& connected) {
  const int fd = connected.native_handle();
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  error_code ignored;
  connected.non_blocking(true, ignored);
  connected.set_option(asio::ip::tcp::no_delay(true), ignored);
  connected.set_option(asio::socket_base::keep_alive(true), ignored);
  // These add up to `longest_silence`. If the kernel refuses an option, a silent host is only noticed later.
  const int idle_s = probed_after.count(), interval_s = probed_again_after.count();
  const int probes = (longest_silence - probed_after) / probed_again_after;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

stream::stream(socket connected, std::weak_ptr<stream_owner> owner, wire::direction outbound)
    : socket_(std::move(connected)), owner_(std::move(owner)), outbound_(outbound), patience_(socket_.get_executor()) {
  error_code unknown;
  const auto peer_end = socket_.remote_endpoint(unknown);
  peer_ = unknown ? "a client that is gone" : peer_end.address().to_string() + ":" + std::to_string(peer_end.port());
}

void stream::start() { read(); }

// A live host answers the first probe, which the kernel sends after `probed_after`; the answer may take a second.
bool stream::seems_silent() {
  return open_ && silence(socket_.native_handle()) > probed_after + probed_again_after / 2;
}

bool stream::authentic(const incoming& frame) {
  if (!key_) return false;
  const auto expected = key_->tag(opposite(outbound_), received_++, frame.kind, wire::sha256(frame.payload));
  return wire::equal(expected, frame.tag);
}

void stream::send(wire::type kind, std::span<const std::byte> payload) {
  if (tagged(kind)) {
    push(shared(wire::frame(kind, payload, key_.value(), outbound_, sent_++)));
  } else {
    push(shared(wire::frame(kind, payload)));
  }
}

void stream::send(wire::type kind, std::shared_ptr<const wire::bytes> payload, const wire::digest& payload_digest) {
  const auto tag = key_.value().tag(outbound_, sent_++, kind, payload_digest);
  push(shared(wire::frame_head(kind, payload->size())));
  push(std::move(payload));
  push(shared(wire::bytes(tag.begin(), tag.end())));
}

void stream::push(std::shared_ptr<const wire::bytes> part) {
  if (!open_ || part->empty()) return;
  outgoing_.push_back(std::move(part));
  if (!writing_) write();
  if (open_ && !watching_) watch();
}

// Writes as much as the kernel accepts before it returns, so that a last frame is sent even if the program does not run the
// io_context afterwards.
void stream::write() {
  while (open_ && !outgoing_.empty()) {
    const auto& part = *outgoing_.front();
    error_code fault;
    written_ += socket_.write_some(asio::buffer(part.data() + written_, part.size() - written_), fault);
    if (fault == asio::error::would_block || fault == asio::error::try_again) {
      writing_ = true;
      socket_.async_wait(socket::wait_write, [self = shared_from_this()](error_code stop) {
        self->writing_ = false;
        if (!stop) self->write();
      });
      return;
    }
    if (fault) {
      // The reader will see the same end, after everything that the other side sent before it.
      outgoing_.clear();
      written_ = 0;
      break;
    }
    if (written_ == part.size()) {
      outgoing_.pop_front();
      written_ = 0;
    }
  }
  if (finishing_) close();
}

// The kernel probes a silent host only while no bytes are unacknowledged. Otherwise it retransmits for a quarter of an hour, so this
// timer ends the connection.
void stream::watch() {
  watching_ = true;
  patience_.expires_after(std::max(left_to(socket_.native_handle()), std::chrono::milliseconds(1)));
  patience_.async_wait([self = shared_from_this()](error_code stop) {
    self->watching_ = false;
    if (stop || !self->open_ || !has_unacknowledged(self->socket_.native_handle())) return;
    if (left_to(self->socket_.native_handle()).count() > 0) return self->watch();
    self->fell_silent_ = true;
    self->end(error_code(asio::error::timed_out).message());
  });
}

void stream::read() {
  const std::size_t most = std::min(chunk_.size(), allowance_.value_or(chunk_.size()));
  socket_.async_read_some(
      asio::buffer(chunk_.data(), most), [self = shared_from_this()](error_code fault, std::size_t got) {
        if (!self->open_ || self->finishing_) return;
        self->fell_silent_ = of_silence(fault);
        if (fault) return self->end(fault == asio::error::eof ? "its connection was closed" : fault.message());
        if (self->allowance_) *self->allowance_ -= got;
        self->buffer_.insert(self->buffer_.end(), self->chunk_.begin(), self->chunk_.begin() + static_cast<long>(got));
        self->take_frames();
        if (!self->open_ || self->finishing_) return;
        if (self->allowance_ == 0U) return self->end("it sent too much before it was recognised");
        self->read();
      });
}

void stream::take_frames() {
  std::size_t used = 0;
  while (open_ && !finishing_) {
    const auto rest = std::span<const std::byte>(buffer_).subspan(used);
    if (rest.size() < wire::head_bytes) break;
    wire::scanner head(rest);
    const std::size_t length = head.number<std::uint32_t>();
    const auto kind = static_cast<wire::type>(head.number<std::uint8_t>());
    const auto owner = owner_.lock();
    if (!owner) return close();
    const auto most = owner->limit(*this, kind);
    if (!most || length > *most) return end("it sent bytes that are not a frame of the rendezvous");
    const std::size_t tag_size = tagged(kind) ? wire::tag_bytes : 0;
    if (rest.size() < wire::head_bytes + length + tag_size) break;
    used += wire::head_bytes + length + tag_size;
    owner->on_frame(*this,
                    {kind, rest.subspan(wire::head_bytes, length), rest.subspan(wire::head_bytes + length, tag_size)});
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<long>(std::min(used, buffer_.size())));
}

void stream::finish() {
  finishing_ = true;
  if (!writing_) close();
}

void stream::close() {
  if (!open_) return;
  open_ = false;
  outgoing_.clear();
  patience_.cancel();
  error_code ignored;
  socket_.close(ignored);
}

void stream::end(const std::string& why) {
  if (!open_) return;
  close();
  if (finishing_) return;
  if (const auto owner = owner_.lock()) owner->on_end(*this, why);
}

}  // namespace parley::transports
