#pragma once
/// `parley run --hostfile FILE`: the ranks of one job on the hosts that a file names, each started there by ssh.
///
///     # hosts.txt
///     node1 slots=4
///     node2 slots=4
///
/// A line is a host, with the number of ranks that it takes at most (`slots=4`, or `node1:4`); what follows `#` is a remark. All hosts get
/// the same number of ranks. ssh starts this very program on each of them, by the path that it has here and in the folder that this one
/// is in, with the variables PARLEY_*, UCX_* and NCCL_* that are set here. The job's key goes to them by ssh, too, so that it lies in no
/// file. A host whose connection ends ends its ranks.
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
  std::string ssh{};                   ///< what starts a program on a host
  std::string rendezvous{};            ///< host:port; empty: the first host, and a port that is free there as a rule
  std::vector<std::string> options{};  ///< of `parley run` there
  std::vector<std::string> command{};  ///< the ranks' program
  runtime::time_ns timeout_ns = runtime::never;
};

/// Starts them, and answers the status of the first host that failed, which is that of its first rank that did. Throws `text_error`
/// where the ranks do not go on the hosts.
int run_on_hosts(const remote_job& job);

/// As a shell takes it for one word.
std::string as_one_word(std::string_view word);

}  // namespace parley::cli
