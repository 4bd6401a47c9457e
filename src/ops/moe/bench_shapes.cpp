#include "ops/moe/bench.hpp"

namespace xstage::moe {

const std::vector<BenchShape>& bench_shapes() {
    static const std::vector<BenchShape> shapes = {
        {"V3", 7168, 2048, 256, 8},           {"V4-Pro", 7168, 3072, 384, 6},
        {"V4-Flash", 4096, 2048, 256, 6},     {"Qwen3-235B", 4096, 1536, 128, 8},
        {"LingBot-Video", 2048, 768, 128, 8}, {"MiniMax-M2", 3072, 1536, 256, 8},
        {"HunyuanImage-3", 4096, 3072, 64, 8}};
    return shapes;
}

}  // namespace xstage::moe
