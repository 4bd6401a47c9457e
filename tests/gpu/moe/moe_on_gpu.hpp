#pragma once

// The kernel against the layer in plain C++, on virtual ranks of one GPU.

#include <gtest/gtest.h>

#include "gpu_layer.hpp"
#include "xstage/error.hpp"

namespace xstage::moe {

using suite::Case;
using suite::GpuLayer;

inline Problem problem_of(Type type, int ranks, int max_tokens) {
    Problem p;
    p.ranks = ranks;
    p.max_tokens = max_tokens;
    p.hidden = 512;
    p.intermediate = 256;
    p.experts = 8;
    p.top_k = 2;
    p.type = type;
    return p;
}

/// FP8: where two codes are equally near, float and float64 sums may take different ones.
inline double tolerance(Type type) {
    return type == Type::kFp8 ? 3e-3 : 1e-3;
}

class MegaMoeOnGpu : public testing::TestWithParam<Type> {
  protected:
    void SetUp() override {
        if (const std::string missing = suite::missing_gpu(); !missing.empty())
            GTEST_SKIP() << missing;
    }
};
/// Share of elements that are more than one bf16 step from the oracle.
inline double beyond_one_step(const std::vector<std::vector<double>>& a,
                              const std::vector<std::vector<double>>& b) {
    double beyond = 0;
    double count = 0;
    for (std::size_t r = 0; r < b.size(); ++r)
        for (std::size_t i = 0; i < b[r].size(); ++i) {
            const double step = std::ldexp(1.0, std::ilogb(b[r][i] == 0 ? 1e-30 : b[r][i]) - 7);
            beyond += std::fabs(a[r][i] - b[r][i]) > step ? 1 : 0;
            ++count;
        }
    return count == 0 ? 0 : beyond / count;
}

inline void expect_near(const Case& c, const std::vector<std::vector<double>>& got) {
    const auto oracle = c.reference(Rounding::kKernel);
    const double rounded = suite::distance(got, oracle);
    const double exact = suite::distance(got, c.reference(Rounding::kNone));
    EXPECT_LE(rounded, tolerance(c.problem.type));
    if (c.problem.type == Type::kBf16) {
        EXPECT_LE(beyond_one_step(got, oracle), 1e-3);
        EXPECT_LE(exact, 4e-3);
    } else {
        EXPECT_LE(exact, 5e-2);  // e4m3 has three bits of fraction
    }
    testing::Test::RecordProperty("relative_l2_rounded", std::to_string(rounded));
    testing::Test::RecordProperty("relative_l2_exact", std::to_string(exact));
    std::printf("relative L2: oracle %.2e, exact %.2e\n", rounded, exact);
}

}  // namespace xstage::moe
