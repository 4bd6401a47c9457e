#include "sparse/mask_shape.hpp"

#include <fmt/format.h>

#include "xstage/error.hpp"

namespace xstage::sparse {

void require_fit(const BlockMask& mask, const MaskedShape& s) {
    const auto refuse = [](const std::string& what) {
        throw Error(ErrorKind::kBadInput, "the block mask " + what);
    };
    if (mask.q_rows() != s.q_rows || mask.kv_rows() != s.kv_rows)
        refuse(fmt::format("is for {} query rows and {} keys, {} {} and {}", mask.q_rows(),
                           mask.kv_rows(), s.all_ranks ? "all ranks together have" : "not",
                           s.q_rows, s.kv_rows));
    if (mask.batches() != 1 && mask.batches() != s.batches)
        refuse(fmt::format("has {} batches, not 1 or {}", mask.batches(), s.batches));
    if (mask.heads() != 1 && mask.heads() != s.kv_heads && mask.heads() != s.heads)
        refuse(fmt::format("has {} heads, not 1, {} or {}", mask.heads(), s.kv_heads, s.heads));
}

}  // namespace xstage::sparse
