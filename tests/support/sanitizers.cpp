// What AddressSanitizer has to know about UCX. cmake/ParleyDependencies.cmake puts it into every program that is built
// with it and uses UCX.
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

// UCX finds out whether it may read a peer's memory by reading the peer's bytes over the very iovec that says where they
// are to go. AddressSanitizer's process_vm_readv looks at that iovec once more when the call has returned, and writes the
// shadow of whatever address the peer's bytes spell. This one takes its place, and only calls the kernel.
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* into, unsigned long into_count, const iovec* from,
                                    unsigned long from_count, unsigned long flags) noexcept {
  return ::syscall(SYS_process_vm_readv, pid, into, into_count, from, from_count, flags);
}

// What UCX keeps until the process ends.
extern "C" const char* __lsan_default_suppressions();   // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct\n";
}
