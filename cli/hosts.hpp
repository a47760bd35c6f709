#pragma once
/// `parley run --hostfile FILE`: runs the ranks of one job on the hosts that a file names; ssh starts them there.
///
///     # hosts.txt
///     node1 slots=4
///     node2 slots=4
///
/// A line is a host, with the largest number of ranks that it accepts (`slots=4`, or `node1:4`); text behind `#` is a remark. All hosts
/// get the same number of ranks. On each host ssh starts this program again, by the same path and in the same folder as here, with the
/// variables PARLEY_*, UCX_* and NCCL_* that are set here. The job's key also reaches the hosts by ssh, so that no file holds it. If the
/// connection to a host ends, the host's ranks end.
#include <parley/identifiers.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace parley::cli {

struct host_line {
  std::string name;
  std::optional<runtime::rank_id> slots;  ///< nothing: any number of ranks
};

/// Throws `text_error`, which begins with FILE:LINE.
std::vector<host_line> read_hosts(const std::string& path);

struct remote_job {
  std::vector<host_line> hosts;
  runtime::rank_id ranks = 1;          ///< of all hosts together
  std::string ssh{};                   ///< the command that starts a program on a host
  std::string rendezvous{};            ///< host:port; empty: the first host, and a port that is usually free there
  std::vector<std::string> options{};  ///< of `parley run` on the hosts
  std::vector<std::string> command{};  ///< the ranks' program
  runtime::time_ns timeout_ns = runtime::never;
};

/// Starts the ranks. Returns the status of the first failed host, which is the status of that host's first failed rank. Throws
/// `text_error` if the ranks do not fit on the hosts.
int run_on_hosts(const remote_job& job);

/// Quotes a text so that a shell reads it as one word.
std::string as_one_word(std::string_view word);

}  // namespace parley::cli
