# Finds cuDNN's headers (the CUDA toolkit's or a package's) and those of cudnn-frontend, which
# `./dev cudnn` unpacks or -DXSTAGE_CUDNN_FRONTEND_DIR=.../include names. libcudnn itself is opened at run
# time. Sets XSTAGE_CUDNN_INCLUDE and XSTAGE_CUDNN_FRONTEND_INCLUDE, empty if there are none.
set(XSTAGE_CUDNN_FRONTEND_VERSION 1.32.0)
find_path(XSTAGE_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
    HINTS ${XSTAGE_CUDNN_FRONTEND_DIR} ${PROJECT_SOURCE_DIR}/.cache/cudnn-frontend-${XSTAGE_CUDNN_FRONTEND_VERSION}/include
    NO_CMAKE_FIND_ROOT_PATH)
find_path(XSTAGE_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
