#pragma once

#include <string>

#include "xstage/ulysses.hpp"

namespace xstage::ulysses {

/// cuDNN's attention through cudnn-frontend; libcudnn.so.9 is opened at run time, so nothing needs
/// it at build time. bf16 and fp16, head_dim up to 128 (256 where cuDNN has it), LSE and key
/// lengths. A shape's first call builds cuDNN's plan and allocates its workspace: make it before
/// capturing a graph. Throws Error (kUnsupported) saying what is missing: the library, or the
/// frontend's headers when xstage was built.
Plug cudnn_plug();

/// Why cudnn_plug() would throw; empty when it would not.
std::string cudnn_missing();

}  // namespace xstage::ulysses
