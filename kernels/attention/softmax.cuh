#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "xstage/device/warpgroup.cuh"

namespace xstage::attention {

/// Running softmax of the two rows a thread shares with the other three of its quad (accumulator
/// layout of wgmma: elements 4j, 4j+1 belong to the first row, 4j+2, 4j+3 to the second).
/// Method: online softmax (Milakov and Gimelshein, 2018) in base 2, with the scale folded into the
/// exponent, and a reference that follows the maximum at once or when it has been left behind.
struct RowSoftmax {
    float reference[2] = {-INFINITY, -INFINITY};  ///< in units of the base-2 exponent
    float sum[2] = {0.0F, 0.0F};                  ///< of this thread's elements only

    /// Takes in the maxima of `s`; the reference follows one that exceeds it by more than `above`,
    /// which spares the pass over O in almost every block, or by anything if that is 0. Returns the
    /// factors that earlier sums and O must be scaled by (1 when the reference stays).
    template <int N>
    __device__ __forceinline__ void follow_maximum(const float (&s)[N], float scale_log2,
                                                   float above, float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float even = s[2 * r];  // two chains: one alone waits for its own latency
            float odd = s[2 * r + 1];
#pragma unroll
            for (int j = 1; j < N / 4; ++j) {
                even = fmaxf(even, s[4 * j + 2 * r]);
                odd = fmaxf(odd, s[4 * j + 2 * r + 1]);
            }
            float most = fmaxf(even, odd);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 2)) * scale_log2;
            factor[r] = 1.0F;
            if (most - reference[r] > above) {
                factor[r] = device::exp2_approx(reference[r] - most);
                reference[r] = most;
                sum[r] *= factor[r];
            }
        }
    }

    /// s = exp2(s * scale - reference), added to the sums.
    template <int N>
    __device__ __forceinline__ void exponentiate(float (&s)[N], float scale_log2) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // A row with no key yet has no reference; any finite number gives its zeros.
            const float base = reference[r] == -INFINITY ? 0.0F : reference[r];
            float even = 0.0F;
            float odd = 0.0F;
#pragma unroll
            for (int j = 0; j < N / 4; ++j) {
                float& a = s[4 * j + 2 * r];
                float& b = s[4 * j + 2 * r + 1];
                a = device::exp2_approx(fmaf(a, scale_log2, -base));
                b = device::exp2_approx(fmaf(b, scale_log2, -base));
                even += a;
                odd += b;
            }
            sum[r] += even + odd;
        }
    }

    __device__ __forceinline__ void sum_over_quad() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffffU, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffU, sum[r], 2);
        }
    }

    /// Natural logarithm of the row's sum of exponentials; -inf if every key was masked.
    __device__ __forceinline__ float log_sum(int r) const {
        constexpr float kLn2 = 0.693147180559945F;
        return sum[r] == 0.0F ? -INFINITY : reference[r] * kLn2 + logf(sum[r]);
    }

    __device__ __forceinline__ float inverse_sum(int r) const {
        return sum[r] == 0.0F ? 0.0F : 1.0F / sum[r];
    }
};

__device__ __forceinline__ std::uint32_t pack(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(both);
}

__device__ __forceinline__ std::uint32_t pack(float low, float high, __half) {
    const __half2 both = __floats2half2_rn(low, high);
    return reinterpret_cast<const std::uint32_t&>(both);
}

/// Accumulators to 16 bits. Elements 4i..4i+3 of the result are the A operand of keys 16i..16i+15.
template <class Element, int N>
__device__ __forceinline__ void pack_all(const float (&s)[N], std::uint32_t (&p)[N / 2]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], Element{});
}

template <int N>
__device__ __forceinline__ void scale_rows(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N; ++i) o[i] *= factor[(i >> 1) & 1];
}

}  // namespace xstage::attention
