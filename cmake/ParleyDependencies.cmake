# Where each dependency comes from; README.md has the table with the reasons.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(fmt REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)

# UCX: the wheel that ./dev unpacks into .deps/ucx, a folder given as UCX_ROOT, or the system's own.
include(ParleyUcx)
parley_find_ucx(ucx_found HINTS "${PROJECT_SOURCE_DIR}/.deps/ucx")
if(NOT ucx_found)
  message(FATAL_ERROR "UCX was not found. Run ./dev setup, which unpacks it into .deps/ucx, install libucx-dev, "
                      "or set UCX_ROOT to a folder with include/ucp/api/ucp.h and lib/libucp.so.")
endif()

if(PARLEY_BUILD_TESTS)
  find_package(doctest REQUIRED)
endif()
