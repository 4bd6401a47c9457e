#include "instances.cuh"

namespace xstage::attention {

std::vector<Instance> instances_dense_bf16() {
    constexpr MaskKind kMask = MaskKind::kDense;
    return {
        make_instance<Tall128<__nv_bfloat16, kMask>>("bf16_d128_192x80"),
        make_instance<Low128<__nv_bfloat16, kMask>>("bf16_d128_128x128"),
        make_instance<Tall64<__nv_bfloat16, kMask>>("bf16_d64_192x128"),
        make_instance<Low64<__nv_bfloat16, kMask>>("bf16_d64_128x128"),
    };
}

}  // namespace xstage::attention
