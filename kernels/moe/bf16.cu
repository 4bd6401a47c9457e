#include "make_launch.cuh"

namespace xstage::moe::kernels {

cudaError_t launch_bf16(const KernelParams& p, int ranks, cudaStream_t stream) {
    return launch<Config<Type::kBf16>>(p, ranks, stream);
}

cudaError_t prepare_bf16(int* ctas_per_processor) {
    return prepare<Config<Type::kBf16>>(ctas_per_processor);
}

}  // namespace xstage::moe::kernels
