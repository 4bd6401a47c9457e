#include "tensor_map.hpp"

#include <cuda_runtime.h>

#include <fmt/format.h>

#include "../tensor_map_encoder.hpp"
#include "xstage/error.hpp"

namespace xstage::attention {

namespace {

constexpr std::int64_t kElementBytes = 2;
constexpr int kPanelColumns = 64;  // 128 bytes, the row length of the widest swizzle

cuuint64_t stride_bytes(const char* what, const char* which, std::int64_t stride,
                        std::int64_t extent) {
    if (extent <= 1) return 128;  // never used, but must be a valid stride
    const std::int64_t bytes = stride * kElementBytes;
    if (bytes <= 0 || bytes % 16 != 0 || bytes >= std::int64_t{1} << 40) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}: {} is {} elements; it must be a positive multiple of 8 below "
                                "2^39",
                                what, which, stride));
    }
    return static_cast<cuuint64_t>(bytes);
}

}  // namespace

CUtensorMap encode_map(const char* what, const AttentionView& view, AttentionType type,
                       std::int64_t rows, int head_dim, std::int64_t heads, std::int64_t batches,
                       int box_rows, int box_panels) {
    if (view.data == nullptr || reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}: the address must be a multiple of 16 bytes", what));
    }
    const int panels = head_dim / kPanelColumns;
    const cuuint64_t extents[5] = {kPanelColumns, static_cast<cuuint64_t>(rows),
                                   static_cast<cuuint64_t>(panels), static_cast<cuuint64_t>(heads),
                                   static_cast<cuuint64_t>(batches)};
    const cuuint64_t strides[4] = {stride_bytes(what, "stride_row", view.stride_row, rows),
                                   kPanelColumns * kElementBytes,
                                   stride_bytes(what, "stride_head", view.stride_head, heads),
                                   stride_bytes(what, "stride_batch", view.stride_batch, batches)};
    const cuuint32_t box[5] = {kPanelColumns, static_cast<cuuint32_t>(box_rows),
                               static_cast<cuuint32_t>(box_panels), 1, 1};
    const cuuint32_t every_element[5] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    const CUresult status =
        tensor_map_encoder()(&map,
                             type == AttentionType::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                             5, view.data, extents, strides, box, every_element,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) {
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{}: the driver cannot map this view (error {}): {} rows, {} "
                                "heads, {} batches, strides {}, {}, {}",
                                what, static_cast<int>(status), rows, heads, batches,
                                view.stride_row, view.stride_head, view.stride_batch));
    }
    return map;
}

}  // namespace xstage::attention
