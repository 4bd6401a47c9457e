#pragma once

#include <cstdint>

#include "config.hpp"
#include "params.hpp"
#include "uniform.cuh"

namespace xstage::attention {

/// The tiles of this CTA, as the table lists them. What is read from memory is not uniform to the
/// compiler, and with it all that a loop over it carries: the ring's slot would go through vector
/// registers to every product. So a walk of whole warps broadcasts what it reads.
template <class C, bool kWholeWarps>
struct BlockWalk {
    std::int32_t round = 0;

    __device__ __forceinline__ static std::int32_t uniform(std::int32_t value) {
        if constexpr (kWholeWarps) return one_per_warp(value);
        return value;
    }
    __device__ __forceinline__ std::int32_t index(const BlockParams& p) const {
        return uniform(__ldg(p.tile_begin + blockIdx.x)) + round;
    }
    __device__ __forceinline__ bool done(const BlockParams& p) const {
        return index(p) >= uniform(__ldg(p.tile_begin + blockIdx.x + 1));
    }
    __device__ __forceinline__ plan::SparseTile at(const BlockParams& p) const {
        const int4 entry = __ldg(reinterpret_cast<const int4*>(p.tiles + index(p)));
        return {{uniform(entry.x), uniform(entry.y), uniform(entry.z)}, uniform(entry.w)};
    }
    __device__ __forceinline__ void next() { ++round; }
};

/// Mask policy of a block mask. The math groups need not know which key blocks they are given, only
/// how many, and that the last key block is the first they get and may be short.
template <class C>
struct BlockList {
    static_assert(C::kRows == 128 && C::kKeys == 128, "a tile is a block of the mask");

    static constexpr bool kHasEdge = false;
    static constexpr bool kHides = false;
    std::int32_t count;  ///< key blocks of this tile
    std::int32_t first;  ///< keys in the first one

    __device__ BlockList(const BlockParams& /*p*/, const plan::SparseTile& t) {
        count = (t.keys + C::kKeys - 1) / C::kKeys;
        first = t.keys - (count - 1) * C::kKeys;
    }

    __device__ std::int32_t blocks() const { return count; }
    __device__ bool is_partial(std::int32_t n, std::int32_t /*first_row*/) const {
        return n == 0 && first < C::kKeys;
    }
    /// The engine fills what is behind the last key with zeros.
    __device__ std::int32_t clean_keys(std::int32_t, std::int32_t) const { return C::kKeys; }

    __device__ void apply(float (&s)[C::kKeys / 2], std::int32_t /*n*/, std::int32_t /*row*/,
                          std::int32_t pair) const {
        const std::int32_t limit = first - 2 * pair;
#pragma unroll
        for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (8 * j + (e & 1) >= limit) s[4 * j + e] = -INFINITY;
            }
        }
    }
};

/// Walks a row of bits from the last kept key block to the first, the order of the other masks. One
/// word covers 32 key blocks and stays in a register.
struct KeyBits {
    const std::uint32_t* row;
    std::int32_t word;
    std::uint32_t bits = 0;

    __device__ KeyBits(const BlockParams& p, const plan::SparseTile& t) : word(p.words) {
        const std::int64_t head = std::int64_t{t.batch} * p.mask_batch_step * p.mask_heads +
                                  t.head / p.heads_per_mask_head;
        row = p.bits + (head * p.q_blocks + t.tile) * p.words;
    }

    /// Must not be called more often than there are bits in the row.
    __device__ __forceinline__ std::int32_t next() {
        while (bits == 0) bits = __ldg(row + --word);
        const std::int32_t bit = 31 - __clz(static_cast<int>(bits));
        bits ^= 1U << bit;
        return word * 32 + bit;
    }
};

}  // namespace xstage::attention
