// What the sanitizers shall not report here, because it is not ours.

#if defined(__SANITIZE_ADDRESS__)
#define PARLEY_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PARLEY_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef PARLEY_ADDRESS_SANITIZER
// UCX asks whether it may read another process's memory by reading one byte with a stray address and no length that
// matters; the interceptor of process_vm_readv takes that for a write.
extern "C" const char* __asan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __asan_default_suppressions() { return "interceptor_via_lib:libuct_cma.so\n"; }  // NOLINT

extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() { return "leak:libucs.so\nleak:libucp.so\nleak:libuct\n"; }  // NOLINT
#endif
