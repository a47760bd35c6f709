#pragma once
/// Tries whether two processes of this host can send each other a message. `parley doctor` prints the result for the plane `host`.
///
///     const auto tried = try_host_plane();       // "UCX 1.22.0, transports …", or why there is no such message
///
/// Starts two processes, each with its own link, and ends them. Returns within ten seconds, even if UCX hangs; the reason includes
/// UCX's own complaints. Call it before this process has started threads.
#include <parley/error.hpp>

#include <string>

namespace parley::cli {

runtime::result<std::string> try_host_plane();

}  // namespace parley::cli
