#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "xstage/error.hpp"

namespace xstage {

/// cuTensorMapEncodeTiled, asked of the runtime, so that nothing links against the driver library.
/// Throws Error (kUnsupported) where the driver has none.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
    static const auto function = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found{};
        const cudaError_t status = cudaGetDriverEntryPointByVersion(
            "cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
        if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
            throw Error(ErrorKind::kUnsupported, "the CUDA driver has no cuTensorMapEncodeTiled");
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
    }();
    return function;
}

}  // namespace xstage
