// How long clients, one process each, take to join one rendezvous over TCP on loopback: from the start signal until
// the last client has all ranks' entries. Each client proves that it knows the job's key.
//
//     rendezvous [--clients 256]
#include <parley/bench/measure.hpp>
#include <parley/parley.hpp>
#include <parley/transports/join/loopback.hpp>
#include <parley/transports/join/rendezvous.hpp>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::transports;
using parley::rank_id;

constexpr std::size_t address_bytes = 512;  // about the size of a UCX address

/// One rank at the rendezvous. Like the ranks of a job, it stays until all have joined.
class participant {
 public:
  participant(const rendezvous_options& o, const job_key& key)
      : meeting_(io_, o, key.duplicate()), world_(o.world_size) {
    meeting_.join(this_process(std::vector<std::byte>(address_bytes)), [this](parley::runtime::result<joined> all) {
      if (!all) give_up(all.reason().what());
      if (all->members.size() != world_) give_up("somebody is missing");
      joined_at_ = now_ns();
    });
  }
  template <class Holds>
  void run_until(Holds holds) {
    while (!holds()) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(10));
    }
  }
  std::int64_t joined_at() {
    run_until([this] { return joined_at_ != 0; });
    return joined_at_;
  }

 private:
  boost::asio::io_context io_;
  rendezvous meeting_;
  rank_id world_;
  std::int64_t joined_at_ = 0;
};

using moment = std::atomic_ref<std::int64_t>;
constexpr std::int64_t ready = -1;

/// Runs a client in its own process until the last client has joined.
[[noreturn]] void be_a_client(rendezvous_options o, const job_key& key, const int (&go)[2], const int (&end)[2],
                              moment joined_at) {
  die_with_parent();
  for (const int theirs : {o.listening_fd, go[1], end[1]}) ::close(theirs);
  o.listening_fd = -1;
  joined_at = ready;
  char nothing = 0;
  static_cast<void>(!::read(go[0], &nothing, 1));  // blocks until the pipe is closed
  participant me(o, key);
  joined_at = me.joined_at();
  static_cast<void>(!::read(end[0], &nothing, 1));
  ::_exit(0);
}

void join_all(rank_id clients) {
  const job_key key = job_key::generate();
  const loopback_socket here = listen_on_loopback();
  if (here.fd < 0) give_up("no socket on 127.0.0.1");
  rendezvous_options o;
  o.world_size = clients + 1;
  o.job = 1;
  o.port = here.port;
  o.listening_fd = here.fd;
  int go[2];
  int end[2];
  if (::pipe(go) != 0 || ::pipe(end) != 0) give_up("no pipe");
  void* const shared =
      ::mmap(nullptr, o.world_size * sizeof(std::int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) give_up("no shared memory");
  const std::span<std::int64_t> joined_at(static_cast<std::int64_t*>(shared), o.world_size);
  for (o.rank = 1; o.rank < o.world_size; ++o.rank) {
    const pid_t child = ::fork();
    if (child < 0) give_up("no process for client " + std::to_string(o.rank));
    if (child == 0) be_a_client(o, key, go, end, moment(joined_at[o.rank]));
  }
  const auto all = [&](auto&& is) {
    if (::waitpid(-1, nullptr, WNOHANG) > 0) give_up("a client has ended before the others came");
    return std::all_of(joined_at.begin() + 1, joined_at.end(), [&](std::int64_t& at) { return is(moment(at).load()); });
  };
  while (!all([](std::int64_t at) { return at == ready; })) ::usleep(1000);

  o.rank = 0;
  const std::int64_t start = now_ns();
  ::close(go[1]);
  participant host(o, key);
  joined_at[0] = host.joined_at();
  host.run_until([&] { return all([](std::int64_t at) { return at > 0; }); });
  report("rendezvous", double(*std::max_element(joined_at.begin(), joined_at.end()) - start) / 1e6, "ms");
  ::close(end[1]);
  while (::wait(nullptr) > 0) {}
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  join_all(rank_id(given.number("clients", 256)));
}
