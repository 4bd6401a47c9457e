#pragma once

#include <cstdint>

namespace xstage::kernels {

/// Q and K of one sample: element (row, head, column) at row * stride_row + head * stride_head.
struct MassParams {
    const void* q = nullptr;
    const void* k = nullptr;
    std::int64_t q_row = 0, q_head = 0, k_row = 0, k_head = 0;
    int rows = 0, heads = 0, heads_per_kv_head = 1, head_dim = 0;
    float scale_log2 = 0;        ///< scale * log2(e)
    const float* lse = nullptr;  ///< [head][row], natural logarithm; null: found in a first pass
    float* mass = nullptr;       ///< [head][query block][key block]
    /// Rows whose mass by key block is wanted as well.
    const std::int32_t* sampled_rows = nullptr;
    int sampled_count = 0;
    float* row_mass = nullptr;  ///< [head][sampled row][key block]
};

/// Bytes of shared memory of one CTA.
int block_mass_shared_bytes(int head_dim);
/// Enqueues on `stream` (a cudaStream_t); returns a cudaError_t. head_dim: a multiple of 8 up to
/// 128; addresses and strides multiples of 16 bytes.
int launch_block_mass(const MassParams& params, bool bf16, void* stream);

}  // namespace xstage::kernels
