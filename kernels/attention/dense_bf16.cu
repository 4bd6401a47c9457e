#include "make_instance.cuh"

namespace xstage::attention {

template <int kHeadDim, int kMathGroups, int kKeys, int kSlots, bool kOverlap, int kCluster,
          Turns kTurns, bool kQueryInRegisters = false>
using Dense = Config<__nv_bfloat16, kHeadDim, MaskKind::kDense, kMathGroups, kKeys, kSlots,
                     kOverlap, kCluster, kTurns, kQueryInRegisters>;

std::vector<Instance> instances_dense_bf16() {
    return {
        make_instance<Dense<128, 2, 160, 4, true, 1, Turns::kNever>>("bf16_d128_128x160"),
        make_instance<Dense<128, 2, 160, 4, true, 2, Turns::kNever>>("bf16_d128_128x160_pair"),
        make_instance<Dense<128, 2, 160, 4, true, 2, Turns::kAlways>>("bf16_d128_128x160_pair_turn"),
        make_instance<Dense<128, 2, 128, 5, true, 1, Turns::kNever>>("bf16_d128_128x128"),
        make_instance<Dense<128, 2, 128, 5, true, 1, Turns::kNever, true>>("bf16_d128_128x128_qreg"),
        make_instance<Dense<128, 2, 128, 5, true, 2, Turns::kNever, true>>("bf16_d128_128x128_qreg_pair"),
        make_instance<Dense<128, 3, 128, 4, false, 1, Turns::kNever>>("bf16_d128_192x128"),
        make_instance<Dense<128, 3, 128, 4, false, 2, Turns::kNever>>("bf16_d128_192x128_pair"),
        make_instance<Dense<64, 3, 128, 6, true, 1, Turns::kAlways>>("bf16_d64_192x128_turn"),
        make_instance<Dense<64, 3, 128, 6, true, 1, Turns::kNever>>("bf16_d64_192x128"),
        make_instance<Dense<64, 2, 128, 8, true, 1, Turns::kNever>>("bf16_d64_128x128"),
    };
}

}  // namespace xstage::attention
