# Checks that run with the tests: the arrows between folders, and headers that compile alone.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

set(arrows "${PROJECT_SOURCE_DIR}/cmake/checks/arrows.py")
add_test(NAME arrows COMMAND Python3::Interpreter "${arrows}")
add_test(NAME arrows_can_fail COMMAND Python3::Interpreter "${arrows}" --self-test)
set_tests_properties(arrows arrows_can_fail PROPERTIES TIMEOUT 60)

# What the pages point to is there.
set(links "${PROJECT_SOURCE_DIR}/cmake/checks/links.py")
add_test(NAME page_links COMMAND Python3::Interpreter "${links}")
add_test(NAME page_links_can_fail COMMAND Python3::Interpreter "${links}" --self-test)
set_tests_properties(page_links page_links_can_fail PROPERTIES TIMEOUT 60)

# What README.md and docs/ show compiles.
if(TARGET example_send_recv)
  add_test(NAME snippets COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/cmake/checks/snippets.py" --build "${PROJECT_BINARY_DIR}")
  set_tests_properties(snippets PROPERTIES TIMEOUT 120)
endif()

# A program that knows only find_package(parley) builds and runs. It links no sanitizer: not for such builds.
if(NOT PARLEY_SANITIZE)
  add_test(NAME installed_package
           COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/cmake/checks/install.py" --build "${PROJECT_BINARY_DIR}"
                   --compiler "${CMAKE_CXX_COMPILER}")
  set_tests_properties(installed_package PROPERTIES TIMEOUT 120)
endif()

# Each header leans on nothing that was included before it: its own source includes it first (arrows.py sees to that), and one
# without a source is compiled alone here. `./dev test` builds this target; a plain build does not.
set(checked)
set(sources)
foreach(folder IN LISTS PARLEY_FOLDERS)
  file(GLOB_RECURSE of_folder CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  list(APPEND sources ${of_folder})
endforeach()
foreach(folder IN ITEMS include/parley LISTS PARLEY_FOLDERS)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/${folder}/*.hpp")
  if(NOT PARLEY_WITH_CUDA)
    list(FILTER headers EXCLUDE REGEX "^transports/cuda/device/")
  endif()
  foreach(header IN LISTS headers)
    string(REGEX REPLACE "\\.hpp$" ".cpp" source "${header}")
    set(its_own "${PROJECT_SOURCE_DIR}/${source}")
    if(folder STREQUAL "include/parley")
      get_filename_component(name "${source}" NAME)
      set(its_own "${sources}")
      list(FILTER its_own INCLUDE REGEX "/${name}$")
    elseif(NOT EXISTS "${its_own}")
      set(its_own)
    endif()
    if(NOT its_own)
      string(REGEX REPLACE "^include/parley/" "" included "${header}")
      file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/header_check/${source}" CONTENT "#include <parley/${included}>\n")
      list(APPEND checked "${PROJECT_BINARY_DIR}/header_check/${source}")
    endif()
  endforeach()
endforeach()
add_library(parley_header_check OBJECT EXCLUDE_FROM_ALL ${checked})
target_link_libraries(parley_header_check PRIVATE parley_flags parley)
target_compile_options(parley_header_check PRIVATE -O0 -g0)
