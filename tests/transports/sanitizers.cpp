// What the sanitizers shall not report here, because it is not ours.

#if defined(__SANITIZE_ADDRESS__)
#define PARLEY_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PARLEY_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef PARLEY_ADDRESS_SANITIZER
// UCX finds out whether it may read a peer's memory by reading over its own iovec; the interceptor of process_vm_readv
// then follows what was read into it.
extern "C" const char* __asan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __asan_default_suppressions() { return "interceptor_via_lib:libuct_cma.so\n"; }  // NOLINT

extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct\n";
}  // NOLINT
#endif
