#include "make_entry.cuh"

namespace xstage::moe::kernels {

const Entry kFp8 = entry<Config<Type::kFp8, false>>();

}  // namespace xstage::moe::kernels
