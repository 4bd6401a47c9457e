#pragma once

// Norm and rotary position on the way into attention, with the roundings of the model families. The
// kernels and the host backend run the same functions: nothing here may be contracted into a fused
// multiply-add unless the family has one.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "xstage/fabric/signals.hpp"

namespace xstage::ulysses {

enum class NormKind : std::uint8_t { kNone, kPerHead, kFullWidth };
enum class NormRounding : std::uint8_t {
    kOnce,   ///< fp32 up to and with the weight, one rounding (fused torch.nn.RMSNorm)
    kTwice,  ///< rounded to the dtype before the weight (diffusers.RMSNorm)
};

/// y = x / sqrt(mean(x^2) + eps) * weight.
struct Norm {
    NormKind kind = NormKind::kNone;
    NormRounding rounding = NormRounding::kOnce;
    bool weight_fp32 = false;      ///< otherwise in the tensor's dtype
    const void* weight = nullptr;  ///< head_dim or heads * head_dim values; null: none
    float eps = 1e-6f;
};

enum class RotaryKind : std::uint8_t {
    kNone,
    kInterleaved,  ///< pairs (2i, 2i+1)
    kHalf,         ///< pairs (i, i + dims/2)
};
enum class RotaryTable : std::uint8_t {
    kPerDim,   ///< an entry per dimension, taken at the dimension itself
    kPerPair,  ///< an entry per pair
    kEvenOdd,  ///< per dimension; cos from the pair's even entry, sin from its odd one (Wan)
};
enum class RotaryMath : std::uint8_t {
    kSeparate,     ///< fp32 products and sum, each rounded to fp32; one rounding to the dtype
    kFused,        ///< fp32, the sine's product fused into the sum (addcmul on a GPU)
    kEachRounded,  ///< every operation rounded to the dtype, the table first (MiniMax-H3)
};

/// Rotation by a table that the caller made. Strides in table elements; 0 where the table has no
/// such axis.
struct Rotary {
    RotaryKind kind = RotaryKind::kNone;
    RotaryTable table = RotaryTable::kPerDim;
    RotaryMath math = RotaryMath::kSeparate;
    bool table_fp32 = true;  ///< otherwise in the tensor's dtype
    int dims = 0;            ///< rotated dimensions of a head; 0: all
    int step = 1;            ///< between entries: 2 for complex tables
    const void* cos = nullptr;
    const void* sin = nullptr;
    std::int64_t batch_stride = 0;
    std::int64_t row_stride = 0;
    std::int64_t head_stride = 0;
};

/// The families' rotations (sources and formulas in docs/ulysses.md). Rows are local rows.
namespace rotary {
Rotary flux(const float* cos, const float* sin, int head_dim);  ///< also Flux.2 and HunyuanVideo
Rotary wan(const float* cos, const float* sin, int head_dim);
Rotary qwen_image(const float* table, int head_dim);  ///< complex64 [rows, head_dim / 2]
/// [batch, rows, heads * head_dim] tables.
Rotary ltx2_interleaved(const float* cos, const float* sin, int heads, int head_dim,
                        std::int64_t rows);
/// [batch, heads, rows, head_dim / 2] tables.
Rotary ltx2_split(const float* cos, const float* sin, int heads, int head_dim, std::int64_t rows);
Rotary minimax_h3(const float* cos, const float* sin, int dims = 96);
}  // namespace rotary

namespace exact {

// One rounding per operation, on either side.
XSTAGE_HD inline float mul(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
XSTAGE_HD inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}
XSTAGE_HD inline float fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
}
/// torch's rsqrt on a GPU is the approximate instruction; on the host it is 1 / sqrt.
XSTAGE_HD inline float rsqrt(float x) {
#ifdef __CUDA_ARCH__
    return ::rsqrtf(x);
#else
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
#endif
}

}  // namespace exact

/// Storage types. `T(float)` rounds to nearest even; `float(T)` is exact.
struct Bf16 {
    std::uint16_t bits;
    static XSTAGE_HD Bf16 from(float f) {
#ifdef __CUDA_ARCH__
        std::uint16_t b;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f));
        return {b};
#else
        std::uint32_t u;
        memcpy(&u, &f, 4);
        if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(u >> 16 | 0x40u)};
        return {static_cast<std::uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
#endif
    }
    XSTAGE_HD float value() const {
        const std::uint32_t u = static_cast<std::uint32_t>(bits) << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
};

struct Fp16 {
    std::uint16_t bits;
    static XSTAGE_HD Fp16 from(float f) {
#ifdef __CUDA_ARCH__
        std::uint16_t b;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(f));
        return {b};
#else
        std::uint32_t u;
        memcpy(&u, &f, 4);
        const auto sign = static_cast<std::uint16_t>(u >> 16 & 0x8000u);
        u &= 0x7fffffffu;
        if (u > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
        if (u >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and up
        if (u < 0x38800000u) {
            // Below 2^-14: adding 0.5 makes the float adder round to the subnormals' grid of 2^-24.
            float g;
            memcpy(&g, &u, 4);
            g = exact::add(g, 0.5f);
            memcpy(&u, &g, 4);
            return {static_cast<std::uint16_t>(sign | (u - 0x3f000000u))};
        }
        u += 0xc8000fffu + (u >> 13 & 1);
        return {static_cast<std::uint16_t>(sign | (u >> 13))};
#endif
    }
    XSTAGE_HD float value() const {
#ifdef __CUDA_ARCH__
        float g;
        asm("cvt.f32.f16 %0, %1;" : "=f"(g) : "h"(bits));
        return g;
#else
        const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
        const std::uint32_t rest = bits & 0x7fffu;
        std::uint32_t u;
        if (rest >= 0x7c00u) {
            u = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
        } else if (rest >= 0x400u) {
            u = sign | ((rest << 13) + 0x38000000u);
        } else {
            const float f = exact::mul(static_cast<float>(rest), 5.9604644775390625e-8f);  // 2^-24
            memcpy(&u, &f, 4);
            u |= sign;
        }
        float f;
        memcpy(&f, &u, 4);
        return f;
#endif
    }
};

struct Fp32 {
    float f;
    static XSTAGE_HD Fp32 from(float f) { return {f}; }
    XSTAGE_HD float value() const { return f; }
};

/// One normalised element, rounded to T.
template <class T>
XSTAGE_HD float normalised(const Norm& norm, float x, float rstd, std::int64_t weight_at) {
    const float t = exact::mul(x, rstd);
    if (norm.weight == nullptr) return T::from(t).value();
    const float w = norm.weight_fp32 ? static_cast<const float*>(norm.weight)[weight_at]
                                     : static_cast<const T*>(norm.weight)[weight_at].value();
    const float y = norm.rounding == NormRounding::kTwice ? T::from(t).value() : t;
    return T::from(exact::mul(y, w)).value();
}

/// Partner of element `e` in its pair, and whether `e` is the first.
struct Pair {
    int partner;
    int index;
    bool first;
};
XSTAGE_HD constexpr Pair pair_of(RotaryKind kind, int dims, int e) {
    if (kind == RotaryKind::kInterleaved) return {e ^ 1, e / 2, e % 2 == 0};
    const int half = dims / 2;
    return e < half ? Pair{e + half, e, true} : Pair{e - half, e - half, false};
}

/// Entries of the table for element `e`, before `step`.
XSTAGE_HD constexpr int cos_index(const Rotary& r, const Pair& pair, int e) {
    if (r.table == RotaryTable::kPerPair) return pair.index;
    return r.table == RotaryTable::kEvenOdd ? pair.index * 2 : e;
}
XSTAGE_HD constexpr int sin_index(const Rotary& r, const Pair& pair, int e) {
    if (r.table == RotaryTable::kPerPair) return pair.index;
    return r.table == RotaryTable::kEvenOdd ? pair.index * 2 + 1 : e;
}

template <class T>
XSTAGE_HD float table_entry(const Rotary& r, const void* table, std::int64_t at) {
    return r.table_fp32 ? static_cast<const float*>(table)[at]
                        : static_cast<const T*>(table)[at].value();
}

/// y = own * cos -+ partner * sin, rounded to T.
template <class T>
XSTAGE_HD float rotated(RotaryMath math, bool first, float own, float partner, float cos,
                        float sin) {
    const float turned = first ? -partner : partner;
    if (math == RotaryMath::kEachRounded) {
        const float c = T::from(cos).value();
        const float s = T::from(sin).value();
        const float a = T::from(exact::mul(own, c)).value();
        const float b = T::from(exact::mul(turned, s)).value();
        return T::from(exact::add(a, b)).value();
    }
    const float a = exact::mul(own, cos);
    if (math == RotaryMath::kFused) return T::from(exact::fma(turned, sin, a)).value();
    return T::from(exact::add(a, exact::mul(turned, sin))).value();
}

/// Element `e` of a head at `x`, normalised and rotated as it is sent. `weights` and `table` are
/// where the head begins in the norm's weights and the row in the rotation's tables.
template <class T>
XSTAGE_HD T sent_element(const Norm& norm, const Rotary& r, const T* x, float rstd,
                         std::int64_t weights, std::int64_t table, int e) {
    const auto value = [&](int i) {
        return norm.kind == NormKind::kNone ? x[i].value()
                                            : normalised<T>(norm, x[i].value(), rstd, weights + i);
    };
    const int dims = r.kind == RotaryKind::kNone ? 0 : r.dims;
    if (e >= dims) return T::from(value(e));
    const Pair pair = pair_of(r.kind, dims, e);
    const float cos =
        table_entry<T>(r, r.cos, table + std::int64_t{cos_index(r, pair, e)} * r.step);
    const float sin =
        table_entry<T>(r, r.sin, table + std::int64_t{sin_index(r, pair, e)} * r.step);
    return T::from(rotated<T>(r.math, pair.first, value(e), value(pair.partner), cos, sin));
}

// The order of a sum of squares: groups of 8 elements one after the other, then lane l takes groups
// l, l + lanes, ..., then lanes in pairs at distance 16, 8, 4, 2, 1, then the warps in turn.
inline constexpr int kSumGroup = 8;
inline constexpr int kHeadLanes = 32;
inline constexpr int kRowLanes = 256;

}  // namespace xstage::ulysses
