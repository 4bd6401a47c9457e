#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "expect_error.hpp"
#include "probe/axis.hpp"

namespace xstage::probe {
namespace {

using testing::HasSubstr;
using Values = std::vector<std::int64_t>;

TEST(Axis, SizesCountInPowersOfTwo) {
    EXPECT_EQ(parse_axis("4096", "bytes"), Values{4096});
    EXPECT_EQ(parse_axis("1K,3M,2G", "bytes"), (Values{1024, 3145728, 2147483648}));
    EXPECT_EQ(parse_axis("2KiB", "bytes"), Values{2048});
}

TEST(Axis, FactorsEndOnTheirBound) {
    EXPECT_EQ(parse_axis("1K:64K:x2", "bytes"),
              (Values{1024, 2048, 4096, 8192, 16384, 32768, 65536}));
    EXPECT_EQ(parse_axis("1:1000:x10", "sms"), (Values{1, 10, 100, 1000}));
    EXPECT_EQ(parse_axis("1:100:x10", "sms"), (Values{1, 10, 100}));
    // 4, 6, 9, 13.5 rounded: a factor need not be whole.
    EXPECT_EQ(parse_axis("4:14:x1.5", "warps"), (Values{4, 6, 9, 14}));
}

TEST(Axis, StepsAndListsMixSortedWithoutDoubles) {
    EXPECT_EQ(parse_axis("0:24:+8", "gaps"), (Values{0, 8, 16, 24}));
    EXPECT_EQ(parse_axis("8,1:4:x2,4:8:+2", "gaps"), (Values{1, 2, 4, 6, 8}));
    EXPECT_EQ(parse_axis("5:5:x2", "gaps"), Values{5});
}

TEST(Axis, BadTextsNameTheAxisAndWhatIsWrong) {
    for (const char* text : {"", "K", "-4", "4X", "1:2", "1:2:3", "1:2:x", "2:1:x2", "0:8:x2",
                             "1:8:x1", "1:8:xnan", "1:8:+0", "1,,2", "1:8:x2:9", "4.5", "0x10"}) {
        EXPECT_THAT(test::bad_input([&] { parse_axis(text, "bytes"); }),
                    HasSubstr("--bytes: expected"))
            << text;
    }
}

TEST(Axis, HugeRangesAndNumbersAreRefused) {
    EXPECT_THAT(test::bad_input([] { parse_axis("0:100000:+1", "gaps"); }), HasSubstr("10000"));
    EXPECT_THAT(test::bad_input([] { parse_axis("1:2:x1.00000001", "gaps"); }), HasSubstr("10000"));
    test::bad_input([] { parse_axis("9223372036854775807G", "bytes"); });
    test::bad_input([] { parse_axis("99999999999999999999", "bytes"); });
}

RC_GTEST_PROP(Axis, RangesStayInBoundsAndRise, ()) {
    const auto from = *rc::gen::inRange<std::int64_t>(1, 1000);
    const auto to = from + *rc::gen::inRange<std::int64_t>(0, 100000);
    const auto factor = *rc::gen::inRange(2, 9);
    const Values values = parse_axis(
        std::to_string(from) + ":" + std::to_string(to) + ":x" + std::to_string(factor), "bytes");
    RC_ASSERT(values.front() == from);
    RC_ASSERT(values.back() <= to);
    RC_ASSERT(values.back() * factor > to);
    for (std::size_t i = 1; i < values.size(); ++i) RC_ASSERT(values[i] == values[i - 1] * factor);
}

}  // namespace
}  // namespace xstage::probe
