#pragma once

#include <memory>

#include "xstage/sparse/mask.hpp"

// What the C ABI's opaque pointers are, where more than one file looks inside.
struct xstage_block_mask {
    std::shared_ptr<const xstage::sparse::BlockMask> mask;
};
