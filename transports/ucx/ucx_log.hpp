#pragma once
/// Prints UCX's own error messages as lines in parley's format, without most repetitions. Internal to transports/.
///
///     const ucx_log heard;          // one for each worker; it must outlive the worker
///
/// When processes are gone, UCX writes a line for each peer and each attempt. A fenced rank that comes back and finds all others gone
/// would print several lines for each of them, although its program's errors already say everything. Therefore, of the lines from one place
/// in UCX's sources only the 1st, 10th, 100th, … are written, to standard error, with the number of lines so far:
///
///     parley: UCX: shmat(shmid=65587) failed: Invalid argument (mm_sysv.c:61)
///     parley: UCX: shmat(shmid=65587) failed: Invalid argument (mm_sysv.c:61, 10 times so far)
///
/// UCX still writes fatal errors itself. If the user has set a UCX_LOG_ variable, UCX writes all messages itself.

namespace parley::transports {

class ucx_log {
 public:
  ucx_log();
  ~ucx_log();
  ucx_log(const ucx_log&) = delete;
  ucx_log& operator=(const ucx_log&) = delete;
};

}  // namespace parley::transports
