#include "make_instance.cuh"

namespace xstage::attention {

// 128 keys: a tile's diagonal then lies in one block of square tiles.
template <class Element, int kHeadDim, Turns kTurns = Turns::kNever>
using Causal = Config<Element, kHeadDim, MaskKind::kCausal, 2, 128, 5, /*overlap=*/true, 1, kTurns>;

std::vector<Instance> instances_causal() {
    return {
        make_instance<Causal<__nv_bfloat16, 128>>("bf16_d128_causal_128x128"),
        make_instance<Causal<__nv_bfloat16, 128, Turns::kAlways>>("bf16_d128_causal_128x128_turn"),
        make_instance<Causal<__half, 128>>("fp16_d128_causal_128x128"),
        make_instance<Causal<__nv_bfloat16, 64>>("bf16_d64_causal_128x128"),
        make_instance<Causal<__half, 64>>("fp16_d64_causal_128x128"),
    };
}

}  // namespace xstage::attention
