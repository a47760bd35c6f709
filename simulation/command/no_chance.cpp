// Functions that a simulation must not call, because a run must be a function of (scenario, seed). The linker redirects such calls of
// our own objects to this file (--wrap, CMakeLists.txt), where they abort.
#include <cstdio>
#include <cstdlib>

namespace {

[[noreturn]] void refuse(const char* what) {
  std::fprintf(stderr, "parley_sim: %s was asked for, and a simulation may not depend on it\n", what);
  std::abort();
}

}  // namespace

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's names
int __wrap_clock_gettime(int, void*) { refuse("the machine's clock"); }
int __wrap_gettimeofday(void*, void*) { refuse("the machine's clock"); }
int __wrap_timespec_get(void*, int) { refuse("the machine's clock"); }
long __wrap_time(long*) { refuse("the machine's clock"); }
long __wrap_clock() { refuse("the machine's clock"); }
long __wrap_getrandom(void*, unsigned long, unsigned) { refuse("chance"); }
int __wrap_getentropy(void*, unsigned long) { refuse("chance"); }
int __wrap_rand() { refuse("chance"); }
int __wrap_rand_r(unsigned*) { refuse("chance"); }
long __wrap_random() { refuse("chance"); }
double __wrap_drand48() { refuse("chance"); }
int __wrap_RAND_bytes(unsigned char*, int) { refuse("chance"); }
long long __wrap__ZNSt6chrono3_V212steady_clock3nowEv() { refuse("the machine's clock"); }
long long __wrap__ZNSt6chrono3_V212system_clock3nowEv() { refuse("the machine's clock"); }
unsigned __wrap__ZNSt13random_device9_M_getvalEv(void*) { refuse("chance"); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}
