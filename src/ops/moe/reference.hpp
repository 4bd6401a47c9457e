#pragma once

// The layer in plain C++: what the host backend runs, and what the kernels are compared with.

#include <cstdint>
#include <span>
#include <vector>

#include "xstage/moe.hpp"

namespace xstage::moe {

float from_bf16(std::uint16_t value);
std::uint16_t to_bf16(float value);  ///< to nearest, ties to even; NaN stays NaN
float from_e4m3(std::uint8_t value);
std::uint8_t to_e4m3(float value);  ///< to nearest, ties to even, to at most 448; NaN stays NaN

/// The power of two by which Linear-1's output is divided before it becomes e4m3.
float scale_of(float most);

enum class Rounding {
    kNone,   ///< float64 throughout
    kKernel  ///< where the kernel and its tensor cores round
};

/// A row that an expert is given, and where its result goes.
struct ExpertRow {
    const void* x;
    const float* x_scale;
    float weight;
    std::span<double> y;  ///< hidden; values of bf16 with kKernel
};

/// Runs the rows of one local expert.
void run_expert(const Problem& problem, const Weights& weights, int expert, Rounding rounding,
                std::span<const ExpertRow> rows);

/// The whole layer of all ranks, inputs and weights by rank: [rank][token * hidden]. kKernel adds
/// the slots in order in fp32 and rounds to bf16.
std::vector<std::vector<double>> reference_layer(const Problem& problem,
                                                 std::span<const Weights> weights,
                                                 std::span<const Input> inputs, Rounding rounding);

}  // namespace xstage::moe
