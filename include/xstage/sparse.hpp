#pragma once

// Block-sparse attention with masks found offline: which blocks (west), how many of them each head
// needs (fast), where heads of unequal density go (placement), and how all that is stored (file).
// The kernel takes a mask in AttentionArguments::mask.

#include "xstage/sparse/fast.hpp"
#include "xstage/sparse/file.hpp"
#include "xstage/sparse/mask.hpp"
#include "xstage/sparse/placement.hpp"
#include "xstage/sparse/west.hpp"
