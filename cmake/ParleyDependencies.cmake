# Where each dependency comes from; docs/dependencies.md has the table with the reasons.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(fmt REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)

# UCX: the wheel that ./dev unpacks into .deps/ucx, a folder given as UCX_ROOT, or the system's own. Debian 12's 1.13 is the
# oldest that the tests were run with.
include(ParleyUcx)
parley_find_ucx(ucx NOT_BEFORE 1.13 HINTS "${PROJECT_SOURCE_DIR}/.deps/ucx")
if(NOT ucx)
  message(FATAL_ERROR "${ucx_WHY}. Run ./dev setup, which unpacks it into .deps/ucx, install libucx-dev, or set "
                      "UCX_ROOT to a folder with include/ucp/api/ucp.h and lib/libucp.so.")
endif()
cmake_path(GET PARLEY_UCX_INCLUDE_DIR PARENT_PATH PARLEY_UCX_PREFIX)
if(PARLEY_SANITIZE MATCHES address)
  # Programs, not libraries: what is in there takes the sanitizer's place.
  target_sources(ucx::ucp INTERFACE "$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:\
${PROJECT_SOURCE_DIR}/tests/support/sanitizers.cpp>")
endif()

# What is installed must find the UCX that it was built with. One that lies among the sources comes along; one that lies
# elsewhere stays there.
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${PARLEY_UCX_PREFIX}" ucx_is_ours)
option(PARLEY_INSTALL_UCX "Install UCX, too, in a folder of parley's own" ${ucx_is_ours})

if(PARLEY_BUILD_TESTS)
  find_package(doctest REQUIRED)
endif()
