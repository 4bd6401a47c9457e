#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kBf16Stamped = entry<Config<Type::kBf16, true, 1>>();

}  // namespace xstage::moe::kernels
