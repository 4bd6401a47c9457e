#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kBf16 = entry<Config<Type::kBf16, false, 1>>();

}  // namespace xstage::moe::kernels
