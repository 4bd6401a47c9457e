#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "row_maximum.cuh"
#include "xstage/device/warpgroup.cuh"

namespace xstage::attention {

/// Running softmax of the two rows a thread shares with the other three of its quad.
/// Method: online softmax (Milakov and Gimelshein, 2018) in base 2, with the scale folded into the
/// exponent, and a reference that follows the maximum at once or when it has been left behind.
///
/// For bf16 the exponent is one multiply-add, s * scale - reference. The reference is a rounded
/// product, so the largest probability is 2^e instead of 1, e up to half a unit in its last place.
/// fp16 shows that when scores are in the thousands: there the largest score is subtracted first.
template <class C>
struct RowSoftmax {
    static constexpr bool kSubtractFirst = std::is_same_v<typename C::Element, __half>;

    /// In units of the base-2 exponent, or of the scores if those are subtracted first.
    float reference[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.0F, 0.0F};  ///< of this thread's elements only
    bool from_zero = false;       ///< no reference of this warp is below zero; they never fall

    /// Takes in the maxima of `s`; the reference follows one that exceeds it by more than `above`,
    /// which spares the pass over O in almost every block, or by anything if that is 0. Returns the
    /// factors that earlier sums and O must be scaled by (1 when the reference stays).
    template <int N>
    __device__ __forceinline__ void follow_maximum(const float (&s)[N], float scale_log2,
                                                   float above, float (&factor)[2]) {
        float most[2];
        if (C::kIntegerMaximum && from_zero) {  // scores below zero change nothing any more
            most[0] = row_maximum_from_zero(s, 0);
            most[1] = row_maximum_from_zero(s, 1);
        } else {
            most[0] = row_maximum(s, 0);
            most[1] = row_maximum(s, 1);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if constexpr (!kSubtractFirst) most[r] *= scale_log2;
            float over = most[r] - reference[r];
            if constexpr (kSubtractFirst) over *= scale_log2;
            factor[r] = 1.0F;
            if (over > above) {
                factor[r] = device::exp2_approx(-over);
                reference[r] = most[r];
                sum[r] *= factor[r];
            }
        }
        if (C::kIntegerMaximum && !from_zero) {
            from_zero = __all_sync(0xffffffffU, reference[0] >= 0.0F && reference[1] >= 0.0F);
        }
    }

    /// s = exp2(s * scale - reference), added to the sums. Both rows at once: the first exponential
    /// need not wait for a whole row's exponents.
    template <int N>
    __device__ __forceinline__ void exponentiate(float (&s)[N], float scale_log2) {
        float base[2];
        float part[2][2] = {};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            // A row with no key yet has no reference; any finite number gives its zeros.
            base[r] = reference[r] == -INFINITY ? 0.0F : reference[r];
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int r = i / 2 % 2;
            const float exponent =
                kSubtractFirst ? (s[i] - base[r]) * scale_log2 : fmaf(s[i], scale_log2, -base[r]);
            s[i] = device::exp2_approx(exponent);
            part[r][i % 2] += s[i];
        }
        sum[0] += part[0][0] + part[0][1];
        sum[1] += part[1][0] + part[1][1];
    }

    __device__ __forceinline__ void sum_over_quad() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffffU, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffU, sum[r], 2);
        }
    }

    /// Natural logarithm of the row's sum of exponentials; -inf if every key was masked.
    __device__ __forceinline__ float log_sum(int r, float scale_log2) const {
        constexpr float kLn2 = 0.693147180559945F;
        const float exponent = kSubtractFirst ? reference[r] * scale_log2 : reference[r];
        return sum[r] == 0.0F ? -INFINITY : exponent * kLn2 + logf(sum[r]);
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
