// Adapts AddressSanitizer to UCX. cmake/ParleyDependencies.cmake adds this file to every program that uses UCX and is built with
// AddressSanitizer.
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

// UCX finds out whether it may read a peer's memory by reading bytes of the peer over the very iovec that says where the bytes are to go.
// AddressSanitizer's process_vm_readv reads that iovec again after the call, and so writes the shadow of whatever address the peer's
// bytes spell. This function replaces it, and only calls the kernel.
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* into, unsigned long into_count, const iovec* from,
                                    unsigned long from_count, unsigned long flags) noexcept {
  return ::syscall(SYS_process_vm_readv, pid, into, into_count, from, from_count, flags);
}

// Memory that UCX keeps until the process ends.
extern "C" const char* __lsan_default_suppressions();   // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct\n";
}
