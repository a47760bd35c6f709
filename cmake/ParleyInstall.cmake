# The installed package: include/parley, libparley.a, and what find_package(parley) and pkg-config read; and the Debian package of it all.
include(CMakePackageConfigHelpers)
set(PARLEY_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/parley")
set(PARLEY_PACKAGE libparley-dev) # of Debian

install(TARGETS parley EXPORT parleyTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/parley" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
# Then the headers that those include. No program names them.
file(GLOB unread CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/parley/*.hpp")
set(behind)
while(unread)
  list(POP_FRONT unread header)
  file(STRINGS "${header}" includes REGEX "^#include <parley/.*/.*>$")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^#include <parley/(.*)>$" "\\1" name "${include}")
    if(NOT name IN_LIST behind)
      list(APPEND behind "${name}")
      list(APPEND unread "${PROJECT_SOURCE_DIR}/${name}")
    endif()
  endforeach()
endwhile()
foreach(name IN LISTS behind)
  get_filename_component(folder "${name}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/${name}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/parley/${folder}")
endforeach()
if(PARLEY_WITH_CUDA)
  # A file of its own: who has no CUDA toolkit still finds the rest.
  install(TARGETS parley_cuda EXPORT parleyCudaTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(EXPORT parleyCudaTargets NAMESPACE parley:: DESTINATION "${PARLEY_PACKAGE_DIR}")
endif()
install(EXPORT parleyTargets NAMESPACE parley:: DESTINATION "${PARLEY_PACKAGE_DIR}")

# The consumer needs the Boost components that parley links, and no others.
get_target_property(linked parley INTERFACE_LINK_LIBRARIES)
set(PARLEY_BOOST_COMPONENTS "")
if("Boost::json" IN_LIST linked)
  set(PARLEY_BOOST_COMPONENTS "COMPONENTS json")
endif()
set(PARLEY_UCX_HINT "${PARLEY_UCX_PREFIX}")
if(PARLEY_INSTALL_UCX)
  # As a folder that UCX_ROOT could name. UCX looks for its modules beside its libraries, in lib/ucx.
  install(DIRECTORY "${PARLEY_UCX_PREFIX}/include" DESTINATION "${PARLEY_UCX_DIR}")
  install(DIRECTORY "${PARLEY_UCX_PREFIX}/lib" DESTINATION "${PARLEY_UCX_DIR}" FILES_MATCHING PATTERN "*.so*"
          PATTERN cmake EXCLUDE PATTERN pkgconfig EXCLUDE)
  # PACKAGE_PREFIX_DIR would be that of the last package which parley's own config has looked for.
  file(RELATIVE_PATH to_ucx "/${PARLEY_PACKAGE_DIR}" "/${PARLEY_UCX_DIR}")
  set(PARLEY_UCX_HINT "\${CMAKE_CURRENT_LIST_DIR}/${to_ucx}")
endif()
# What find_package(parley) reads.
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/parleyConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/parleyConfig.cmake"
                              INSTALL_DESTINATION "${PARLEY_PACKAGE_DIR}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/parleyConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/parleyConfig.cmake" "${PROJECT_BINARY_DIR}/parleyConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/ParleyUcx.cmake" DESTINATION "${PARLEY_PACKAGE_DIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${PARLEY_PACKAGE}" RENAME copyright)
# The pages name the specs of `parley tune` by their path in the sources.
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${PARLEY_PACKAGE}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${PARLEY_PACKAGE}"
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "specs/*.json" PATTERN measured EXCLUDE PATTERN gpu EXCLUDE PATTERN embedding EXCLUDE)

# What pkg-config reads.
file(RELATIVE_PATH to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
set(ucx_of_pc "${PARLEY_UCX_PREFIX}/lib")
if(PARLEY_INSTALL_UCX)
  set(ucx_of_pc "\${prefix}/${PARLEY_UCX_DIR}/lib")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/parley.pc.in" "${PROJECT_BINARY_DIR}/parley.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/parley.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# The Debian package, which `./dev package` makes. Debian's own package `parley` is a program for learning words, with a command of that
# name, too.
if(PROJECT_IS_TOP_LEVEL)
  set(boost "${Boost_VERSION_MAJOR}.${Boost_VERSION_MINOR}")
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME "${PARLEY_PACKAGE}")
  set(CPACK_PACKAGE_CONTACT "the maintainers of parley <parley@localhost>")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS parley)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS
      "libboost${boost}-dev, libboost-json${boost}-dev, libfmt-dev, libssl-dev (>= 3), libstdc++6, libc6")
  if(NOT PARLEY_INSTALL_UCX)
    string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libucx-dev")
  endif()
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++, cmake")
  include(CPack)
endif()
