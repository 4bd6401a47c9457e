#include "make_instance.cuh"

namespace xstage::attention {

template <int kHeadDim, int kMathGroups, int kKeys, int kSlots>
using Dense = Config<__half, kHeadDim, MaskKind::kDense, kMathGroups, kKeys, kSlots,
                     /*overlap=*/true, 1, Turns::kNever>;

std::vector<Instance> instances_dense_fp16() {
    return {
        make_instance<Dense<128, 2, 160, 4>>("fp16_d128_128x160"),
        make_instance<Dense<64, 3, 128, 6>>("fp16_d64_192x128"),
    };
}

}  // namespace xstage::attention
