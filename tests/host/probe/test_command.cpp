// The command as a user meets it, on a machine with or without GPUs.

#include <gmock/gmock.h>

#include "command.hpp"
#include "trace/measurement_json.hpp"

namespace xstage {
namespace {

using test::run_xstage;
using testing::AllOf;
using testing::HasSubstr;

TEST(ProbeCommandLine, AHangIsKilledWithItsPhaseNamed) {
    const test::TemporaryDirectory directory;
    const auto result = run_xstage({"probe", "--hang-in", "open", "-o", directory.file("m.json")});
    EXPECT_EQ(result.code, 124);
    EXPECT_THAT(result.err, AllOf(HasSubstr("phase 'open'"), HasSubstr(directory.file("m.json"))));
}

TEST(ProbeCommandLine, WrongAxesAndFiltersAreUsageErrorsBeforeAnyGpuIsTouched) {
    EXPECT_EQ(run_xstage({"probe", "--bytes", "64K:1K:x2", "--hang-in", "open"}).code, 2);
    EXPECT_EQ(run_xstage({"probe", "--filter", "colour=red", "--hang-in", "open"}).code, 2);
    EXPECT_EQ(run_xstage({"probe", "--samples", "0", "--hang-in", "open"}).code, 2);
    EXPECT_EQ(run_xstage({"probe", "--trials", "many", "--hang-in", "open"}).code, 2);
    EXPECT_EQ(run_xstage({"probe", "-o", "-", "--hang-in", "open"}).code, 2);
    EXPECT_EQ(run_xstage({"probe", "--measured", "m.json"}).code, 2);
    EXPECT_EQ(run_xstage({"probe", "--compare", "/no/such/file.json"}).code, 2);
}

TEST(ProbeCommandLine, ARecordingComparedWithItselfIsNoRegression) {
    const std::string recording =
        std::string(XSTAGE_SOURCE_DIR) + "/data/nodes/h200x2/first-recording.json";
    const auto result = run_xstage({"probe", "--compare", recording, "--measured", recording});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, AllOf(HasSubstr("0 slower, 0 faster, 0 only in the base, 0 only now"),
                                  HasSubstr("no regression")));
}

}  // namespace
}  // namespace xstage
