#include <gmock/gmock.h>

#include "browser.hpp"
#include "command.hpp"

namespace xstage {
namespace {

struct View {
    int width;
    bool dark;
};

class ReportInABrowser : public testing::TestWithParam<View> {};

TEST_P(ReportInABrowser, FitsIsReadableAndKeepsContrast) {
    if (!test::have_browser()) GTEST_SKIP() << "no chromium on this machine";
    const std::string recording = XSTAGE_SOURCE_DIR "/data/nodes/h200x2/first-recording.json";
    const auto report = test::run_xstage({"report", recording, "-o", "-"});
    ASSERT_EQ(report.code, 0) << report.err;
    const auto layout = test::lay_out(report.out, GetParam().width, GetParam().dark);
    ASSERT_TRUE(layout.has_value()) << "the browser gave no answer";
    EXPECT_LE(layout->page_width, GetParam().width) << "the page scrolls sideways";
    EXPECT_EQ(layout->figures, 6);
    EXPECT_EQ(layout->clipped_labels, 0);
    EXPECT_GE(layout->smallest_text, 8.5);
    EXPECT_GE(layout->lowest_contrast, 4.5);  // WCAG AA for text
}

INSTANTIATE_TEST_SUITE_P(Views, ReportInABrowser,
                         testing::Values(View{400, false}, View{400, true}, View{1400, false},
                                         View{1400, true}),
                         [](const auto& info) {
                             return std::to_string(info.param.width) +
                                    (info.param.dark ? "Dark" : "Light");
                         });

}  // namespace
}  // namespace xstage
