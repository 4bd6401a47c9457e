#include "tensor_map.hpp"

#include <cuda.h>
#include <fmt/format.h>

#include <cstring>

#include "../tensor_map_encoder.hpp"
#include "cuda_memory.hpp"

namespace xstage::probe {

TensorMap window_tensor_map(void* base, std::uint64_t bytes) {
    constexpr std::uint64_t kRow = 4096;
    const cuuint64_t size[2] = {kRow / 2, bytes / kRow};
    const cuuint64_t stride[1] = {kRow};
    const cuuint32_t box[2] = {64, 32};
    const cuuint32_t step[2] = {1, 1};
    CUtensorMap map{};
    const CUresult result =
        tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, base, size, stride, box,
                             step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("encoding a tensor map failed [{}]", static_cast<int>(result)));
    }
    static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
    TensorMap out{};
    std::memcpy(&out, &map, sizeof out);
    return out;
}

}  // namespace xstage::probe
