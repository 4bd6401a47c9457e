#include <gmock/gmock.h>

#include <filesystem>

#include "command.hpp"

namespace xstage {
namespace {

using testing::HasSubstr;

TEST(CommandBench, BadShapesAndRanksExitWithTwo) {
    const auto shape = test::run_xstage({"bench", "ulysses", "--shape", "4096x40"});
    EXPECT_EQ(shape.code, 2);
    EXPECT_THAT(shape.err, HasSubstr("ROWS,HEADS,DIM"));
    EXPECT_EQ(test::run_xstage({"bench", "ulysses", "--ranks", "0"}).code, 2);
    EXPECT_EQ(test::run_xstage({"bench", "ulysses", "--backend", "carrier-pigeon"}).code, 2);
}

TEST(CommandBench, BadMoeShapesAndOrdersExitWithTwo) {
    const auto shape = test::run_xstage({"bench", "moe", "--shape", "4096,2048"});
    EXPECT_EQ(shape.code, 2);
    EXPECT_THAT(shape.err, HasSubstr("V4-Flash"));
    const auto order = test::run_xstage({"bench", "moe", "--orders", "wave:0"});
    EXPECT_EQ(order.code, 2);
    EXPECT_THAT(order.err, HasSubstr("wave"));
    EXPECT_EQ(test::run_xstage({"bench", "moe", "--types", "fp4"}).code, 2);
    EXPECT_EQ(test::run_xstage({"bench", "moe", "--tokens", "0"}).code, 2);
    EXPECT_EQ(test::run_xstage({"bench", "moe", "--ranks", "17"}).code, 2);
    EXPECT_EQ(test::run_xstage({"bench", "moe", "--routing", "sideways"}).code, 2);
    const auto alone = test::run_xstage({"bench", "moe", "--routing", "away"});
    EXPECT_EQ(alone.code, 2);
    EXPECT_THAT(alone.err, HasSubstr("two ranks"));
}

TEST(CommandBench, SaysWhatAMachineWithoutGpuLacks) {
    if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
    const auto moe = test::run_xstage({"bench", "moe", "--shape", "V3", "--tokens", "1"});
    EXPECT_EQ(moe.code, 3) << moe.err;
    EXPECT_EQ(moe.out, "");
    const auto two = test::run_xstage({"bench", "moe", "--ranks", "2", "--shape", "V3"});
    EXPECT_EQ(two.code, 3) << two.err;
    const auto result = test::run_xstage({"bench", "ulysses", "--shape", "64,4,64"});
    EXPECT_EQ(result.code, 3) << result.err;
    EXPECT_NE(result.err, "");
    EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace xstage
