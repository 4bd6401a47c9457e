// The advisor against an exhaustive search: 7 shapes x 6 token counts x 2 slices of the experts,
// two GPUs. Its choice must be within 2% of the best of all orders.

#include <gtest/gtest.h>

#include <algorithm>

#include "host/sim/nodes.hpp"
#include "sim/advise.hpp"

namespace xstage::sim {
namespace {

struct Shape {
    const char* name;
    int hidden, intermediate, experts, top_k;
};

constexpr Shape kShapes[] = {
    {"V3", 7168, 2048, 256, 8},          {"V4-Pro", 7168, 3072, 384, 6},
    {"V4-Flash", 4096, 2048, 256, 6},    {"Qwen3-235B", 4096, 1536, 128, 8},
    {"LingBot", 2048, 768, 128, 8},      {"MiniMax-M2", 3072, 1536, 256, 8},
    {"HunyuanImage3", 4096, 3072, 64, 8}};

class Grid : public testing::TestWithParam<Shape> {};

TEST_P(Grid, ChoiceIsWithinTwoPercentOfTheBest) {
    const Shape& shape = GetParam();
    for (const int slice : {1, 4}) {  // experts of true EP2, and the load per GPU of EP8
        for (const int tokens : {128, 512, 1024, 2048, 4096, 8192}) {
            Scenario scenario;
            scenario.cluster = {test::h200_node(false), 2, 0};
            Moe moe;
            moe.hidden = shape.hidden;
            moe.intermediate = shape.intermediate;
            moe.experts = shape.experts / slice;
            moe.top_k = shape.top_k;
            moe.tokens = tokens;
            moe.routing = std::make_shared<Routing>(seeded_routing(
                {moe.experts, 2, moe.top_k, std::vector<std::int64_t>(2, tokens), 1, 0, -1}));
            scenario.moe = moe;
            const std::vector<Option> options = options_of(scenario);
            const plan::Advice advice = advise(options);
            double best = 0, chosen = 0;
            std::string best_name;
            for (std::size_t i = 0; i < options.size(); ++i) {
                const Scenario& s = options[i].scenario;
                const double time = run(s.cluster, s.programs()).total_ns;
                if (best == 0 || time < best) {
                    best = time;
                    best_name = options[i].candidate.name;
                }
                if (static_cast<int>(i) == advice.choice) chosen = time;
            }
            EXPECT_LE(chosen, best * 1.02)
                << shape.name << " slice " << slice << " T " << tokens << ": chose "
                << options[static_cast<std::size_t>(advice.choice)].candidate.name << ", best "
                << best_name;
            printf(
                "%-14s /%d T %5d: %-12s %8.1f us, best %-12s %8.1f us, gain over one wave %.3f\n",
                shape.name, slice, tokens,
                options[static_cast<std::size_t>(advice.choice)].candidate.name.c_str(),
                chosen / 1e3, best_name.c_str(), best / 1e3, advice.gain);
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Shapes, Grid, testing::ValuesIn(kShapes), [](const auto& info) {
    std::string name = info.param.name;
    std::erase(name, '-');
    return name;
});

}  // namespace
}  // namespace xstage::sim
