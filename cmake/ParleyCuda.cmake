# parley::cuda, the GPU planes. PARLEY_CUDA says ON (required), OFF, or AUTO: where the toolkit is found and nothing is
# sanitized. Linking it needs neither a GPU nor a driver, and a program that links it starts without them.
set(PARLEY_CUDA "AUTO" CACHE STRING "Build the GPU planes: ON, OFF, or AUTO where the CUDA toolkit is found")
set_property(CACHE PARLEY_CUDA PROPERTY STRINGS AUTO ON OFF)
set(PARLEY_WITH_CUDA OFF)
# What `./dev test` says of it.
function(parley_say_gpu_planes text)
  set(PARLEY_GPU_PLANES "${text}" CACHE INTERNAL "Whether the GPU planes are built, and why not")
  message(STATUS "GPU planes: ${text}")
endfunction()
if(PARLEY_CUDA STREQUAL "OFF")
  parley_say_gpu_planes("not built, PARLEY_CUDA is OFF")
  return()
elseif(PARLEY_CUDA STREQUAL "AUTO" AND PARLEY_SANITIZE)
  parley_say_gpu_planes("not built, as this build is sanitized")
  return()
endif()

# nvcc lies where no PATH leads; it compiles kernels only, with the host compiler that it likes best.
find_package(CUDAToolkit 12.8 QUIET)
if(CUDAToolkit_FOUND AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # Hopper's own code, and portable code that the driver compiles for everything else.
  set(CMAKE_CUDA_ARCHITECTURES "90-real;75-virtual")
endif()
include(CheckLanguage)
if(CUDAToolkit_FOUND)
  check_language(CUDA)
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(PARLEY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PARLEY_CUDA is ON, and no working CUDA toolkit (12.8 or newer) was found: install one, set "
                        "CUDAToolkit_ROOT, or build without the GPU planes (-DPARLEY_CUDA=OFF)")
  endif()
  parley_say_gpu_planes("not built, no working CUDA toolkit (12.8 or newer) was found")
  return()
endif()
enable_language(CUDA)
set(PARLEY_WITH_CUDA ON)
list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
parley_say_gpu_planes("built with CUDA ${CUDAToolkit_VERSION} for ${architectures}")

file(GLOB cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/transports/cuda/device/*.cpp"
     "${PROJECT_SOURCE_DIR}/transports/cuda/device/*.cu" "${PROJECT_SOURCE_DIR}/transports/cuda/device/*.hpp")
add_library(parley_cuda STATIC ${cuda_sources})
add_library(parley::cuda ALIAS parley_cuda)
set_target_properties(parley_cuda PROPERTIES EXPORT_NAME cuda POSITION_INDEPENDENT_CODE ON CUDA_RUNTIME_LIBRARY Static)
target_link_libraries(parley_cuda PUBLIC parley CUDA::cudart_static)
# Kernels are nvcc's, whose own warnings and generated code know other rules. (The standard is named because the CUDA_STANDARD
# of CMake 3.25 leaves it out for CUDA 13.)
get_target_property(cuda_warnings parley_flags INTERFACE_COMPILE_OPTIONS)
target_compile_options(parley_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${cuda_warnings}>"
                                           "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Werror;all-warnings>")
