#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kBf16Pairs = entry<Config<Type::kBf16, false, 2>>();

}  // namespace xstage::moe::kernels
