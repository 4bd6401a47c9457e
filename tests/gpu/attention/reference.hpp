#pragma once

#include <cstdint>

#include "xstage/attention.hpp"

namespace xstage::test {

/// The same attention in float64 on the GPU, one block of threads a row: slow and plain, sharing no
/// code with the kernel under test. out [batch][row][head][head_dim], lse [batch][head][row].
void reference_attention(const AttentionArguments& arguments, double* out, double* lse);

}  // namespace xstage::test
