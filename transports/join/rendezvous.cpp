#include <parley/transports/join/rendezvous.hpp>

#include <parley/runtime/version.hpp>
#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/join/rendezvous_guest.hpp>
#include <parley/transports/join/rendezvous_host.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace parley::transports {

std::uint64_t fresh_incarnation() {
  std::uint64_t value = 0;
  while (value == 0) {
    wire::randomise(std::as_writable_bytes(std::span(&value, 1)));
    value = runtime::incarnation_of(value, 0);
  }
  return value;
}

std::uint64_t host_identity() {
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  text += std::string("@") + name;
  const auto digest = wire::sha256(std::as_bytes(std::span<const char>(text)));
  return wire::scanner(digest).number<std::uint64_t>();
}

member this_process(std::vector<std::byte> address) {
  member me;
  me.incarnation = fresh_incarnation();
  me.host = host_identity();
  me.pid = static_cast<std::uint32_t>(::getpid());
  struct stat space{};
  if (::stat("/proc/self/ns/pid", &space) == 0) me.pids_of = space.st_ino;
  me.address = std::move(address);
  me.version = runtime::version_text;
  // On a machine with more than 8,192 possible processors the call fails, and the entry has no affinity.
  std::array<std::uint64_t, member::max_affinity_words> words{};
  if (::sched_getaffinity(0, sizeof words, reinterpret_cast<cpu_set_t*>(words.data())) == 0) {
    const auto last = std::find_if(words.rbegin(), words.rend(), [](std::uint64_t word) { return word != 0; });
    me.affinity.assign(words.begin(), last.base());
  }
  return me;
}

rendezvous_options options_for(const placement& place) {
  rendezvous_options options;
  options.rank = place.rank;
  options.world_size = place.world_size;
  options.job = place.job;
  options.host = place.rendezvous_host;
  options.port = place.rendezvous_port;
  options.listening_fd = place.listening_fd;
  options.max_restarts = place.max_restarts;
  options.restarts = place.restarts;
  return options;
}

rendezvous::rendezvous(boost::asio::io_context& io, rendezvous_options options, job_key key) {
  if (options.rank == 0) {
    core_ = std::make_shared<rendezvous_host>(io, std::move(options), std::move(key));
  } else {
    core_ = std::make_shared<rendezvous_guest>(io, std::move(options), std::move(key));
  }
}

rendezvous::~rendezvous() { core_->close(); }

void rendezvous::join(member me, join_handler done) {
  if (me.incarnation == 0) me.incarnation = fresh_incarnation();
  core_->join(std::move(me), std::move(done));
}

void rendezvous::on_member_lost(loss_handler handler) { core_->on_loss(std::move(handler)); }
void rendezvous::on_member_left(farewell_handler handler) { core_->on_left(std::move(handler)); }
void rendezvous::on_member_restarted(restart_handler handler) { core_->on_restart(std::move(handler)); }
void rendezvous::hold_dead(const member& dead, const std::string& why) { core_->hold_dead(dead, why); }
void rendezvous::leave() { core_->leave({}, {}); }
void rendezvous::leave(const runtime::root_cause& why, const std::function<void()>& told) { core_->leave(why, told); }
std::string rendezvous::awaited() const { return core_->awaited(); }
std::vector<int> rendezvous::descriptors() const { return core_->descriptors(); }
std::uint64_t rendezvous::dropped_clients() const { return core_->dropped(); }

}  // namespace parley::transports
