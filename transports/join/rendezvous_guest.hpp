#pragma once
/// Any rank except rank 0 in a rendezvous. It connects to rank 0, proves that it holds the key and waits for the roster. Then
/// rank 0 tells it which ranks are lost, leave or come back. Internal to transports.
///
/// rendezvous_core.hpp shows how to use it; rendezvous_wire.hpp has the order of frames. Until rank 0 has replied, the
/// guest keeps trying to connect, because rank 0 may start later.
#include <parley/transports/join/rendezvous_core.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::transports {

class rendezvous_guest final : public rendezvous_core {
 public:
  rendezvous_guest(boost::asio::io_context& io, rendezvous_options options, job_key key)
      : rendezvous_core(io, std::move(options), std::move(key)), connecting_(io), pause_(io) {}

  void hold_dead(const member& dead, const std::string& why) override;
  void leave(const runtime::root_cause& why, const std::function<void()>& told) override;
  std::vector<int> descriptors() override;
  std::string awaited() const override;

  std::optional<std::size_t> limit(const stream& from, wire::type kind) const override;
  void on_frame(stream& from, const incoming& frame) override;
  void on_end(stream& from, const std::string& why) override;

 private:
  enum class phase {
    greeting,  ///< rank 0 has not replied yet
    waiting,   ///< for the roster
    joined,
    leaving,  ///< has said bye with an error; waits until rank 0 has told the others
  };

  std::weak_ptr<rendezvous_guest> weak() { return std::static_pointer_cast<rendezvous_guest>(shared_from_this()); }

  void start() override;
  void on_deadline() override;
  void disconnect() override;

  void connect();
  void connected(boost::system::error_code refused);
  /// Connects again after a pause.
  void try_again();

  /// Answers rank 0's challenge.
  void answer(const incoming& frame);
  void rejected(std::span<const std::byte> payload);
  void take_roster(std::span<const std::byte> payload, const wire::digest& first, arrival how);
  void take_rejoined(std::span<const std::byte> payload);
  void take_restarted(std::span<const std::byte> payload);
  void take_failure(std::span<const std::byte> payload);
  /// Handles rank 0's notice that another rank is lost or has left.
  void take_notice(wire::type what, std::span<const std::byte> payload);
  void take_bye(std::span<const std::byte> payload);
  /// Ends the join with this error, or the death watch after the join.
  void broken(runtime::error why);

  bool is_in() const { return at_ == phase::joined && link_ && link_->open(); }
  std::size_t longest_roster() const { return 16 + options_.world_size * wire::max_member_bytes; }

  stream::socket connecting_;
  boost::asio::steady_timer pause_;  ///< before the next connection, or until rank 0 must have replied on this one
  boost::asio::ip::tcp::endpoint host_at_;
  std::shared_ptr<stream> link_;
  phase at_ = phase::greeting;
  std::vector<std::uint64_t> incarnations_;      ///< by rank, as rank 0 has sent them
  std::vector<runtime::rank_id> beside_rank_0_;  ///< the other ranks on rank 0's host, if that is not this one
  wire::bytes said_;                             ///< the payload of the greeting
  std::int64_t delay_ms_ = 1;
  std::function<void()> told_;
  std::string trouble_ = "no connection was made";  ///< why this rank has not met rank 0 yet
};

}  // namespace parley::transports
