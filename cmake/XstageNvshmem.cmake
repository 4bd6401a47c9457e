# Finds NVSHMEM: the wheel that `./dev nvshmem` unpacks, or -DXSTAGE_NVSHMEM_ROOT=... with include/ and lib/
# in it. Its headers and the device library are needed here; the host library is opened at run time, so
# what is built runs where there is none. Sets XSTAGE_HAVE_NVSHMEM and XSTAGE_NVSHMEM_INCLUDE.
set(XSTAGE_NVSHMEM_VERSION 3.4.5)
set(XSTAGE_HAVE_NVSHMEM OFF)
if(XSTAGE_HAVE_CUDA)
    set(roots ${XSTAGE_NVSHMEM_ROOT} ${PROJECT_SOURCE_DIR}/.cache/nvshmem-${XSTAGE_NVSHMEM_VERSION})
    find_path(XSTAGE_NVSHMEM_INCLUDE nvshmem.h HINTS ${roots} PATH_SUFFIXES include NO_CMAKE_FIND_ROOT_PATH)
    find_file(XSTAGE_NVSHMEM_DEVICE libnvshmem_device.a HINTS ${roots} PATH_SUFFIXES lib NO_CMAKE_FIND_ROOT_PATH)
    if(XSTAGE_NVSHMEM_INCLUDE AND XSTAGE_NVSHMEM_DEVICE)
        set(XSTAGE_HAVE_NVSHMEM ON)
    elseif(XSTAGE_NVSHMEM_ROOT)
        message(FATAL_ERROR "XSTAGE_NVSHMEM_ROOT (${XSTAGE_NVSHMEM_ROOT}) has no include/nvshmem.h and lib/libnvshmem_device.a")
    else()
        message(STATUS "The nvshmem backend is left out: run `./dev nvshmem`, or set XSTAGE_NVSHMEM_ROOT")
    endif()
endif()

# xstage_nvshmem_kernels(TARGET SOURCE): NVSHMEM's device code is relocatable and has to be linked by nvcc. It is
# linked into machine code of its own, which the target carries as bytes and loads when asked, so that
# nothing else in the tree is compiled that way.
function(xstage_nvshmem_kernels target source)
    set(bytes ${CMAKE_CURRENT_BINARY_DIR}/nvshmem_kernels.fatbin)
    set(arch -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100a,code=sm_100a)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/nvshmem_kernels.o)
    set(depfile ${CMAKE_CURRENT_BINARY_DIR}/nvshmem_kernels.d)
    add_custom_command(OUTPUT ${bytes}
        COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${CMAKE_CUDA_COMPILER} -std=c++20 -O3 -rdc=true ${arch}
            -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -isystem ${XSTAGE_NVSHMEM_INCLUDE}
            -Xcompiler=-Wall,-Wextra,-Werror -MD -MF ${depfile} -MT ${bytes} -c ${source} -o ${object}
        COMMAND ${CMAKE_CUDA_COMPILER} ${arch} -dlink -fatbin ${object} ${XSTAGE_NVSHMEM_DEVICE} -o ${bytes}
        DEPENDS ${source} ${XSTAGE_NVSHMEM_DEVICE} DEPFILE ${depfile}
        COMMENT "Linking device code ${bytes}" VERBATIM)
    set(carrier ${CMAKE_CURRENT_BINARY_DIR}/nvshmem_bytes.cpp)
    file(CONFIGURE OUTPUT ${carrier} @ONLY CONTENT [[
// Device code as bytes; the assembler reads the file.
__asm__(".pushsection .rodata\n.balign 16\n"
        ".hidden xstage_nvshmem_fatbin\n.globl xstage_nvshmem_fatbin\nxstage_nvshmem_fatbin:\n"
        ".incbin \"@bytes@\"\n.byte 0\n.popsection\n");
]])
    set_source_files_properties(${carrier} PROPERTIES OBJECT_DEPENDS ${bytes})
    target_sources(${target} PRIVATE ${carrier})
endfunction()
