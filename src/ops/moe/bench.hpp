#pragma once

#include <string>
#include <vector>

#include "ops/moe/bench_routing.hpp"
#include "xstage/fabric.hpp"
#include "xstage/moe/plan.hpp"

namespace xstage::moe {

struct BenchShape {
    std::string name;
    int hidden, intermediate, experts, top_k;
};
/// Layers that are served today: language models and video diffusion.
const std::vector<BenchShape>& bench_shapes();

struct BenchOptions {
    int world = 1;
    fabric::Backend backend = fabric::Backend::kProcess;  ///< kLocal: virtual ranks on one GPU
    std::vector<Type> types;
    std::vector<BenchShape> shapes;
    std::vector<int> tokens;  ///< of each rank
    std::vector<int> slices;  ///< each rank's share of the shape's experts: 2 is half of them
    std::vector<plan::MoeOrder> orders;
    std::vector<Routing> routings;
    bool shared = false;  ///< with a shared expert
    bool stamps = false;  ///< once more with stamps, and how long Linear-2's bursts took to issue
    int repetitions = 7;
    unsigned seed = 1;
    double seconds = 0;  ///< stop starting new configurations after this long; 0: never
    StorePath store = StorePath::kSt16;
    std::string node = "unnamed";
    std::string git_commit;
    std::vector<std::string> argv;
};

struct BenchReport {
    std::string document;  ///< JSON
    std::string wrong;     ///< rows whose results differ between orders; empty: none
};

/// Times the layer under each order, in random turn, and compares the bits of the results; ranks
/// together, the slowest of them counting. The order that choose_order takes is always among them.
/// Forks a process per rank (one for kLocal), so it must run before anything touches CUDA. Throws
/// Error (kUnsupported) where there is no fit GPU.
BenchReport run_bench(const BenchOptions& options);

}  // namespace xstage::moe
