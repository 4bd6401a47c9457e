#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kFp8Pairs = entry<Config<Type::kFp8, false, 2>>();

}  // namespace xstage::moe::kernels
