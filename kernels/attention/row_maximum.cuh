#pragma once

#include <cstdint>

namespace xstage::attention {

// The largest score of one of the two rows that a thread shares with the other three of its quad
// (accumulator layout of wgmma: elements 4j, 4j+1 belong to the first row, 4j+2, 4j+3 to the
// second). Each uses two chains, since one alone waits for its own latency.

template <int N>
__device__ __forceinline__ float row_maximum(const float (&s)[N], int r) {
    float even = s[2 * r];
    float odd = s[2 * r + 1];
#pragma unroll
    for (int j = 1; j < N / 4; ++j) {
        even = fmaxf(even, s[4 * j + 2 * r]);
        odd = fmaxf(odd, s[4 * j + 2 * r + 1]);
    }
    const float most = fmaxf(even, odd);
    const float pair = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 1));
    return fmaxf(pair, __shfl_xor_sync(0xffffffffU, pair, 2));
}

/// The same if it is not below zero, else some score below zero. Compares bit patterns as integers,
/// which Hopper does three at a time: half the instructions. Integers order floats below zero
/// backwards and any of them below all others. A positive NaN counts as the largest.
template <int N>
__device__ __forceinline__ float row_maximum_from_zero(const float (&s)[N], int r) {
    std::int32_t chain[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        chain[i] = max(__float_as_int(s[4 * i + 2 * r]), __float_as_int(s[4 * i + 2 * r + 1]));
    }
#pragma unroll
    for (int j = 2; j < N / 4; ++j) {
        chain[j % 2] = __vimax3_s32(chain[j % 2], __float_as_int(s[4 * j + 2 * r]),
                                    __float_as_int(s[4 * j + 2 * r + 1]));
    }
    const std::int32_t most = max(chain[0], chain[1]);
    const std::int32_t pair = max(most, __shfl_xor_sync(0xffffffffU, most, 1));
    return __int_as_float(max(pair, __shfl_xor_sync(0xffffffffU, pair, 2)));
}

}  // namespace xstage::attention
