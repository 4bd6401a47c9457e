#include "instances.cuh"

namespace xstage::attention {

std::vector<Instance> instances_blocks_fp16() {
    constexpr MaskKind kMask = MaskKind::kBlocks;
    return {
        make_instance<Low128<__half, kMask>>("fp16_d128_blocks_128x128"),
        make_instance<Low64<__half, kMask>>("fp16_d64_blocks_128x128"),
    };
}

}  // namespace xstage::attention
