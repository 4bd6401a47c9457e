#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "xstage/moe/plan.hpp"

namespace xstage::moe::kernels {

/// Fills memory with numbers spread evenly over +-size; e4m3 takes them with size 64 and leaves the
/// rest to the scales. For benchmarks: zeros would draw less power than real numbers do.
cudaError_t fill_random(void* to, std::int64_t count, Type type, float size, std::uint32_t seed,
                        cudaStream_t stream);
cudaError_t fill_floats(float* to, std::int64_t count, float low, float high, std::uint32_t seed,
                        cudaStream_t stream);

/// Adds the number of 16-bit words that differ to *count.
cudaError_t count_differences(const std::uint16_t* a, const std::uint16_t* b, std::int64_t words,
                              unsigned long long* count, cudaStream_t stream);

}  // namespace xstage::moe::kernels
