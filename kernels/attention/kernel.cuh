#pragma once

// O = softmax(scale * Q K^T) V for sm_90a, 16-bit in and out, all sums in float.
//
// A CTA lives as long as the launch and takes tiles of 64 query rows per math warpgroup. One thread
// of the first warpgroup feeds Q and the ring of K and V blocks; each math warpgroup keeps its
// rows' O and scores in registers. A group starts S of block n+1 and O of block n together and does
// the softmax of n+1 while the tensor cores work on O and on the other groups' products.

#include "block_producer.cuh"
#include "config.hpp"
#include "epilogue.cuh"
#include "mask.cuh"
#include "matrix.cuh"
#include "params.hpp"
#include "producer.cuh"
#include "ring.cuh"
#include "softmax.cuh"
#include "uniform.cuh"

namespace xstage::attention {

/// What differs for a block mask: arguments, who walks the tiles, who loads.
template <class C, MaskKind kKind = C::kMask>
struct Parts {
    using Params = KernelParams;
    using Walk = TileWalk<C>;
    using Loader = Producer<C>;
};
template <class C>
struct Parts<C, MaskKind::kBlocks> {
    using Params = BlockParams;
    using Walk = BlockWalk<C, /*kWholeWarps=*/true>;
    using Loader = BlockProducer<C>;
};

template <class C>
struct MathGroup {
    const typename Parts<C>::Params& p;
    SharedStorage<C>& shared;
    int group, warp, lane;
    RingPlace<C> ring;
    std::uint32_t q_parity = 0;

    float s[C::kKeys / 2];
    float o[C::kHeadDim / 2];
    float factor[2];  ///< O's, since the last block's softmax
    std::uint32_t probabilities[C::kKeys / 4];
    std::uint32_t q[C::kQueryInRegisters ? C::kHeadDim / 4 : 1];

    __device__ __forceinline__ void wait_turn() const {
        device::bar_sync(kBarrierTurn + group, 2 * device::kWarpgroupThreads);
    }
    __device__ __forceinline__ void pass_turn() const {
        const int next = group + 1 == C::kMathGroups ? 0 : group + 1;
        device::bar_arrive(kBarrierTurn + next, 2 * device::kWarpgroupThreads);
    }

    __device__ __forceinline__ std::uint64_t q_descriptor() const {
        return device::matrix_descriptor(shared.q[group], 0);
    }
    __device__ __forceinline__ std::uint64_t slot_descriptor(std::int32_t slot) const {
        return device::matrix_descriptor(shared.ring[slot], C::kKeys * 128);
    }
    /// Waits for the ring's next block and returns its slot.
    __device__ __forceinline__ std::int32_t take_slot() {
        device::mbarrier_wait(&shared.slot_full[ring.slot], ring.parity);
        const std::int32_t slot = ring.slot;
        ring.advance();
        return slot;
    }
    __device__ __forceinline__ void release(std::int32_t slot) {
        if (lane == 0) device::mbarrier_arrive(&shared.slot_empty[slot]);
    }
    __device__ __forceinline__ void release_q() {
        __syncwarp();  // every lane has read Q, if it reads that itself
        if (lane == 0) device::mbarrier_arrive(&shared.q_empty[group]);
    }

    __device__ __forceinline__ void mask(const Mask<C>& keys, std::int32_t n,
                                         std::int32_t first_row) {
        if (keys.is_partial(n, first_row)) {
            keys.apply(s, n, first_row + warp * 16 + lane / 4, lane % 4);
        }
    }

    /// V rows behind a short sample's end are memory of the caller's that may hold anything, and
    /// 0 * NaN is NaN: clears them. Every group does, each for itself.
    __device__ __forceinline__ void clear_tail(const Mask<C>& keys, std::int32_t n,
                                               std::int32_t slot) {
        const std::int32_t valid = keys.clean_keys(n, p.kv_rows);
        if (valid == C::kKeys) return;
        const int thread = warp * 32 + lane;
        for (int i = thread; i < C::kPanels * (C::kKeys - valid) * 8; i += 128) {
            const int piece = i % 8;
            const int row = i / 8 % (C::kKeys - valid) + valid;
            const int panel = i / 8 / (C::kKeys - valid);
            unsigned char* at = shared.ring[slot] + (panel * C::kKeys + row) * 128 + piece * 16;
            *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
        }
        device::fence_proxy_async_shared();
        device::bar_sync(kBarrierStore + group, device::kWarpgroupThreads);
    }

    __device__ __forceinline__ void clear_output() {
#pragma unroll
        for (int i = 0; i < C::kHeadDim / 2; ++i) o[i] = 0.0F;
    }

    /// Waits for the running product.
    /// The assembler hoists a wait over arithmetic that does not feed it, here the very softmax
    /// that the product is to hide, but not over a store. So there is a store that needs the
    /// softmax's result and never happens: sums are not negative, and only this code knows. (A
    /// branch around the wait would do as well, but all warps of a group must come to the same
    /// wait.)
    __device__ __forceinline__ void finish_output(const RowSoftmax<C>& softmax) {
        device::st_shared_if_negative(&shared.never_written, softmax.sum[0] + softmax.sum[1]);
        wait_products<0>();
        fence_registers(o);
    }

    /// Scales O if a reference in this warp has moved.
    __device__ __forceinline__ void follow_reference() {
        const bool moved = factor[0] != 1.0F || factor[1] != 1.0F;
        if (__any_sync(0xffffffffU, moved)) scale_rows(o, factor);
    }

    /// Blocks 0 to `hidden`-1 hold no key for these rows: gives them back unread, but for the last
    /// one's values, which come behind the next block's keys.
    __device__ __forceinline__ void pass_over(std::int32_t hidden) {
        for (std::int32_t n = 0; n < hidden; ++n) {
            release(take_slot());
            if (n > 0) release(take_slot());
        }
    }

    __device__ __forceinline__ void first_scores(const Mask<C>& keys, RowSoftmax<C>& softmax,
                                                 std::int32_t n, std::int32_t first_row) {
        device::mbarrier_wait(&shared.q_full[group], q_parity);
        q_parity ^= 1;
        if constexpr (C::kQueryInRegisters) load_q();
        const std::int32_t slot = take_slot();
        if constexpr (C::kTurns == Turns::kFirst) wait_turn();
        start_s(slot);
        if constexpr (C::kTurns == Turns::kFirst) pass_turn();
        wait_products<0>();
        fence_registers(s);
        release(slot);
        mask(keys, n, first_row);
        softmax.follow_maximum(s, p.scale_log2, p.rescale_above, factor);
        softmax.exponentiate(s, p.scale_log2);
        pack_all<typename C::Element>(s, probabilities);
    }

    __device__ __forceinline__ void load_q() {
        const int row = warp * 16 + lane % 16;
        const std::uint32_t at = device::shared_address(shared.q[group]) + row * 128;
#pragma unroll
        for (int i = 0; i < C::kHeadDim / 16; ++i) {
            const int piece = (i % 4 * 2 + lane / 16) ^ (row % 8);
            std::uint32_t part[4];
            device::ldmatrix_x4(at + i / 4 * (C::kGroupRows * 128) + piece * 16, part);
#pragma unroll
            for (int j = 0; j < 4; ++j) q[4 * i + j] = part[j];
        }
        release_q();
    }

    __device__ __forceinline__ void start_s(std::int32_t slot) {
        if constexpr (C::kQueryInRegisters) {
            start_scores<C>(s, q, slot_descriptor(slot));
        } else {
            start_scores<C>(s, q_descriptor(), slot_descriptor(slot));
        }
    }

    /// S of block n and O of block n-1 together. Blocks behind the tile's edge (Mask::edge) spare
    /// the questions, which would stand between the product and its softmax.
    template <bool kEdge>
    __device__ __forceinline__ void overlapped_step(const Mask<C>& keys, RowSoftmax<C>& softmax,
                                                    std::int32_t n, std::int32_t first_row) {
        const std::int32_t key_slot = take_slot();
        if constexpr (C::kTurns == Turns::kAlways) wait_turn();
        start_s(key_slot);
        follow_reference();  // while the tensor cores work on S
        const std::int32_t value_slot = take_slot();
        if constexpr (kEdge) clear_tail(keys, n - 1, value_slot);
        start_output<C>(o, probabilities, slot_descriptor(value_slot));
        if constexpr (C::kTurns == Turns::kAlways) pass_turn();
        wait_products<1>();
        fence_registers(s);
        release(key_slot);

        if constexpr (kEdge) mask(keys, n, first_row);
        softmax.follow_maximum(s, p.scale_log2, p.rescale_above, factor);
        softmax.exponentiate(s, p.scale_log2);
        finish_output(softmax);
        release(value_slot);
        pack_all<typename C::Element>(s, probabilities);
    }

    __device__ __forceinline__ void output_step(const Mask<C>& keys, std::int32_t n) {
        const std::int32_t slot = take_slot();
        clear_tail(keys, n, slot);
        follow_reference();
        start_output<C>(o, probabilities, slot_descriptor(slot));
        wait_products<0>();
        fence_registers(o);
        release(slot);
    }

    template <class Tile>
    __device__ __forceinline__ void attend(const Tile& at, RowSoftmax<C>& softmax) {
        const Mask<C> keys(p, at);
        const std::int32_t blocks = keys.blocks();
        const std::int32_t first_row = at.tile * C::kRows + group * C::kGroupRows;
        if (blocks == 0) return;
        std::int32_t n = 0;
        if constexpr (Mask<C>::kHides) {
            n = keys.hidden(first_row);
            pass_over(n);
        }
        first_scores(keys, softmax, n, first_row);
        if (Mask<C>::kHides && n > 0) release(take_slot());
        ++n;
        if constexpr (Mask<C>::kHasEdge) {
            const std::int32_t edge = keys.edge(first_row);
            for (; n < edge; ++n) overlapped_step<true>(keys, softmax, n, first_row);
        }
        for (; n < blocks; ++n) overlapped_step<false>(keys, softmax, n, first_row);
        if constexpr (!C::kQueryInRegisters) release_q();
        output_step(keys, blocks - 1);
    }

    __device__ __forceinline__ void run() {
        Epilogue<C> epilogue{p, shared.o[group], group, warp, lane};
        if (group == C::kMathGroups - 1) pass_turn();  // the first turn is group 0's
        for (typename Parts<C>::Walk walk; !walk.done(p); walk.next()) {
            const auto at = walk.at(p);
            RowSoftmax<C> softmax;
            clear_output();
            attend(at, softmax);
            epilogue.store(o, softmax, at);
        }
        if (group == 0) wait_turn();  // the turn nobody took
        epilogue.finish();
    }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_kernel(const __grid_constant__ typename Parts<C>::Params p) {
    extern __shared__ unsigned char raw[];
    const std::uint32_t misaligned = device::shared_address(raw) % 1024;
    auto& shared = *reinterpret_cast<SharedStorage<C>*>(raw + (1024 - misaligned) % 1024);

    const int warpgroup = one_per_warp(static_cast<int>(threadIdx.x / 128));
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();

    if (warpgroup == 0) {
        device::set_max_registers_less<C::kProducerRegisters>();
        if (threadIdx.x == 0) {
            device::prefetch_tensor_map(&p.q);
            device::prefetch_tensor_map(&p.k);
            device::prefetch_tensor_map(&p.v);
            typename Parts<C>::Loader{p, shared, {}}.run();
        }
    } else {
        device::set_max_registers_more<C::kMathRegisters>();
        const int warp = one_per_warp(static_cast<int>(threadIdx.x / 32 % 4));
        MathGroup<C>{p, shared, warpgroup - 1, warp, static_cast<int>(threadIdx.x % 32), {}}.run();
    }
}

}  // namespace xstage::attention
