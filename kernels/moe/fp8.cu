#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kFp8 = entry<Config<Type::kFp8, false, 1>>();

}  // namespace xstage::moe::kernels
