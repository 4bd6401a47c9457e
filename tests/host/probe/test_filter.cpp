#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "probe/filter.hpp"

namespace xstage::probe {
namespace {

using testing::HasSubstr;

Step store(const char* path, int sms, std::int64_t bytes, Target target = Target::kRemote) {
    StoreConfig config;
    config.path = path;
    config.producers = sms;
    config.bytes = bytes;
    config.target = target;
    return {"isolated", config, 0};
}

TEST(Filter, WithoutConditionsEverythingPasses) {
    EXPECT_TRUE(Filter({}).accepts(store("st16", 132, 1024)));
}

TEST(Filter, ConditionsOfOneFilterMustAllHold) {
    const Filter filter({"path=st16,bytes<=64K,sms>=16"});
    EXPECT_TRUE(filter.accepts(store("st16", 16, 65536)));
    EXPECT_FALSE(filter.accepts(store("st16", 16, 65537)));
    EXPECT_FALSE(filter.accepts(store("st16", 15, 1024)));
    EXPECT_FALSE(filter.accepts(store("bulk", 16, 1024)));
}

TEST(Filter, OfSeveralFiltersOneIsEnough) {
    const Filter filter({"path=bulk", "target=local"});
    EXPECT_TRUE(filter.accepts(store("bulk", 1, 512)));
    EXPECT_TRUE(filter.accepts(store("st16", 1, 512, Target::kLocal)));
    EXPECT_FALSE(filter.accepts(store("st16", 1, 512)));
}

TEST(Filter, AStepWithoutTheKeyDoesNotMeetTheCondition) {
    const Step rate{"rates", RateConfig{"copy_engine", "write", Target::kRemote, 1 << 20}, 0};
    EXPECT_TRUE(Filter({"section=rates"}).accepts(rate));
    EXPECT_TRUE(Filter({"engine!=fill_kernel"}).accepts(rate));
    EXPECT_FALSE(Filter({"sms<=200"}).accepts(rate));
    EXPECT_FALSE(Filter({"load=idle"}).accepts(rate));
    const Step cell{"litmus", LitmusConfig{"bulk", LitmusFence::kWaitRead, true, 10}, 0};
    EXPECT_TRUE(Filter({"fence=wait_group.read,load=loaded"}).accepts(cell));
}

TEST(Filter, WrongTextsAreRefusedBeforeAnythingIsMeasured) {
    EXPECT_THAT(test::bad_input([] { Filter({"colour=red"}); }), HasSubstr("unknown key 'colour'"));
    EXPECT_THAT(test::bad_input([] { Filter({"path"}); }), HasSubstr("KEY=VALUE"));
    EXPECT_THAT(test::bad_input([] { Filter({"path<=st16"}); }), HasSubstr("no number"));
    test::bad_input([] { Filter({"bytes=many"}); });
    test::bad_input([] { Filter({"path=st16,"}); });
    test::bad_input([] { Filter({"sms<4"}); });
}

}  // namespace
}  // namespace xstage::probe
