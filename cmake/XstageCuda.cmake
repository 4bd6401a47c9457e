# Decides whether the CUDA parts are built. XSTAGE_HAVE_CUDA is what the rest of the tree asks.
set(XSTAGE_HAVE_CUDA OFF)
if(NOT XSTAGE_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
        set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
    endif()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        # Architectures are set per target: 90a for Hopper instructions, 100a beside it where portable.
        set(CMAKE_CUDA_ARCHITECTURES OFF)
        enable_language(CUDA)
        # CMake 3.25 does not know that nvcc 12 and later speak C++20.
        if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
            set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
            set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
        endif()
        set(CMAKE_CUDA_STANDARD 20)
        set(CMAKE_CUDA_STANDARD_REQUIRED ON)
        set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
        find_package(CUDAToolkit REQUIRED)
        set(XSTAGE_HAVE_CUDA ON)
    elseif(XSTAGE_CUDA STREQUAL "ON")
        message(FATAL_ERROR "XSTAGE_CUDA is ON but no nvcc was found; use the preset 'host' without one")
    endif()
endif()

# xstage_cuda_arch(TARGET ARCH...): machine code for these architectures only ("90a", "100a").
function(xstage_cuda_arch target)
    foreach(arch ${ARGN})
        target_compile_options(${target} PRIVATE
            "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_${arch},code=sm_${arch}>")
    endforeach()
endfunction()
