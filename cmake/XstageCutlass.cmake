# Finds the CUTLASS headers (CuTe's matrix instructions) that `./dev cutlass` unpacks, or those of
# -DXSTAGE_CUTLASS_DIR=.../include. Sets XSTAGE_CUTLASS_INCLUDE, empty if there are none.
set(XSTAGE_CUTLASS_VERSION 4.2.0.0)
find_path(XSTAGE_CUTLASS_INCLUDE cute/arch/mma_sm90_gmma.hpp
    HINTS ${XSTAGE_CUTLASS_DIR} ${PROJECT_SOURCE_DIR}/.cache/cutlass-${XSTAGE_CUTLASS_VERSION}/include
    NO_CMAKE_FIND_ROOT_PATH)
if(NOT XSTAGE_CUTLASS_INCLUDE)
    set(missing "the CUTLASS ${XSTAGE_CUTLASS_VERSION} headers are missing: run `./dev cutlass` where PyPI "
        "can be reached, or set XSTAGE_CUTLASS_DIR to an include folder that has cute/")
    string(JOIN "" missing ${missing})
    if(XSTAGE_CUDA STREQUAL "ON")
        message(FATAL_ERROR "${missing}")
    endif()
    message(WARNING "The attention kernel is left out: ${missing}")
endif()
