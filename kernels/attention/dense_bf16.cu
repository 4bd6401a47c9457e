#include "make_instance.cuh"

namespace xstage::attention {

template <int kHeadDim, int kMathGroups, int kKeys, int kSlots, bool kOverlap, int kCluster = 1>
using Dense = Config<__nv_bfloat16, kHeadDim, MaskKind::kDense, kMathGroups, kKeys, kSlots,
                     kOverlap, kCluster>;

std::vector<Instance> instances_dense_bf16() {
    return {
        make_instance<Dense<128, 2, 160, 4, true>>("bf16_d128_128x160"),
        make_instance<Dense<128, 2, 160, 4, true, 2>>("bf16_d128_128x160_pair"),
        make_instance<Dense<128, 2, 128, 5, true>>("bf16_d128_128x128"),
        make_instance<Dense<128, 3, 128, 4, false>>("bf16_d128_192x128"),
        make_instance<Dense<64, 3, 128, 6, true>>("bf16_d64_192x128"),
        make_instance<Dense<64, 2, 192, 6, true>>("bf16_d64_128x192"),
    };
}

}  // namespace xstage::attention
