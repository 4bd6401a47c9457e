#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kFp8PairsStamped = entry<Config<Type::kFp8, true, 2>>();

}  // namespace xstage::moe::kernels
