#pragma once

// What both ways of sending heads share: 16-byte accesses, the order of a sum of squares, and the
// norm and rotation of a lane's elements.

#include "ulysses/send.cuh"

namespace xstage::ulysses::kernels {

inline constexpr int kThreads = 256;
inline constexpr int kVector = 8;  ///< elements of 2 bytes in one access
static_assert(kVector == kSumGroup, "a lane's elements are one group of the sum of squares");

template <class T>
struct alignas(16) Vector {
    T element[kVector];
};

template <class T>
__device__ __forceinline__ Vector<T> load(const T* from) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    Vector<T> v;
    memcpy(&v, &raw, sizeof v);
    return v;
}

/// Sum over the lanes of a group, every lane the same; distances as on the host.
__device__ __forceinline__ float sum_over(float value, int lanes, unsigned mask) {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = exact::add(value, __shfl_xor_sync(mask, value, distance));
    return value;
}

template <class T>
__device__ __forceinline__ float sum_of_squares(const Vector<T>& v) {
    float sum = 0;
#pragma unroll
    for (const T& x : v.element) sum = exact::add(sum, exact::mul(x.value(), x.value()));
    return sum;
}

/// Entries `at`, `at + 1`, ... of a table: two accesses where fp32 entries are aligned.
template <class T>
__device__ __forceinline__ void load_entries(float (&to)[kVector], const Rotary& r,
                                             const void* table, std::int64_t at) {
    const auto* entry = static_cast<const float*>(table) + at;
    if (r.table_fp32 && reinterpret_cast<std::uintptr_t>(entry) % 16 == 0) {
        const float4 low = reinterpret_cast<const float4*>(entry)[0];
        const float4 high = reinterpret_cast<const float4*>(entry)[1];
        memcpy(&to[0], &low, sizeof low);
        memcpy(&to[4], &high, sizeof high);
        return;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) to[j] = table_entry<T>(r, table, at + j);
}

/// The table's entries for elements [first, first + 8) of a head.
template <class T>
__device__ __forceinline__ void load_table(float (&cos)[kVector], float (&sin)[kVector],
                                           const Rotary& r, std::int64_t base, int first) {
    const bool run =
        r.step == 1 && (r.table == RotaryTable::kPerDim || r.kind == RotaryKind::kHalf);
    if (run) {
        const std::int64_t at = base + cos_index(r, pair_of(r.kind, r.dims, first), first);
        load_entries<T>(cos, r, r.cos, at);
        load_entries<T>(sin, r, r.sin, at);
        return;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        const Pair pair = pair_of(r.kind, r.dims, first + j);
        cos[j] =
            table_entry<T>(r, r.cos, base + std::int64_t{cos_index(r, pair, first + j)} * r.step);
        sin[j] =
            table_entry<T>(r, r.sin, base + std::int64_t{sin_index(r, pair, first + j)} * r.step);
    }
}

/// A head's elements of this lane, normalised and rotated.
template <class T>
__device__ __forceinline__ void transform(const HeadScatter& s, Vector<T>& x,
                                          const Vector<T>& other, float rstd, int head, int first,
                                          int partner, const float (&cos)[kVector],
                                          const float (&sin)[kVector]) {
    float own[kVector], turned[kVector];
    const std::int64_t weight =
        s.norm.kind == NormKind::kFullWidth ? std::int64_t{head} * s.head_dim : 0;
    const bool norm = s.norm.kind != NormKind::kNone;
    const bool half = s.rotary.kind == RotaryKind::kHalf;
    const bool rotates = s.rotary.kind != RotaryKind::kNone && first < s.rotary.dims;
#pragma unroll
    for (int j = 0; j < kVector; ++j)
        own[j] = norm ? normalised<T>(s.norm, x.element[j].value(), rstd, weight + first + j)
                      : x.element[j].value();
    if (half && rotates) {
#pragma unroll
        for (int j = 0; j < kVector; ++j)
            turned[j] =
                norm ? normalised<T>(s.norm, other.element[j].value(), rstd, weight + partner + j)
                     : other.element[j].value();
    } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) turned[j] = own[j ^ 1];
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        const bool leads = half ? first < s.rotary.dims / 2 : j % 2 == 0;
        x.element[j] = T::from(
            rotates ? rotated<T>(s.rotary.math, leads, own[j], turned[j], cos[j], sin[j]) : own[j]);
    }
}

}  // namespace xstage::ulysses::kernels
