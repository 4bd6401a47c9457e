#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moe_case.hpp"
#include "xstage/xstage_moe.h"

namespace xstage::moe {
namespace {

using suite::Case;
using testing::HasSubstr;

class MoeC : public testing::Test {
  protected:
    void SetUp() override {
        xstage_fabric_options o{};
        o.struct_size = sizeof o;
        o.world = 1;
        ASSERT_EQ(xstage_fabric_create(&o, &fabric_), 0) << xstage_last_error();
    }
    void TearDown() override {
        xstage_moe_destroy(moe_);
        xstage_fabric_destroy(fabric_);
    }
    static xstage_moe_options options() {
        xstage_moe_options o{};
        o.struct_size = sizeof o;
        o.max_tokens = 16;
        o.hidden = 256;
        o.intermediate = 128;
        o.experts = 4;
        o.top_k = 2;
        o.type = XSTAGE_MOE_FP8;
        return o;
    }
    static Problem problem() {
        Problem p;
        p.max_tokens = 16;
        p.hidden = 256;
        p.intermediate = 128;
        p.experts = 4;
        p.top_k = 2;
        p.type = Type::kFp8;
        return p;
    }

    xstage_fabric* fabric_ = nullptr;
    xstage_moe* moe_ = nullptr;
};

TEST_F(MoeC, RunsTheLayer) {
    const Case c(problem(), {11}, 3);
    const Weights w = c.weights(0);
    const xstage_moe_weights weights{w.w1, w.w2, w.s1, w.s2};
    const xstage_moe_options o = options();
    ASSERT_EQ(xstage_moe_create(fabric_, &o, &weights, 1, &moe_), 0) << xstage_last_error();
    ASSERT_EQ(xstage_moe_set_order(moe_, "lead:4/2"), 0);
    const Input in = c.input(0);
    std::vector<std::uint16_t> y(11 * 256);
    xstage_moe_input input{in.tokens, in.x, in.x_scale, in.experts, in.weights, nullptr, y.data()};
    ASSERT_EQ(xstage_moe_run(moe_, &input, 1, nullptr, 0), 0) << xstage_last_error();
    const auto expected = c.reference(Rounding::kKernel);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(from_bf16(y[i]), expected[0][i]);

    // Fewer tokens, told in memory, and the input already in its place.
    const std::int32_t tokens = 5;
    std::fill(y.begin(), y.end(), 0x1234);
    ASSERT_EQ(xstage_moe_input_memory(moe_, 0, &input), 0);
    EXPECT_NE(input.x, in.x);
    input.tokens_at = &tokens;
    ASSERT_EQ(xstage_moe_run(moe_, &input, 1, nullptr, 0), 0) << xstage_last_error();
    for (std::size_t i = 0; i < 5 * 256; ++i) ASSERT_EQ(from_bf16(y[i]), expected[0][i]);
    EXPECT_EQ(y[5 * 256], 0x1234);
}

TEST_F(MoeC, RunsWithASharedExpert) {
    Problem p = problem();
    p.shared = true;
    const Case c(p, {11}, 3);
    const Weights w = c.weights(0);
    const xstage_moe_weights weights{w.w1, w.w2, w.s1, w.s2};
    xstage_moe_options o = options();
    o.shared_expert = 1;
    ASSERT_EQ(xstage_moe_create(fabric_, &o, &weights, 1, &moe_), 0) << xstage_last_error();
    const Input in = c.input(0);
    std::vector<std::uint16_t> y(11 * 256);
    xstage_moe_input input{in.tokens, in.x, in.x_scale, in.experts, in.weights, nullptr, y.data()};
    ASSERT_EQ(xstage_moe_run(moe_, &input, 1, nullptr, 0), 0) << xstage_last_error();
    const auto expected = c.reference(Rounding::kKernel);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(from_bf16(y[i]), expected[0][i]);
}

TEST_F(MoeC, TellsTheWorkspaceAndKeepsItsLimit) {
    xstage_moe_options o = options();
    std::uint64_t bytes = 0;
    ASSERT_EQ(xstage_moe_workspace_bytes(&o, 1, &bytes), 0);
    EXPECT_EQ(bytes, workspace_bytes(problem()));
    o.workspace_limit = bytes - 1;
    EXPECT_EQ(xstage_moe_workspace_bytes(&o, 1, &bytes), 2);
    EXPECT_THAT(xstage_last_error(), HasSubstr("limit"));
    const xstage_moe_weights weights{};
    EXPECT_EQ(xstage_moe_create(fabric_, &o, &weights, 1, &moe_), 2);
    EXPECT_EQ(moe_, nullptr);
}

TEST_F(MoeC, RefusesNonsense) {
    xstage_moe_options o = options();
    const xstage_moe_weights weights{};
    EXPECT_EQ(xstage_moe_create(fabric_, &o, &weights, 1, &moe_), 2);
    EXPECT_THAT(xstage_last_error(), HasSubstr("w1"));
    o.order = "sideways";
    std::uint64_t bytes = 0;
    EXPECT_EQ(xstage_moe_workspace_bytes(&o, 1, &bytes), 2);
    EXPECT_THAT(xstage_last_error(), HasSubstr("sideways"));
    o = options();
    o.type = 7;
    EXPECT_EQ(xstage_moe_workspace_bytes(&o, 1, &bytes), 2);
    o.struct_size = 1;
    EXPECT_EQ(xstage_moe_workspace_bytes(&o, 1, &bytes), 2);
    EXPECT_EQ(xstage_moe_run(nullptr, nullptr, 0, nullptr, 0), 2);
}

}  // namespace
}  // namespace xstage::moe
