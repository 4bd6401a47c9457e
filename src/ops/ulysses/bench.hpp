#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xstage/fabric.hpp"

namespace xstage::ulysses {

struct BenchShape {
    std::int64_t rows;
    int heads, dim;
};
/// The shapes of diffusion transformers from 1 k to 120 k rows.
const std::vector<BenchShape>& bench_shapes();

struct BenchOptions {
    fabric::Backend backend = fabric::Backend::kProcess;
    int world = 2;
    std::vector<BenchShape> shapes;
    int repetitions = 31;
    unsigned seed = 1;
    bool nccl = true;
    std::string node = "unnamed";
    std::vector<std::string> argv;
};

/// Times every way of one attention with its second all-to-all, interleaved in random order, and
/// compares their results bit by bit. Forks a process per rank for `process`, so it must run before
/// anything touches CUDA. Returns a JSON document. Throws Error (kUnsupported) where the machine
/// has no GPU, too few of them, or no cuDNN.
std::string run_bench(const BenchOptions& options);

}  // namespace xstage::ulysses
