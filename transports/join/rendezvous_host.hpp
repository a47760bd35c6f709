#pragma once
/// Rank 0 of a rendezvous. It accepts connections, checks that clients hold the key, collects their entries and sends the
/// roster. Then it tells all ranks which ranks are lost, leave or come back. Internal to transports.
///
/// rendezvous_core.hpp shows how to use it; rendezvous_wire.hpp has the order of frames. One client passes through
///
///     welcome -> greet -> recognise -> seat -> complete -> let_go, or forget at any time
///     welcome -> greet -> recognise -> seat -> take_back -> ...            (a new process in a running job)
///
/// Rank 0 of a world of one has the roster at once and opens no socket.
#include <parley/transports/join/rendezvous_core.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::transports {

class rendezvous_host final : public rendezvous_core {
 public:
  rendezvous_host(boost::asio::io_context& io, rendezvous_options options, job_key key)
      : rendezvous_core(io, std::move(options), std::move(key)), acceptor_(io), retry_(io), seats_(options_.world_size),
        entries_(options_.world_size) {}

  void hold_dead(const member& dead, const std::string& why) override;
  void leave(const runtime::root_cause& why, const std::function<void()>& told) override;
  std::vector<int> descriptors() override;
  std::string awaited() const override;

  std::optional<std::size_t> limit(const stream& from, wire::type kind) const override;
  void on_frame(stream& from, const incoming& frame) override;
  void on_end(stream& from, const std::string& why) override;

 private:
  /// One connection as rank 0 sees it.
  struct client final : stream {
    enum class phase { greeting, proving, presenting, present };
    client(stream::socket connected, const std::weak_ptr<stream_owner>& owner, boost::asio::io_context& io)
        : stream(std::move(connected), owner, wire::direction::to_member), patience(io) {}
    bool recognised() const { return at == phase::presenting || at == phase::present; }

    phase at = phase::greeting;
    wire::hello said;
    bool said_bye = false;
    boost::asio::steady_timer patience;
  };

  /// The reason why a client may not have the place that it asks for.
  struct refused {
    wire::refusal why;
    std::uint32_t detail;
    std::string text;
  };

  /// The notice that the others got about a rank that is gone.
  struct gone {
    wire::type what;
    wire::bytes told;
  };

  std::weak_ptr<rendezvous_host> weak() { return std::static_pointer_cast<rendezvous_host>(shared_from_this()); }

  void start() override;
  void on_deadline() override;
  void disconnect() override;

  struct missing_ranks {
    std::vector<runtime::rank_id> listed;  // the first of them
    std::size_t total = 0;
  };
  missing_ranks missing() const;

  runtime::result<> bind();
  /// Takes over the socket that the launcher made.
  runtime::result<> adopt();
  void accept();
  void accept_later();
  void stop_accepting();

  void welcome(stream::socket connected);
  void greet(client& c, std::span<const std::byte> payload);
  /// The reason to refuse the process with this greeting; nothing if there is none.
  std::optional<refused> refuse(const wire::hello& said) const;
  void recognise(client& c);
  void seat(client& c, std::span<const std::byte> payload);
  /// Called when all ranks have joined: sends the roster.
  void complete();
  /// Gives a rank's new process the place of the older one.
  void take_back(client& c, const member& anew);
  /// Handles a client's report that a process on its own host has died.
  void hear_of_death(const client& c, std::span<const std::byte> payload);
  /// Handles a client's bye.
  void let_go(client& c, std::span<const std::byte> payload);

  void reject(client& c, const refused& r);
  void drop(client& c, const std::string& why);
  void note(const client& c, const std::string& why);
  /// Called when a connection has ended. Reports a loss if all ranks had joined and the client held a rank's place; otherwise only counts
  /// the client.
  void forget(client& c, const std::string& why);

  /// The payload of `lost`.
  static wire::bytes notice(runtime::rank_id rank, const std::string& why) {
    return wire::writer().number(rank).text(shortened(why)).take();
  }
  /// Declares the process of `rank` gone. Tells all ranks, and that process if it still listens. False if the rank was gone
  /// before.
  bool end(runtime::rank_id rank, const std::string& why);
  /// Tells all ranks that a rank is gone, and later each process that comes back. False if the rank was gone before.
  bool announce(wire::type what, runtime::rank_id rank, wire::bytes words);
  void tell_all(wire::type what, const wire::bytes& payload);
  /// True if this incarnation is the latest process of `rank`.
  bool is_latest(runtime::rank_id rank, std::uint64_t incarnation) const;
  /// The other ranks on the host of `rank` that have fallen silent; none before all have joined.
  std::vector<runtime::rank_id> silent_neighbours(runtime::rank_id rank) const;

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_;
  std::map<const stream*, std::shared_ptr<client>> clients_;
  std::vector<client*> seats_;                  ///< by rank: the client that has proved that it holds the rank
  std::vector<std::optional<member>> entries_;  ///< by rank, until the roster is complete
  runtime::rank_id present_ = 0;                ///< number of entries
  std::vector<member> roster_;                  ///< once all have joined: the latest process of each rank
  wire::digest first_digest_{};                 ///< of the roster that the first processes got
  std::map<runtime::rank_id, gone> gone_;       ///< the ranks that are lost or have left
  std::chrono::steady_clock::time_point ends_;  ///< when the join ends at the latest
  std::string last_drop_;                       ///< address of the client that was dropped last, and the reason
};

}  // namespace parley::transports
