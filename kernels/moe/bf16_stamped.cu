#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kBf16Stamped = entry<Config<Type::kBf16, true>>();

}  // namespace xstage::moe::kernels
