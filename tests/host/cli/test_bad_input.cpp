#include <gmock/gmock.h>

#include "command.hpp"

namespace xstage {
namespace {

TEST(CommandLine, UsageErrorsExitWithTwo) {
    EXPECT_EQ(test::run_xstage({}).code, 2);
    EXPECT_EQ(test::run_xstage({"no-such-command"}).code, 2);
    EXPECT_EQ(test::run_xstage({"import"}).code, 2);
    EXPECT_EQ(test::run_xstage({"import", "--no-such-option", "x"}).code, 2);
}

TEST(CommandLine, HelpAndVersionExitWithZero) {
    EXPECT_EQ(test::run_xstage({"--help"}).code, 0);
    EXPECT_EQ(test::run_xstage({"import", "--help"}).code, 0);
    EXPECT_THAT(test::run_xstage({"--version"}).out, testing::HasSubstr("0."));
}

}  // namespace
}  // namespace xstage
