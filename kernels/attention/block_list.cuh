#pragma once

#include <cstdint>

#include "config.hpp"
#include "params.hpp"

namespace xstage::attention {

/// The tiles of this CTA, as the table lists them.
template <class C>
struct BlockWalk {
    std::int32_t next_tile, end;

    __device__ __forceinline__ explicit BlockWalk(const BlockParams& p) {
        next_tile = __ldg(p.tile_begin + blockIdx.x);
        end = __ldg(p.tile_begin + blockIdx.x + 1);
    }
    __device__ __forceinline__ bool done(const BlockParams& /*p*/) const {
        return next_tile >= end;
    }
    __device__ __forceinline__ plan::SparseTile at(const BlockParams& p) const {
        const auto* entry = reinterpret_cast<const int4*>(p.tiles + next_tile);
        const int4 where = __ldg(entry);
        const int4 keys = __ldg(entry + 1);
        return {where.x, where.y, where.z, where.w, keys.x, keys.y, keys.z, keys.w};
    }
    __device__ __forceinline__ void next() { ++next_tile; }
};

/// Where a math group's 64 rows lie. For a group with none that is behind the last query row, where
/// the epilogue stores nothing.
template <class C>
__device__ __forceinline__ plan::AttentionTile group_tile(const plan::SparseTile& t, int group) {
    return {group == 2 ? t.half : 2 * t.block + group, t.head, t.batch};
}

/// Mask policy of a block mask: a math group sees steps of keys in the order they are loaded, the
/// common ones first, and not which keys they are. Only the first step of each list is short.
template <class C>
struct BlockList {
    plan::SparseReader reader;
    std::int32_t own;                      ///< steps that only this group's block has
    std::int32_t common_tail, own_tail;    ///< keys in the first step of each list

    __device__ __forceinline__ BlockList(const BlockParams& /*p*/, const plan::SparseTile& t,
                                         int group) {
        const plan::SparseSteps steps = plan::steps_of(t, C::kKeys);
        const bool second = group == 2;
        reader = {steps.common, second ? steps.first : steps.second, second};
        own = second ? steps.second : steps.first;
        common_tail = t.common_keys - (steps.common - 1) * C::kKeys;
        own_tail = (second ? t.second_keys : t.first_keys) - (own - 1) * C::kKeys;
    }

    __device__ std::int32_t blocks() const { return reader.common + own; }
    __device__ std::int32_t before_key(std::int32_t n) const {
        if constexpr (C::kMathGroups == 2) return 0;
        return reader.before_key(n);
    }
    __device__ std::int32_t before_value(std::int32_t n) const {
        if constexpr (C::kMathGroups == 2) return 0;
        return reader.before_value(n);
    }

    __device__ std::int32_t after_last() const {
        if constexpr (C::kMathGroups == 2) return 0;
        return reader.after_last(own);
    }

    __device__ std::int32_t valid_keys(std::int32_t n) const {
        if (n == reader.common) return own_tail;
        return n == 0 ? common_tail : C::kKeys;
    }
    __device__ bool is_partial(std::int32_t n, std::int32_t /*first_row*/) const {
        return valid_keys(n) < C::kKeys;
    }
    /// What a short step lacks is filled with zeros by the copy engine.
    __device__ std::int32_t clean_keys(std::int32_t, std::int32_t) const { return C::kKeys; }

    __device__ void apply(float (&s)[C::kKeys / 2], std::int32_t n, std::int32_t /*row*/,
                          std::int32_t pair) const {
        const std::int32_t limit = valid_keys(n) - 2 * pair;
#pragma unroll
        for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (8 * j + (e & 1) >= limit) s[4 * j + e] = -INFINITY;
            }
        }
    }
};

}  // namespace xstage::attention
