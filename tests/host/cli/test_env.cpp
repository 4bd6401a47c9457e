#include <gmock/gmock.h>
#include <sys/resource.h>

#include "command.hpp"
#include "core/json.hpp"

namespace xstage {
namespace {

core::Json finding(const core::Json& document, const std::string& name) {
    for (const core::Json& f : document.at("findings"))
        if (f.at("name") == name) return f;
    return nullptr;
}

TEST(EnvCommand, EveryFindingSaysWhatItIsOrWhyNot) {
    const auto result = test::run_xstage({"env", "--json"});
    const auto document = core::parse_json(result.out, "out");
    bool broken = false;
    for (const core::Json& f : document.at("findings")) {
        EXPECT_THAT(f.at("state").get<std::string>(), testing::AnyOf("works", "missing", "broken"));
        EXPECT_NE(f.at("detail"), "") << f;
        broken |= f.at("state") == "broken";
    }
    EXPECT_EQ(result.code, broken ? 4 : 0) << result.err;
    EXPECT_EQ(finding(document, "host backend").at("state"), "works");
    EXPECT_FALSE(finding(document, "GPU").is_null());
}

TEST(EnvCommand, TooFewDescriptorsAreSaid) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{100, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto result = test::run_xstage({"env", "--json"});  // inherits the limit
    ::setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_EQ(result.code, 4);
    const auto document = core::parse_json(result.out, "out");
    const auto descriptors = finding(document, "descriptors");
    EXPECT_EQ(descriptors.at("state"), "broken");
    EXPECT_THAT(descriptors.at("detail").get<std::string>(), testing::HasSubstr("100"));
}

}  // namespace
}  // namespace xstage
