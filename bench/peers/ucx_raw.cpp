// The lower bound for messages between two processes, with UCX only. Both sides send the header that parley sends (64
// bytes) and a small payload with `ucp_am_send_nbx`, and call `ucp_worker_progress` until the reply has arrived.
//
//     ucx_raw --only pingpong [--bytes 8] [--iterations N]     two processes on two cores: ns one way
//     ucx_raw --only one_core                                  both on one core, yielding with sched_yield
//     ucx_raw --only idle [--seconds 1]                        armed and asleep: per cent of a core
//     ucx_raw --only start                                     from loading until one message went round: ns
#include <parley/bench/measure.hpp>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) give_up(std::string(what) + ": " + ucs_status_string(status));
}

// One process: a worker, an endpoint to the other process, and the last message received.
class side {
 public:
  explicit side(int socket) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    check(ucp_init(&params, nullptr, &context_), "ucp_init");

    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker, &worker_), "ucp_worker_create");

    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = am_id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &side::on_message;
    handler.arg = this;
    check(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler");
    connect(socket);
  }
  side(const side&) = delete;
  side& operator=(const side&) = delete;
  ~side() {
    ucp_request_param_t force{};
    force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    force.flags = UCP_EP_CLOSE_FLAG_FORCE;
    finish(ucp_ep_close_nbx(endpoint_, &force));
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  void send(const void* payload, std::size_t size) {
    // Like parley's link: the send must complete immediately from the caller's memory, or fail.
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    for (;;) {
      void* const status = ucp_am_send_nbx(endpoint_, am_id, header_.data(), header_.size(), payload, size, &params);
      if (status == nullptr) return;
      if (UCS_PTR_STATUS(status) != UCS_ERR_NO_RESOURCE) check(UCS_PTR_STATUS(status), "ucp_am_send_nbx");
      ucp_worker_progress(worker_);
    }
  }

  enum class waiting { spinning, yielding };
  void receive(waiting how) {
    const std::uint64_t wanted = ++awaited_;
    while (received_ < wanted) {
      if (ucp_worker_progress(worker_) == 0 && how == waiting::yielding && received_ < wanted) sched_yield();
    }
  }

  void exchange_one(bool first, std::size_t bytes) {
    const std::vector<char> payload(bytes, 'p');
    if (first) send(payload.data(), bytes);
    receive(waiting::yielding);
    if (!first) send(payload.data(), bytes);
  }

  // Sleeps until the time is over; a message ends the sleep early.
  void sleep(int milliseconds) {
    int fd = -1;
    check(ucp_worker_get_efd(worker_, &fd), "ucp_worker_get_efd");
    const std::int64_t end = now_ns() + std::int64_t{milliseconds} * 1'000'000;
    while (now_ns() < end) {
      while (ucp_worker_progress(worker_) != 0) {}
      if (ucp_worker_arm(worker_) == UCS_ERR_BUSY) continue;
      pollfd entry{fd, POLLIN, 0};
      poll(&entry, 1, int((end - now_ns()) / 1'000'000 + 1));
    }
  }

 private:
  static constexpr unsigned am_id = 1;

  static ucs_status_t on_message(void* arg, const void* header, size_t header_size, void* data, size_t size,
                                 const ucp_am_recv_param_t* how) {
    side& self = *static_cast<side*>(arg);
    std::memcpy(self.landing_.data(), header, header_size);
    if ((how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && header_size + size <= self.landing_.size())
      std::memcpy(self.landing_.data() + header_size, data, size);
    ++self.received_;
    return UCS_OK;
  }

  void connect(int socket) {
    ucp_address_t* address = nullptr;
    std::size_t size = 0;
    check(ucp_worker_get_address(worker_, &address, &size), "ucp_worker_get_address");
    std::size_t their_size = 0;
    exchange(socket, &size, sizeof size, &their_size, sizeof their_size);
    std::vector<char> theirs(their_size);
    exchange(socket, address, size, theirs.data(), their_size);
    ucp_worker_release_address(worker_, address);

    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    check(ucp_ep_create(worker_, &params, &endpoint_), "ucp_ep_create");
  }

  void finish(void* request) {
    if (request == nullptr) return;
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_ep_close_nbx");
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    ucp_request_free(request);
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::uint64_t received_ = 0;
  std::uint64_t awaited_ = 0;
  std::array<char, 64> header_{};
  std::array<char, 8192> landing_{};
};

// Returns the median over blocks of round trips, so that a block in which another process had the core does not
// count.
double round_trips(side& mine, bool first, std::int64_t iterations, std::size_t bytes, side::waiting how) {
  const std::vector<char> payload(bytes, 'p');
  constexpr std::int64_t block = 500;
  std::vector<double> times;
  for (std::int64_t done = 0; done < iterations || times.empty(); done += block) {
    const std::int64_t start = now_ns();
    for (std::int64_t n = 0; n < block; ++n) {
      if (first) mine.send(payload.data(), bytes);
      mine.receive(how);
      if (!first) mine.send(payload.data(), bytes);
    }
    times.push_back(double(now_ns() - start) / double(2 * block));
  }
  return median(std::move(times));
}

double core_share_percent(side& mine, std::int64_t seconds) {
  const auto cpu_ns = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return 1e9 * double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e3 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  };
  const double cpu_before = cpu_ns();
  const std::int64_t before = now_ns();
  mine.sleep(int(seconds * 1000));
  return 100 * (cpu_ns() - cpu_before) / double(now_ns() - before);
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "pingpong");
  const std::int64_t loaded = load_time_ns(argv);
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) give_up("socketpair failed");
  const pid_t child = fork();
  if (child < 0) give_up("fork failed");
  const bool first = child != 0;
  if (!first) die_with_parent();
  const int socket = sockets[first ? 0 : 1];
  close(sockets[first ? 1 : 0]);
  pin_to_core(first || only == "one_core" ? 0 : 1);
  {
    side mine(socket);
    const auto bytes = std::size_t(given.number("bytes", 8));
    if (only == "pingpong") {
      const double ns = round_trips(mine, first, given.number("iterations", 300'000), bytes, side::waiting::spinning);
      if (first) report("ucx_raw_pingpong", ns, "ns");
    } else if (only == "one_core") {
      const double ns = round_trips(mine, first, given.number("iterations", 50'000), bytes, side::waiting::yielding);
      if (first) report("ucx_raw_one_core", ns, "ns");
    } else if (only == "idle") {
      mine.exchange_one(first, bytes);
      const double percent = core_share_percent(mine, given.number("seconds", 1));
      if (first) report("ucx_raw_idle_cpu", percent, "percent");
    } else if (only == "start") {
      mine.exchange_one(first, bytes);
      if (first) report("ucx_raw_start", double(now_ns() - loaded), "ns");
    } else {
      give_up("--only takes pingpong, one_core, idle or start, not " + only);
    }
    char bye = 0;
    exchange(socket, &bye, 1, &bye, 1);  // keeps both endpoints alive until the last message has arrived
  }
  if (!first) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
