#include "ops/ulysses/bench.hpp"

namespace xstage::ulysses {

const std::vector<BenchShape>& bench_shapes() {
    static const std::vector<BenchShape> shapes = {
        {1024, 24, 128},  {2048, 24, 128},  {2048, 40, 128},  {4096, 24, 128},  {4096, 40, 128},
        {4608, 24, 128},  {4429, 38, 64},   {7145, 24, 128},  {8192, 40, 128},  {8704, 48, 128},
        {16896, 24, 128}, {17776, 48, 64},  {27280, 24, 128}, {32760, 12, 128}, {32760, 40, 128},
        {75600, 40, 128}, {119056, 24, 128}};
    return shapes;
}

}  // namespace xstage::ulysses
