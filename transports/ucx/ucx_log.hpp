#pragma once
/// What UCX itself writes about errors, as lines of parley's. Internal to transports/.
///
///     const ucx_log heard;          // beside each worker; from the first one on, to the end of the last
///
/// UCX writes a line for each peer and each try when processes are gone: a rank that was fenced, and comes back to find all others
/// gone, would print several for each of them, of which its program's errors say all. So each place in UCX's sources writes its first
/// line, to standard error, and then one after 10, 100, … further ones, which says how many there were:
///
///     parley: UCX: shmat(shmid=65587) failed: Invalid argument (mm_sysv.c:61)
///     parley: UCX: shmat(shmid=65587) failed: Invalid argument (mm_sysv.c:61, 10 times so far)
///
/// What ends the process (`fatal`), and everything where the user has set a UCX_LOG_ variable, UCX writes as it likes.

namespace parley::transports {

class ucx_log {
 public:
  ucx_log();
  ~ucx_log();
  ucx_log(const ucx_log&) = delete;
  ucx_log& operator=(const ucx_log&) = delete;
};

}  // namespace parley::transports
