#include "core/json.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"

namespace xstage::core {
namespace {

using test::bad_input;
using testing::HasSubstr;
using testing::StartsWith;

Json scenario() {
    return parse_json(
        R"({"path": "st16", "producers": 132, "bursts": [{"bytes_per_producer": 32768}]})",
        "s.json");
}

TEST(Json, SaysLineAndColumnOfASyntaxError) {
    const std::string message = bad_input([] { parse_json("{\n  \"a\": NaN\n}", "f.json"); });
    EXPECT_THAT(message, StartsWith("f.json:2:"));
    EXPECT_THAT(bad_input([] { parse_json("", "f.json"); }), StartsWith("f.json:1:"));
    EXPECT_THAT(bad_input([] { parse_json("{\"a\": 1", "f.json"); }), StartsWith("f.json:1:"));
    EXPECT_THAT(bad_input([] { parse_json("{\"a\": 1e999}", "f.json"); }), StartsWith("f.json"));
    EXPECT_THAT(bad_input([] { parse_json(std::string(64, '\0'), "f.json"); }),
                StartsWith("f.json:1:1"));
}

TEST(Json, NestingToAnyDepthIsRefusedOrRead) {
    const std::string deep(200000, '[');
    EXPECT_THAT(bad_input([&] { parse_json(deep, "f.json"); }), HasSubstr("expected JSON"));
}

TEST(Json, AGoodScenarioPasses) {
    EXPECT_NO_THROW(validate(scenario(), "scenario", "s.json"));
}

TEST(Json, SaysPathExpectationAndFinding) {
    auto document = scenario();
    document["bursts"][0]["bytes_per_producer"] = -5;
    const std::string message = bad_input([&] { validate(document, "scenario", "s.json"); });
    EXPECT_THAT(message, StartsWith("s.json: /bursts/0/bytes_per_producer: expected number, > 0"));
    EXPECT_THAT(message, HasSubstr("found -5"));

    document = scenario();
    document["path"] = "carrier pigeon";
    EXPECT_THAT(bad_input([&] { validate(document, "scenario", "s.json"); }),
                HasSubstr("/path: expected string, one of [\"st16\",\"bulk\"]"));

    document = scenario();
    document["producers"] = "many";
    EXPECT_THAT(bad_input([&] { validate(document, "scenario", "s.json"); }),
                HasSubstr("/producers: expected integer, >= 1"));
}

TEST(Json, NamesMissingAndUnknownKeys) {
    auto document = scenario();
    document.erase("producers");
    EXPECT_THAT(bad_input([&] { validate(document, "scenario", "s.json"); }),
                HasSubstr("'producers'"));
    document = scenario();
    document["producer"] = 1;
    EXPECT_THAT(bad_input([&] { validate(document, "scenario", "s.json"); }),
                HasSubstr("producer"));
    EXPECT_THAT(bad_input([&] { validate(Json::array(), "scenario", "s.json"); }),
                HasSubstr("s.json"));
}

TEST(Json, TheVersionIsLookedAtFirst) {
    const Json document = {{"kind", "xstage.measurements"}, {"schema_version", 99}, {"rubbish", 1}};
    EXPECT_THAT(bad_input([&] { validate(document, "measurements", "m.json"); }),
                HasSubstr("/schema_version: expected 1, found 99"));
    EXPECT_THAT(bad_input([&] { validate(Json(3), "measurements", "m.json"); }),
                HasSubstr("/kind: expected \"xstage.measurements\", found nothing"));
}

TEST(Json, WhatIsDumpedIsReadBack) {
    const Json document = {{"a", {1, 2.5, nullptr}},
                           {"b", {{"c", Json::array()}, {"d", {{"e", "f\n"}}}}}};
    EXPECT_EQ(parse_json(dump_json(document), "d.json"), document);
}

}  // namespace
}  // namespace xstage::core
