# How parley's folders become targets. A public header is include/parley/NAME.hpp, included as <parley/NAME.hpp>; what lies behind
# it is included as <parley/FOLDER/SUB-FOLDER/NAME.hpp>, in the build tree through a link to the sources.
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/include/parley" SYMBOLIC)

add_library(parley_flags INTERFACE)
target_compile_features(parley_flags INTERFACE cxx_std_20)
target_compile_options(parley_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                              -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
                                              $<$<CXX_COMPILER_ID:GNU>:-fcoroutines>
                                              # g++ 12 sees overlaps in std::string (PR 105651) and overflows in
                                              # std::vector::insert that are not there; ASan watches for real ones
                                              "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow>"
                                              # what g++ 12's std::stable_sort is made of, clang 19 takes for the program's own
                                              "$<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>")
if(PARLEY_WARNINGS_AS_ERRORS)
  target_compile_options(parley_flags INTERFACE -Werror)
endif()
if(PARLEY_SANITIZE)
  # For every target, so that none is linked half sanitized.
  add_compile_options(-fsanitize=${PARLEY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${PARLEY_SANITIZE})
endif()

if(PARLEY_BUILD_FUZZ)
  # So that libFuzzer sees which ways its inputs take, in the library too; only parley_fuzz has its main().
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

function(parley_module_options target)
  # Otherwise g++ calls each function so that a program could replace it, and inlines none.
  target_compile_options(${target} PRIVATE
                         $<$<AND:$<CXX_COMPILER_ID:GNU>,$<NOT:$<CONFIG:Debug>>>:-fno-semantic-interposition>
                         # in headers that were parsed before, g++ 12 sees overflows in std::string that are not there
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>)
endfunction()

# parley_compile_together(TARGET): more than half of the time to compile a source goes into what its neighbours include as well, so six
# sources are one unit for the compiler. Therefore names in anonymous namespaces differ within a folder. The presets `dev` and `lint`
# compile each source by itself: for editors and clang-tidy, which want a command for each file, and for quick changes. So does clang,
# which sees one source's names shadow another's.
option(PARLEY_COMPILE_TOGETHER "Compile several sources of the library at once, which takes half of the time" ON)
function(parley_compile_together target)
  if(PARLEY_COMPILE_TOGETHER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    # Types that only one source knows look to g++ as if they came from a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# parley_parse_standard(TARGET): nearly every source includes the same part of the standard library and of Boost, which is
# parsed once for all of them.
function(parley_parse_standard target)
  if(NOT TARGET parley_standard)
    set(nothing "${PROJECT_BINARY_DIR}/standard.cpp")
    file(CONFIGURE OUTPUT "${nothing}" CONTENT "// Stands for the targets that share what it parses.\n")
    add_library(parley_standard OBJECT EXCLUDE_FROM_ALL "${nothing}")
    set_target_properties(parley_standard PROPERTIES POSITION_INDEPENDENT_CODE ON)
    parley_module_options(parley_standard)
    target_link_libraries(parley_standard PRIVATE Boost::headers Threads::Threads fmt::fmt parley_flags)
    target_precompile_headers(parley_standard PRIVATE <algorithm> <array> <atomic> <charconv> <chrono> <coroutine>
                              <cstring> <deque> <exception> <functional> <limits> <map> <memory> <mutex> <optional> <set>
                              <span> <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant> <vector>
                              <fmt/format.h> <boost/smart_ptr/intrusive_ptr.hpp>
                              <boost/smart_ptr/intrusive_ref_counter.hpp>
                              <boost/unordered/unordered_flat_map.hpp> <boost/unordered/unordered_flat_set.hpp>)
  endif()
  target_precompile_headers(${target} REUSE_FROM parley_standard)
endfunction()

# parley_module(NAME [WITHOUT sub-folder...] [USES folder...] [LINK target...]: the object library of one folder, with its
# sub-folders.
function(parley_module name)
  cmake_parse_arguments(ARG "" "" "WITHOUT;USES;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${name}/*.cpp" "${PROJECT_SOURCE_DIR}/${name}/*.hpp")
  foreach(part IN LISTS ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "/${name}/${part}/")
  endforeach()
  if(NOT sources)
    set(stub "${PROJECT_BINARY_DIR}/${name}_stub.cpp")
    file(CONFIGURE OUTPUT "${stub}" CONTENT "// ${name} holds headers only.\n")
    set(sources "${stub}")
  endif()
  add_library(parley_${name} OBJECT ${sources})
  set_target_properties(parley_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  parley_module_options(parley_${name})
  parley_parse_standard(parley_${name})
  parley_compile_together(parley_${name})
  target_include_directories(parley_${name} PUBLIC "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
  target_link_libraries(parley_${name} PUBLIC ${ARG_LINK} PRIVATE parley_flags)
  target_compile_features(parley_${name} PUBLIC cxx_std_20)
  foreach(used IN LISTS ARG_USES)
    target_link_libraries(parley_${name} PUBLIC parley_${used})
  endforeach()
endfunction()

# parley_library(NAME FOLDERS folder... LINK target...): the one library that users link, made of the folders' objects.
function(parley_library name)
  cmake_parse_arguments(ARG "" "" "FOLDERS;LINK" ${ARGN})
  add_library(${name} STATIC)
  add_library(parley::${name} ALIAS ${name})
  foreach(folder IN LISTS ARG_FOLDERS)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:parley_${folder}>)
  endforeach()
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                            $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
endfunction()

# parley_parse_once(TARGET): a program of one file takes most of its time to compile for <parley/parley.hpp>, which is
# parsed once for all of them.
function(parley_parse_once target)
  if(NOT TARGET parley_parsed)
    set(nothing "${PROJECT_BINARY_DIR}/parsed.cpp")
    file(CONFIGURE OUTPUT "${nothing}" CONTENT "// Stands for the programs that share what it parses.\n")
    add_library(parley_parsed OBJECT EXCLUDE_FROM_ALL "${nothing}")
    target_link_libraries(parley_parsed PRIVATE parley parley_flags)
    target_precompile_headers(parley_parsed PRIVATE <parley/parley.hpp>)
  endif()
  target_precompile_headers(${target} REUSE_FROM parley_parsed)
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>)  # see parley_test
endfunction()

# parley_test(NAME FOLDERS folder... [LINK target...] [PARSED header]): the sources in tests/NAME as one doctest program, run by
# CTest. PARSED is what most of its sources include.
function(parley_test name)
  cmake_parse_arguments(ARG "" "PARSED" "FOLDERS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${name}/*.cpp")
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources} "${PROJECT_SOURCE_DIR}/tests/main.cpp")
  target_link_libraries(test_${name} PRIVATE parley_flags doctest::doctest parley_test_support ${ARG_LINK})
  foreach(folder IN LISTS ARG_FOLDERS)
    target_link_libraries(test_${name} PRIVATE parley_${folder})
  endforeach()
  # It is the library that has to be fast; its tests have to be built soon: what nearly all of them include is parsed
  # once per program. (Not so for the library: in headers that were parsed so, g++ 12 warns of overflows in std::string
  # that are not there.)
  target_precompile_headers(test_${name} PRIVATE <doctest/doctest.h> <algorithm> <array> <chrono> <deque> <functional>
                            <map> <memory> <optional> <set> <span> <string> <variant> <vector> <fmt/format.h>)
  if(ARG_PARSED)
    target_precompile_headers(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/${ARG_PARSED}")
  endif()
  set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/main.cpp" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  target_compile_options(test_${name} PRIVATE $<$<CONFIG:Release>:-O1> $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>)
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600)  # of a hang; a busy machine takes its time
endfunction()

# Under sanitizers programs take several times as long, and so may the tests of the folder that this is called in.
function(parley_give_sanitizers_time)
  if(NOT PARLEY_SANITIZE)
    return()
  endif()
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    get_test_property(${test} TIMEOUT seconds)
    if(seconds)
      math(EXPR seconds "4 * ${seconds}")
      set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
    endif()
  endforeach()
endfunction()
