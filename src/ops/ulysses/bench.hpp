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
    std::string attention = "cudnn";  ///< or "xstage"
    std::string node = "unnamed";
    std::string git_commit;
    std::vector<std::string> argv;
};

struct BenchReport {
    std::string document;  ///< JSON
    std::string wrong;     ///< results that are not those of the serial way; empty: none
};

/// Times every way of one attention with its second all-to-all, interleaved in random order, and
/// compares their results. Forks a process per rank for `process`, so it must run before anything
/// touches CUDA. Throws Error (kUnsupported) where the machine has no GPU, too few of them, or not
/// the attention kernel asked for.
BenchReport run_bench(const BenchOptions& options);

}  // namespace xstage::ulysses
