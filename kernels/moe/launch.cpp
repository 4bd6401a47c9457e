#include "launch.hpp"

#include <cuda_runtime.h>

#include <fmt/format.h>

#include "../tensor_map_encoder.hpp"
#include "config.hpp"
#include "entry.hpp"
#include "xstage/error.hpp"

namespace xstage::moe::kernels {

namespace {

const Entry& entry_of(const Variant& variant) {
    static const Entry* const kEntries[2][2][2] = {
        {{&kBf16, &kBf16Stamped}, {&kBf16Pairs, &kBf16PairsStamped}},
        {{&kFp8, &kFp8Stamped}, {&kFp8Pairs, &kFp8PairsStamped}}};
    return *kEntries[variant.type == Type::kFp8 ? 1 : 0][variant.ctas == 2 ? 1 : 0]
                    [variant.stamped ? 1 : 0];
}

}  // namespace

cudaError_t preload(const Variant& variant, int* resident_ctas) {
    return entry_of(variant).prepare(resident_ctas);
}

cudaError_t launch(const Variant& variant, const KernelParams& p, int ranks, cudaStream_t stream) {
    return entry_of(variant).launch(p, ranks, stream);
}

CUtensorMap encode_map(const char* what, const void* data, Type type, std::int64_t rows,
                       std::int64_t columns, int box_rows) {
    const int element = type == Type::kFp8 ? 1 : 2;
    // Coordinates are int32 and every box lies within the tensor: a stage's columns divide the
    // columns, a box's rows the rows.
    if (data == nullptr || reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}: the address must be a multiple of 16 bytes", what));
    if (columns <= 0 || columns * element % kStageBytes != 0 || rows <= 0 || rows % box_rows != 0 ||
        rows >= std::int64_t{1} << 31)
        throw Error(ErrorKind::kBadInput, fmt::format("{}: {} rows of {} columns do not fall into "
                                                      "boxes of {} rows of {} bytes",
                                                      what, rows, columns, box_rows, kStageBytes));
    const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * element)};
    const cuuint32_t box[2] = {static_cast<cuuint32_t>(kStageBytes / element),
                               static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t every_element[2] = {1, 1};
    CUtensorMap map;
    const CUresult status = tensor_map_encoder()(
        &map, type == Type::kFp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2, const_cast<void*>(data), extents, strides, box, every_element,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}: the driver cannot map {} rows of {} columns (error {})", what,
                                rows, columns, static_cast<int>(status)));
    return map;
}

}  // namespace xstage::moe::kernels
