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

#ifdef __CUDACC__
/// The compiler cannot know where a pointer from a table points; a generic store asks each time.
template <class T>
__device__ __forceinline__ void store_global(T* to, const Vector<T>& v) {
    uint4 raw;
    memcpy(&raw, &v, sizeof raw);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
                 : "memory");
}

/// Sum over the lanes of a group, every lane the same; distances as on the host.
__device__ __forceinline__ float sum_over(float value, int lanes, unsigned mask) {
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = exact::add(value, __shfl_xor_sync(mask, value, distance));
    return value;
}
#endif

template <class T>
__device__ __forceinline__ float sum_of_squares(const Vector<T>& v) {
    float sum = 0;
#pragma unroll
    for (const T& x : v.element) sum = exact::add(sum, exact::mul(x.value(), x.value()));
    return sum;
}

/// Entries `at`, `at + 1`, ... of a table or of weights: wide accesses where they are aligned.
template <class T>
__device__ __forceinline__ void load_entries(float (&to)[kVector], bool fp32, const void* table,
                                             std::int64_t at) {
    if (fp32) {
        const auto* entry = static_cast<const float*>(table) + at;
        if (reinterpret_cast<std::uintptr_t>(entry) % 16 == 0) {
            const float4 low = reinterpret_cast<const float4*>(entry)[0];
            const float4 high = reinterpret_cast<const float4*>(entry)[1];
            memcpy(&to[0], &low, sizeof low);
            memcpy(&to[4], &high, sizeof high);
            return;
        }
#pragma unroll
        for (int j = 0; j < kVector; ++j) to[j] = entry[j];
        return;
    }
    const auto* entry = static_cast<const T*>(table) + at;
    if (reinterpret_cast<std::uintptr_t>(entry) % 16 == 0) {
        const Vector<T> v = load(entry);
#pragma unroll
        for (int j = 0; j < kVector; ++j) to[j] = v.element[j].value();
        return;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) to[j] = entry[j].value();
}

struct TableEntries {
    float cos[kVector], sin[kVector];
};

/// One by one, from any table. A call of its own: sixteen addresses at once would take the
/// registers that the common case works in.
template <class T>
__attribute__((noinline)) __device__ TableEntries scattered_entries(const Rotary& r,
                                                                    std::int64_t base, int first) {
    TableEntries e;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        const Pair pair = pair_of(r.kind, r.dims, first + j);
        e.cos[j] =
            table_entry<T>(r, r.cos, base + std::int64_t{cos_index(r, pair, first + j)} * r.step);
        e.sin[j] =
            table_entry<T>(r, r.sin, base + std::int64_t{sin_index(r, pair, first + j)} * r.step);
    }
    return e;
}

/// The table's entries for elements [first, first + 8) of a head.
template <class T>
__device__ __forceinline__ void load_table(float (&cos)[kVector], float (&sin)[kVector],
                                           const Rotary& r, std::int64_t base, int first) {
    const bool half = r.kind == RotaryKind::kHalf;
    if (r.step == 1 && (r.table != RotaryTable::kPerPair || half)) {
        const std::int64_t at =
            base + (half ? cos_index(r, pair_of(r.kind, r.dims, first), first) : first);
        if (!half || r.table != RotaryTable::kEvenOdd) {
            load_entries<T>(cos, r.table_fp32, r.cos, at);
            load_entries<T>(sin, r.table_fp32, r.sin, at);
            if (r.table != RotaryTable::kEvenOdd) return;
#pragma unroll
            for (int j = 0; j < kVector; j += 2) {
                cos[j + 1] = cos[j];
                sin[j] = sin[j + 1];
            }
            return;
        }
    }
    if (r.step == 2 && r.table == RotaryTable::kPerPair && !half && r.table_fp32 &&
        static_cast<const float*>(r.sin) == static_cast<const float*>(r.cos) + 1) {
        // Complex numbers: four pairs are eight floats.
        load_entries<T>(cos, true, r.cos, base + first);
#pragma unroll
        for (int j = 0; j < kVector; j += 2) {
            sin[j] = sin[j + 1] = cos[j + 1];
            cos[j + 1] = cos[j];
        }
        return;
    }
    const TableEntries any = scattered_entries<T>(r, base, first);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        cos[j] = any.cos[j];
        sin[j] = any.sin[j];
    }
}

// Every choice below is the same for all elements: it is made around a loop, never inside it.

/// With a choice of rounding that the compiler knows.
template <class T, NormRounding kRounding>
__device__ __forceinline__ void normalise(float (&y)[kVector], const Vector<T>& x, float rstd,
                                          const float (&weight)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
        const Norm one{NormKind::kPerHead, kRounding, true, &weight[j], 0};
        y[j] = normalised<T>(one, x.element[j].value(), rstd, 0);
    }
}

template <class T>
__device__ __forceinline__ void normalise(float (&y)[kVector], const Vector<T>& x, const Norm& norm,
                                          float rstd, const float (&weight)[kVector]) {
    if (norm.kind == NormKind::kNone) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) y[j] = x.element[j].value();
    } else if (norm.weight == nullptr) {
#pragma unroll
        for (int j = 0; j < kVector; ++j)
            y[j] = normalised<T>(Norm{}, x.element[j].value(), rstd, 0);
    } else if (norm.rounding == NormRounding::kTwice) {
        normalise<T, NormRounding::kTwice>(y, x, rstd, weight);
    } else {
        normalise<T, NormRounding::kOnce>(y, x, rstd, weight);
    }
}

/// `leads` says for halves whether these elements are the first of their pairs.
template <class T, RotaryMath kMath, bool kHalf>
__device__ __forceinline__ void rotate(Vector<T>& x, const float (&own)[kVector],
                                       const float (&partner)[kVector], bool leads,
                                       const float (&cos)[kVector], const float (&sin)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j)
        x.element[j] = T::from(rotated<T>(kMath, kHalf ? leads : j % 2 == 0, own[j],
                                          partner[kHalf ? j : j ^ 1], cos[j], sin[j]));
}

template <class T, bool kHalf>
__device__ __forceinline__ void rotate(RotaryMath math, Vector<T>& x, const float (&own)[kVector],
                                       const float (&partner)[kVector], bool leads,
                                       const float (&cos)[kVector], const float (&sin)[kVector]) {
    if (math == RotaryMath::kSeparate) {
        rotate<T, RotaryMath::kSeparate, kHalf>(x, own, partner, leads, cos, sin);
    } else if (math == RotaryMath::kFused) {
        rotate<T, RotaryMath::kFused, kHalf>(x, own, partner, leads, cos, sin);
    } else {
        rotate<T, RotaryMath::kEachRounded, kHalf>(x, own, partner, leads, cos, sin);
    }
}

/// A lane's part in the norm and rotation of any head, found once for a projection.
struct LaneNorm {
    bool half, rotates, leads;
    float reciprocal;          ///< of head_dim where its product is the quotient, else 0
    int partner;               ///< element that this lane's first one is rotated with
    float weight[2][kVector];  ///< own and the partner's, where all heads have the same
};

template <class T>
__device__ __forceinline__ LaneNorm lane_norm(const HeadScatter& s, int first) {
    LaneNorm n{};
    const bool power_of_two = (s.head_dim & (s.head_dim - 1)) == 0;
    n.reciprocal = power_of_two ? 1.0f / static_cast<float>(s.head_dim) : 0.0f;
    n.rotates = s.rotary.kind != RotaryKind::kNone && first < s.rotary.dims;
    n.half = n.rotates && s.rotary.kind == RotaryKind::kHalf;
    n.leads = first < s.rotary.dims / 2;
    n.partner = n.half ? pair_of(s.rotary.kind, s.rotary.dims, first).partner
                       : (first < s.head_dim ? first : 0);
    if (s.norm.kind == NormKind::kPerHead && s.norm.weight != nullptr && first < s.head_dim) {
        load_entries<T>(n.weight[0], s.norm.weight_fp32, s.norm.weight, first);
        load_entries<T>(n.weight[1], s.norm.weight_fp32, s.norm.weight, n.partner);
    }
    return n;
}

/// One head's elements of this lane, normalised and rotated. Without `kHalves` no pair is apart.
template <class T, bool kHalves>
__device__ __forceinline__ void transform(const HeadScatter& s, const LaneNorm& n, int first,
                                          int head, float rstd, Vector<T>& x,
                                          const Vector<T>& other, const float (&cos)[kVector],
                                          const float (&sin)[kVector]) {
    float own[kVector], partner[kVector];
    const bool half = kHalves && n.half;
    if (s.norm.kind == NormKind::kFullWidth && s.norm.weight != nullptr) {
        float weight[kVector];
        const std::int64_t at = std::int64_t{head} * s.head_dim;
        load_entries<T>(weight, s.norm.weight_fp32, s.norm.weight, at + first);
        normalise<T>(own, x, s.norm, rstd, weight);
        if (half) {
            load_entries<T>(weight, s.norm.weight_fp32, s.norm.weight, at + n.partner);
            normalise<T>(partner, other, s.norm, rstd, weight);
        }
    } else {
        normalise<T>(own, x, s.norm, rstd, n.weight[0]);
        if (half) normalise<T>(partner, other, s.norm, rstd, n.weight[1]);
    }
    if (half) {
        rotate<T, true>(s.rotary.math, x, own, partner, n.leads, cos, sin);
    } else if (n.rotates) {
        rotate<T, false>(s.rotary.math, x, own, own, true, cos, sin);
    } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) x.element[j] = T::from(own[j]);
    }
}

}  // namespace xstage::ulysses::kernels
