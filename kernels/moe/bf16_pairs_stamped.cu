#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kBf16PairsStamped = entry<Config<Type::kBf16, true, 2>>();

}  // namespace xstage::moe::kernels
