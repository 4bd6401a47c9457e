#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kFp8Stamped = entry<Config<Type::kFp8, true, 1>>();

}  // namespace xstage::moe::kernels
