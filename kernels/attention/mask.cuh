#pragma once

#include <cstdint>

#include "block_list.cuh"
#include "config.hpp"
#include "params.hpp"

namespace xstage::attention {

/// Which keys a tile attends to, and in which order its key blocks are taken. A mask policy gives
///   blocks()                 how many key blocks the tile takes,
///   block(n)                 the n-th of them (producer and math warps must be told the same),
///   is_partial(n, row)       whether the 64 rows from `row` on have a masked element there,
///   apply(s, n, row, pair)   -inf for the masked scores of a thread,
///   hidden(row)              how many blocks, from the first on, hold no key for the 64 rows; the
///                            last one is never counted,
///   kHides                   false: none, and there is no such function,
///   clean_keys(n, kv_rows)   how many rows of its V may be multiplied by 0 without a NaN,
///   edge(row)                from which block on neither question need be asked at a step that
///                            takes the scores of that block and the output of the one before it,
///   kHasEdge                 false: only for the first block.
/// Here: all keys of the sample, or those up to the diagonal. Blocks go from the last key to the
/// first, so that the partial ones come first.
template <class C>
struct KeyRange {
    static constexpr bool kHasEdge = true;
    // Where groups take turns at every block, one cannot leave blocks out by itself.
    static constexpr bool kHides = C::kMask == MaskKind::kCausal && C::kTurns == Turns::kFirst;
    std::int32_t length;  ///< keys of this sample
    std::int32_t count;   ///< key blocks of this tile
    std::int32_t shift;   ///< causal: row r attends to keys up to r + shift

    __device__ KeyRange(const KernelParams& p, const plan::AttentionTile& at) {
        length = p.kv_rows;
        if (p.key_lengths != nullptr) {
            const std::int32_t given = p.key_lengths[at.batch];
            length = given < 0 ? 0 : (given < length ? given : length);
        }
        shift = length - p.q_rows;
        std::int32_t end = length;
        if constexpr (C::kMask == MaskKind::kCausal) {
            const std::int32_t reach = (at.tile + 1) * C::kRows + shift;
            end = reach < 0 ? 0 : (reach < length ? reach : length);
        }
        count = (end + C::kKeys - 1) / C::kKeys;
    }

    __device__ std::int32_t blocks() const { return count; }
    __device__ std::int32_t block(std::int32_t n) const { return count - 1 - n; }

    __device__ bool is_partial(std::int32_t n, std::int32_t first_row) const {
        const std::int32_t end = (block(n) + 1) * C::kKeys;
        if constexpr (C::kMask == MaskKind::kCausal) {
            return end > length || end - 1 > first_row + shift;
        }
        return end > length;
    }

    __device__ std::int32_t hidden(std::int32_t first_row) const {
        const std::int32_t seen = row_limit(first_row + C::kGroupRows - 1);
        return count - (seen <= C::kKeys ? 1 : (seen + C::kKeys - 1) / C::kKeys);
    }

    /// The engine fills what is behind the tensor with zeros, not what is behind the sample.
    __device__ std::int32_t clean_keys(std::int32_t n, std::int32_t kv_rows) const {
        const std::int32_t inside = length - block(n) * C::kKeys;
        return length == kv_rows || inside > C::kKeys ? C::kKeys : inside;
    }

    __device__ std::int32_t edge(std::int32_t first_row) const {
        std::int32_t whole = length / C::kKeys;  // blocks before it are not cut by the mask
        if constexpr (C::kMask == MaskKind::kCausal) {
            const std::int32_t seen = row_limit(first_row);
            whole = seen < 0 ? 0 : seen / C::kKeys;
        }
        const std::int32_t partial = whole < count ? count - whole : 0;
        return partial < 2 ? 2 < count ? 2 : count : partial;
    }

    __device__ std::int32_t row_limit(std::int32_t row) const {
        if constexpr (C::kMask == MaskKind::kCausal) {
            return row + shift + 1 < length ? row + shift + 1 : length;
        }
        return length;
    }

    /// Sets the scores of masked keys to -inf. Row `row` is in the even pairs of `s`, `row`+8 in
    /// the odd ones; `pair` is the thread's place in its quad.
    __device__ void apply(float (&s)[C::kKeys / 2], std::int32_t n, std::int32_t row,
                          std::int32_t pair) const {
        const std::int32_t first = block(n) * C::kKeys + 2 * pair;
        const std::int32_t limit[2] = {row_limit(row) - first, row_limit(row + 8) - first};
#pragma unroll
        for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (8 * j + (e & 1) >= limit[e >> 1]) s[4 * j + e] = -INFINITY;
            }
        }
    }
};

/// The policy of a mask kind; a new kind is a new specialisation.
template <class C, MaskKind kKind = C::kMask>
struct MaskPolicy {
    using Type = KeyRange<C>;
};
template <class C>
struct MaskPolicy<C, MaskKind::kBlocks> {
    using Type = BlockList<C>;
};
template <class C>
using Mask = typename MaskPolicy<C>::Type;

}  // namespace xstage::attention
