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

TEST(CommandBench, SaysWhatAMachineWithoutGpuLacks) {
    if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
    const auto result = test::run_xstage({"bench", "ulysses", "--shape", "64,4,64"});
    EXPECT_EQ(result.code, 3) << result.err;
    EXPECT_NE(result.err, "");
    EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace xstage
