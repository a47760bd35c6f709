#pragma once
/// Tries whether two processes of this host can send each other a message: what `parley doctor` says of plane host.
///
///     const auto tried = try_host_plane();       // "UCX 1.22.0, transports …", or why there is no such message
///
/// Starts two processes, each with a link of its own, and ends them. Returns within ten seconds, whatever UCX does; the reason
/// includes what UCX itself complained of. Call it before this process has started threads.
#include <parley/error.hpp>

#include <string>

namespace parley::cli {

runtime::result<std::string> try_host_plane();

}  // namespace parley::cli
