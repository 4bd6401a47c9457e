#pragma once

#include "block_list.cuh"
#include "config.hpp"
#include "params.hpp"
#include "ring.cuh"
#include "xstage/device/tensor_copy.cuh"

namespace xstage::attention {

/// Walks a row of bits from the last kept key block to the first and fills slots of the ring with
/// steps of C::kKeys keys. The kept keys count as one list; a step's keys are the same multiples of
/// C::kKeys in it as in an unmasked kernel, so a full row gives the same steps in the same order.
template <class C>
struct KeyWalk {
    std::int32_t row;    ///< first word of the block whose list this is
    std::int32_t other;  ///< first word of the other block of the tile; -1: there is none
    std::uint32_t bits;  ///< of the current word, not yet taken
    std::int32_t word;
    std::int32_t block;  ///< the current key block
    std::int32_t left;   ///< its keys that are not yet taken, in whole units of kPartUnit

    static constexpr int kUnit = BlockParams::kPartUnit;

    __device__ __forceinline__ void begin(std::int32_t words) {
        word = words;
        bits = 0;
        left = 0;
    }

    /// The next lower block that both rows keep, or that only this one does.
    __device__ __forceinline__ void next_block(const std::uint32_t* rows, bool common) {
        while (bits == 0) {
            --word;
            std::uint32_t without = 0;
            if (C::kMathGroups == 3 && other >= 0) without = __ldg(rows + other + word);
            bits = __ldg(rows + row + word) & (common ? without : ~without);
        }
        const int bit = 31 - __clz(static_cast<int>(bits));
        bits ^= 1U << bit;
        block = word * 32 + bit;
    }

    /// Loads the `keys` keys before those taken last; rows of the slot behind them become zero.
    __device__ __forceinline__ void load(const BlockParams& p, bool value, unsigned char* slot,
                                         device::MBarrier* full, std::int32_t keys, bool common,
                                         std::int32_t head, std::int32_t batch) {
        const CUtensorMap* whole = value ? &p.v : &p.k;
        if constexpr (C::kKeys == 128) {
            next_block(p.bits, common);  // the engine fills with zeros what is behind the last key
            device::bulk_tensor_load_5d(slot, whole, full, {0, block * 128, 0, head, batch});
        } else {
            const auto load_rows = [&](std::int32_t to, std::int32_t units, std::int32_t from) {
                const CUtensorMap* part = (value ? p.v_part : p.k_part) + units - 1;
#pragma unroll 1
                for (int panel = 0; panel < C::kPanels; ++panel) {
                    device::bulk_tensor_load_5d(slot + (panel * C::kKeys + to) * 128, part, full,
                                                {0, from, panel, head, batch});
                }
            };
            std::int32_t to = (keys + kUnit - 1) / kUnit * kUnit;
            if (to < C::kKeys) load_rows(to, (C::kKeys - to) / kUnit, p.kv_rows);  // zeros
#pragma unroll 1
            while (to > 0) {
                if (left == 0) {
                    next_block(p.bits, common);
                    left = min(128, (p.kv_rows - block * 128 + kUnit - 1) / kUnit * kUnit);
                }
                const std::int32_t take = min(left, to);
                to -= take;
                left -= take;
                const std::int32_t from = block * 128 + left;
                if (take == C::kKeys) {
                    device::bulk_tensor_load_5d(slot, whole, full, {0, from, 0, head, batch});
                } else {
                    load_rows(to, take / kUnit, from);
                }
            }
        }
    }
};

/// One thread that loads Q, apart from the keys': it waits for each group's end of a tile.
template <class C>
struct QueryProducer {
    const BlockParams& p;
    SharedStorage<C>& shared;

    __device__ __forceinline__ void run() {
        std::uint32_t parities = 0;  // bit g: group g
        for (BlockWalk<C> walk(p); !walk.done(p); walk.next()) {
            const plan::SparseTile t = walk.at(p);
#pragma unroll
            for (int g = 0; g < C::kMathGroups; ++g) {
                if (t.common_keys + (g == 2 ? t.second_keys : t.first_keys) == 0) continue;
                device::mbarrier_wait(&shared.q_empty[g], (parities >> g & 1) ^ 1);
                parities ^= 1U << g;
                device::mbarrier_arrive_expect_bytes(&shared.q_full[g], C::kGroupBytes);
                const plan::AttentionTile at = group_tile<C>(t, g);
                device::bulk_tensor_load_5d(shared.q[g], &p.q, &shared.q_full[g],
                                            {0, at.tile * C::kGroupRows, 0, at.head, at.batch});
            }
        }
    }
};

/// Two warps that load for all: Q, and K and V. Of the latter, lanes 0 to 3 load K of the first
/// list, K of the second, V of the first, V of the second, each with its own place in its row; they
/// take turns in the ring's order.
template <class C>
struct BlockProducer {
    const BlockParams& p;
    SharedStorage<C>& shared;
    RingPlace<C> ring;

    /// What a lane loads of a tile. Registers are few here, so it is kept to what the loop needs.
    struct List {
        std::int32_t common;  ///< steps before it that all groups share
        std::int32_t begin, end;
        std::int32_t common_tail, own_tail;  ///< keys in the first step of each part
        std::int32_t head, batch;            ///< of K and V
    };

    __device__ __forceinline__ std::int32_t row_of(const plan::SparseTile& t,
                                                   std::int32_t block) const {
        const std::int32_t head =
            t.batch * p.mask_batch_step * p.mask_heads + t.head / p.heads_per_mask_head;
        return (head * p.q_blocks + block) * p.words;
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 32) QueryProducer<C>{p, shared}.run();
        if (threadIdx.x >= 32) return;
        const int lane = static_cast<int>(threadIdx.x);
        for (BlockWalk<C> walk(p); !walk.done(p); walk.next()) {
            KeyWalk<C> keys;
            List list;
            const std::int32_t rounds = begin_tile(walk.at(p), lane, keys, list);
#pragma unroll 1
            for (std::int32_t round = 0; round < rounds; ++round) {
                const std::int32_t n = plan::SparseSteps::step_of(lane, round);
                const bool active = n >= list.begin && n < list.end;
                const std::uint32_t loading = __ballot_sync(0xffffffffU, active);
#pragma unroll 1
                for (int turn = 0; turn < 4; ++turn) {
                    if (turn == lane && active) {
                        RingPlace<C> at = ring;
                        at.advance(__popc(loading & ((1U << lane) - 1)));
                        load_step(keys, list, at, n, lane);
                    }
                    __syncwarp();
                }
                ring.advance(__popc(loading));
            }
        }
    }

    /// Returns the rounds of the tile.
    __device__ __forceinline__ std::int32_t begin_tile(const plan::SparseTile& t, int lane,
                                                       KeyWalk<C>& keys, List& list) const {
        const plan::SparseSteps steps = plan::steps_of(t, C::kKeys);
        const bool second = lane % 2 == 1;
        const std::int32_t own = second ? steps.second : steps.first;
        list.common = steps.common;
        list.begin = second ? steps.common : 0;
        list.end = lane < 4 ? steps.common + own : list.begin;
        list.common_tail = t.common_keys - (steps.common - 1) * C::kKeys;
        list.own_tail = (second ? t.second_keys : t.first_keys) - (own - 1) * C::kKeys;
        list.head = t.head / p.heads_per_kv_head;
        list.batch = t.batch * p.kv_batch_step;
        const bool alone = C::kMathGroups == 2 || t.half >= 2 * p.q_blocks;
        keys.row = row_of(t, second ? t.half / 2 : t.block);
        keys.other = alone ? -1 : row_of(t, second ? t.block : t.half / 2);
        return steps.rounds();
    }

    __device__ __forceinline__ void load_step(KeyWalk<C>& keys, const List& list,
                                              const RingPlace<C>& at, std::int32_t n, int lane) {
        device::MBarrier* full = &shared.slot_full[at.slot];
        device::MBarrier* empty = &shared.slot_empty[at.slot];
        device::mbarrier_wait(empty, at.parity ^ 1);
        const bool common = n < list.common;
        device::mbarrier_arrive_expect_bytes(full, C::kSlotBytes);
        if (n == 0 || n == list.common) keys.begin(p.words);
        std::int32_t count = n == 0 ? list.common_tail : C::kKeys;
        if (n == list.common) count = list.own_tail;
        keys.load(p, lane >= 2, shared.ring[at.slot], full, count, common, list.head, list.batch);
    }
};

}  // namespace xstage::attention
