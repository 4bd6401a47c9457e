#pragma once

#include <string>
#include <vector>

#include "xstage/moe/plan.hpp"

namespace xstage::moe {

struct BenchShape {
    std::string name;
    int hidden, intermediate, experts, top_k;
};
/// Layers that are served today: language models and video diffusion.
const std::vector<BenchShape>& bench_shapes();

enum class Routing {
    kBalanced,  ///< every token's experts drawn evenly
    kHot,       ///< a tenth of the routes goes to one expert
};

struct BenchOptions {
    std::vector<Type> types;
    std::vector<BenchShape> shapes;
    std::vector<int> tokens;
    std::vector<int> slices;  ///< one GPU's share of the experts: 2 is half of them
    std::vector<plan::MoeOrder> orders;
    std::vector<Routing> routings;
    int repetitions = 7;
    unsigned seed = 1;
    double seconds = 0;  ///< stop starting new configurations after this long; 0: never
    StorePath store = StorePath::kSt16;
    std::string node = "unnamed";
    std::string git_commit;
    std::vector<std::string> argv;
};

/// Times the layer of one rank on one GPU under each order, in random turn, and compares the bits
/// of the results. Returns a JSON document. Throws Error (kUnsupported) where there is no fit GPU.
std::string run_bench(const BenchOptions& options);

}  // namespace xstage::moe
