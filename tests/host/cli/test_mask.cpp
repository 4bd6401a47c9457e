#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "command.hpp"
#include "core/json.hpp"
#include "sparse/safetensors.hpp"
#include "xstage/sparse.hpp"

namespace xstage {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

/// A prompt whose heads look at neighbours: score -(i - j)^2 / reach^2, but for a term of the row.
std::string prompt(const test::TemporaryDirectory& directory, const std::string& name) {
    constexpr std::int64_t kRows = 5 * 8 * 32;  // 10 blocks
    sparse::TensorFile file;
    for (int step = 0; step < 2; ++step) {
        std::vector<float> q;
        std::vector<float> k;
        for (std::int64_t i = 0; i < kRows; ++i) {
            for (const float reach : {100.0F, 250.0F}) {
                const float x = static_cast<float>(i) / reach;
                q.insert(q.end(), {2 * x, -1});
                k.insert(k.end(), {x, x * x});
            }
        }
        const std::string at = "layers.0.steps." + std::to_string(step) + ".";
        file.tensors[at + "q"] = {"F32", {kRows, 2, 2}, sparse::bytes_of(q)};
        file.tensors[at + "k"] = {"F32", {kRows, 2, 2}, sparse::bytes_of(k)};
    }
    sparse::write_tensors(directory.file(name), file);
    return directory.file(name);
}

const std::vector<std::string> kLayout = {"--frames", "5", "--height", "8", "--width", "32"};

std::vector<std::string> with_layout(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), kLayout.begin(), kLayout.end());
    return arguments;
}

TEST(MaskCommand, CalibratesTunesAppliesAndInspects) {
    const test::TemporaryDirectory directory;
    const std::string map = directory.file("map");
    const std::string tuned = directory.file("tuned");
    const std::string mask = directory.file("mask");
    auto r = test::run_xstage(with_layout({"mask", "calibrate", prompt(directory, "a"),
                                           prompt(directory, "b"), "--scale", "1", "-o", map}));
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.out, "");

    r = test::run_xstage({"mask", "tune", map, "--density", "0.4", "-o", tuned, "--json"});
    ASSERT_EQ(r.code, 0) << r.err;
    const core::Json document = core::parse_json(r.out, "stdout");
    EXPECT_EQ(document["schema_version"], 1);
    EXPECT_EQ(document["prompts"], 2);
    EXPECT_NEAR(document["budgets"]["density"].get<double>(), 0.4, 0.02);

    r = test::run_xstage({"mask", "apply", tuned, "--layer", "0", "--step", "1", "-o", mask});
    ASSERT_EQ(r.code, 0) << r.err;
    const sparse::MaskFile file = sparse::read_mask_file(tuned);
    EXPECT_EQ(sparse::read_block_mask(mask), file.layers[0].mask(file.budgets->at(0, 1)));

    // Without budgets, at one density, for another resolution.
    r = test::run_xstage({"mask", "apply", map, "--layer", "0", "--density", "0.5", "--frames", "5",
                          "--height", "12", "--width", "48", "-o", mask});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(sparse::read_block_mask(mask).q_rows(), 5 * 12 * 48);
    EXPECT_GE(sparse::read_block_mask(mask).density(), 0.5);

    r = test::run_xstage({"mask", "inspect", map, "--head", "1", "--top-p", "0.9", "--svg", "-"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_THAT(r.out, StartsWith("<svg"));
    r = test::run_xstage({"mask", "inspect", "-", "--json"}, test::slurp(map));
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_TRUE(core::parse_json(r.out, "stdout")["budgets"].is_null());
}

TEST(MaskCommand, BadInputIsOneLineAndLeavesNoFile) {
    const test::TemporaryDirectory directory;
    const std::string map = directory.file("map");
    const std::string out = directory.file("out");
    ASSERT_EQ(test::run_xstage(with_layout({"mask", "calibrate", prompt(directory, "a"), "--scale",
                                            "1", "-o", map}))
                  .code,
              0);
    const std::string text = test::slurp(map);
    const std::string cut = directory.write("cut", text.substr(0, text.size() / 2));
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{"mask", "inspect", directory.file("none")}, "none"},
        {{"mask", "inspect", cut}, "cut"},
        {{"mask", "inspect", map, "--layer", "7", "--svg", out}, "there is no layer 7"},
        {{"mask", "inspect", map, "--head", "9", "--svg", out}, "no head 9"},
        {{"mask", "apply", map, "--layer", "0", "-o", out}, "not tuned"},
        {{"mask", "apply", map, "--layer", "0", "--density", "0.5", "--frames", "5", "-o", out},
         "go together"},
        {{"mask", "apply", map, "--layer", "0", "--density", "1.5", "-o", out}, "--density"},
        {{"mask", "tune", map, "--density", "0.001", "-o", out}, "least possible"},
        {with_layout({"mask", "calibrate", map, "-o", out}), "layers.0.steps.0.q"},
        {{"mask", "calibrate", prompt(directory, "b"), "--frames", "5", "--height", "8", "--width",
          "31", "-o", out},
         "expected [1240"},
    };
    for (const auto& [arguments, why] : cases) {
        const auto r = test::run_xstage(arguments);
        EXPECT_EQ(r.code, 2) << why;
        EXPECT_THAT(r.err, HasSubstr(why));
        EXPECT_EQ(r.out, "");
        EXPECT_FALSE(std::filesystem::exists(out)) << why;
    }
}

}  // namespace
}  // namespace xstage
