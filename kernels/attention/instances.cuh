#pragma once

#include "make_instance.cuh"

namespace xstage::attention {

// The shapes that measured best on H200, one tall and one low: a low tile wastes less where few
// waves of tall ones would leave SMs idle. What the others gave: bench/notes/attention.md.

// The last two: Q in registers; maximum of integers.

template <class Element, MaskKind kMask>
using Tall128 = Config<Element, 128, kMask, 3, 80, 6, Turns::kFirst, false, true>;

template <class Element, MaskKind kMask>
using Low128 = Config<Element, 128, kMask, 2, 128, 5, Turns::kFirst, true, true>;

template <class Element, MaskKind kMask>
using Tall64 = Config<Element, 64, kMask, 3, 128, 6, Turns::kAlways, false, true>;

template <class Element, MaskKind kMask>
using Low64 = Config<Element, 64, kMask, 2, 128, 8, Turns::kAlways, true, false>;

}  // namespace xstage::attention
