#include "xstage/ulysses/transform.hpp"

namespace xstage::ulysses::rotary {

Rotary flux(const float* cos, const float* sin, int head_dim) {
    Rotary r;
    r.kind = RotaryKind::kInterleaved;
    r.dims = head_dim;
    r.cos = cos;
    r.sin = sin;
    r.row_stride = head_dim;
    return r;
}

Rotary wan(const float* cos, const float* sin, int head_dim) {
    Rotary r = flux(cos, sin, head_dim);
    r.table = RotaryTable::kEvenOdd;
    return r;
}

Rotary qwen_image(const float* table, int head_dim) {
    Rotary r = flux(table, table + 1, head_dim);
    r.table = RotaryTable::kPerPair;
    r.step = 2;
    return r;
}

Rotary ltx2_interleaved(const float* cos, const float* sin, int heads, int head_dim,
                        std::int64_t rows) {
    Rotary r = flux(cos, sin, head_dim);
    r.row_stride = std::int64_t{heads} * head_dim;
    r.batch_stride = rows * r.row_stride;
    r.head_stride = head_dim;
    return r;
}

Rotary ltx2_split(const float* cos, const float* sin, int heads, int head_dim, std::int64_t rows) {
    Rotary r;
    r.kind = RotaryKind::kHalf;
    r.table = RotaryTable::kPerPair;
    r.dims = head_dim;
    r.cos = cos;
    r.sin = sin;
    r.row_stride = head_dim / 2;
    r.head_stride = rows * r.row_stride;
    r.batch_stride = heads * r.head_stride;
    return r;
}

Rotary minimax_h3(const float* cos, const float* sin, int dims) {
    Rotary r;
    r.kind = RotaryKind::kHalf;
    r.math = RotaryMath::kEachRounded;
    r.dims = dims;
    r.cos = cos;
    r.sin = sin;
    r.row_stride = dims;
    return r;
}

}  // namespace xstage::ulysses::rotary
