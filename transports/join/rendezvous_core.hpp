#pragma once
/// The common base of rank 0 (rendezvous_host.hpp) and all other ranks (rendezvous_guest.hpp) in a rendezvous: options, key,
/// handlers, the end of the join, and texts that both use. Internal to transports.
///
///     class side final : public rendezvous_core { ... };      // meets the others and then calls `succeed` or `fail`
///     const auto here = std::make_shared<side>(io, std::move(options), std::move(key));
///     here->join(me, done);                                   // `start` is called from the io_context
///     here->close();                                          // no handler is called any more
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/join/job_key.hpp>
#include <parley/transports/join/joining.hpp>
#include <parley/transports/join/rendezvous_stream.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::transports {

class rendezvous_core : public stream_owner, public std::enable_shared_from_this<rendezvous_core> {
 public:
  /// The program's callbacks; each may be empty. rendezvous.hpp says when each is called.
  struct handlers {
    std::function<void(runtime::result<joined>)> done;
    std::function<void(runtime::rank_id rank, const std::string& why)> lost;
    std::function<void(runtime::rank_id rank, const runtime::root_cause& why)> left;
    std::function<void(const member& anew)> restarted;
  };

  rendezvous_core(boost::asio::io_context& io, rendezvous_options options, job_key key)
      : io_(io), options_(std::move(options)), key_(std::move(key)), deadline_(io) {}
  virtual ~rendezvous_core();

  /// `me.incarnation` must contain its random part already.
  void join(member me, std::function<void(runtime::result<joined>)> done);
  void on_loss(decltype(handlers::lost) handler) { handlers_.lost = std::move(handler); }
  void on_left(decltype(handlers::left) handler) { handlers_.left = std::move(handler); }
  void on_restart(decltype(handlers::restarted) handler) { handlers_.restarted = std::move(handler); }

  /// Reports that a process has died.
  virtual void hold_dead(const member& dead, const std::string& why) = 0;
  /// Says bye and closes. `told` may be empty; rendezvous.hpp says when it is called.
  virtual void leave(const runtime::root_cause& why, const std::function<void()>& told) = 0;
  void close() {
    drop_handlers();
    disconnect();
  }

  virtual std::vector<int> descriptors() = 0;
  /// See `rendezvous::awaited`.
  virtual std::string awaited() const = 0;
  std::uint64_t dropped() const { return dropped_; }

 protected:
  enum class arrival : std::uint8_t { at_first, rejoined };

  /// At most how many of the missing ranks rank 0 names to the others.
  static constexpr std::size_t max_listed_ranks = 200;
  /// The longest time in milliseconds that rank 0 may make a guest wait for the end of the join.
  static constexpr std::uint32_t max_patience_ms = 600'000;

  /// Begins to meet the others. The options have been checked before.
  virtual void start() = 0;
  /// Called when the deadline has passed before the join has ended.
  virtual void on_deadline() = 0;
  /// Closes all sockets and stops all timers.
  virtual void disconnect() = 0;

  bool joining() const { return static_cast<bool>(handlers_.done); }
  bool ended() const { return ended_; }
  /// A later call moves the deadline.
  void start_deadline(runtime::time_ns span);
  void succeed(std::vector<member> members, const wire::digest& digest, arrival how = arrival::at_first);
  void fail(runtime::error why);
  /// From now on reports nothing to the program. Connections stay open.
  void drop_handlers();

  // Each of these functions calls a copy of a handler, because the handler may destroy the rendezvous, which drops all handlers.
  void lose(runtime::rank_id rank, const std::string& why) {
    if (const auto handler = handlers_.lost) handler(rank, why);
  }
  void part_with(runtime::rank_id rank, const runtime::root_cause& why) {
    if (const auto handler = handlers_.left) handler(rank, why);
  }
  void meet_again(const member& anew) {
    if (const auto handler = handlers_.restarted) handler(anew);
  }

  /// One address to bind or to connect to that `options::reach` allows.
  runtime::result<boost::asio::ip::tcp::endpoint> resolve();
  /// Returns the address, or why this job may not meet there.
  runtime::result<boost::asio::ip::tcp::endpoint> check_reach(const boost::asio::ip::tcp::endpoint& at) const;

  /// As much of a reason as fits a frame.
  static std::string shortened(const std::string& why) { return why.substr(0, wire::max_notice_bytes / 2); }
  /// The payload of `bye`.
  static wire::bytes farewell(const runtime::root_cause& why) {
    return wire::writer().number(why.rank).text(shortened(why.what)).take();
  }
  /// Reads what `farewell` has written, to the end of `in`; nothing if the bytes are not a farewell.
  std::optional<runtime::root_cause> read_farewell(wire::scanner& in) const;

  /// The rendezvous address, such as `127.0.0.1:4711`.
  std::string place() const;
  /// This rank's join timeout, such as `30 s`.
  std::string time_limit() const;
  static std::string rank_text(runtime::rank_id rank) { return "rank " + std::to_string(rank); }
  /// `ranks 1, 4 and 7 of 8`; `total` may exceed the number of ranks that are listed.
  std::string ranks_of_world(const std::vector<runtime::rank_id>& some, std::size_t total) const;
  static std::string died(runtime::rank_id rank, const std::string& why) { return rank_text(rank) + " died: " + why; }
  /// `missing` names some of the `total` ranks that never came. `refusals` is appended to the text.
  runtime::error never_came(const std::vector<runtime::rank_id>& missing, std::size_t total,
                            const std::string& refusals) const;

  boost::asio::io_context& io_;
  rendezvous_options options_;
  job_key key_;
  member me_;
  std::uint64_t dropped_ = 0;  ///< number of clients that rank 0 has dropped

 private:
  std::optional<runtime::error> fault_of_options() const;

  boost::asio::steady_timer deadline_;
  handlers handlers_;
  bool ended_ = false;
};

}  // namespace parley::transports
