#pragma once

#include "block_list.cuh"
#include "producer.cuh"

namespace xstage::attention {

/// One thread that loads the key blocks whose bits are set.
template <class C>
struct BlockProducer {
    const BlockParams& p;
    SharedStorage<C>& shared;
    RingPlace<C> ring;

    __device__ __forceinline__ void run() {
        Producer<C> load{p, shared, ring};
        for (BlockWalk<C, /*kWholeWarps=*/false> walk; !walk.done(p); walk.next()) {
            const plan::SparseTile t = walk.at(p);
            const std::int32_t blocks = BlockList<C>(p, t).blocks();
            if (blocks == 0) continue;
            const std::int32_t head = t.head / p.heads_per_kv_head;
            const std::int32_t batch = t.batch * p.kv_batch_step;
            KeyBits keys(p, t);

            // Who starts on what: as in Producer::run.
            load.load_q(0, t);
            std::int32_t block = keys.next();
            load.load_block(p.k, block, head, batch);
            for (int g = 1; g < C::kMathGroups; ++g) load.load_q(g, t);
            load.q_parity ^= 1;
            for (std::int32_t n = 1; n < blocks; ++n) {
                const std::int32_t before = block;
                block = keys.next();
                load.load_block(p.k, block, head, batch);
                load.load_block(p.v, before, head, batch);
            }
            load.load_block(p.v, block, head, batch);
        }
    }
};

}  // namespace xstage::attention
