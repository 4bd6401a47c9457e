// Attention over P ranks whose all-to-all is gone: every rank is a thread here and its memory is
// the host's, but the calls are those of a GPU, where each rank is a process and the kernel is
// cuDNN's.
//
//   ulysses [ranks]
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/ulysses.hpp"

using namespace xstage;
using namespace xstage::ulysses;

namespace {

void run_rank(int rank, const Problem& problem) {
    fabric::FabricOptions group;
    group.name = "ulysses-example";
    group.world = problem.world();
    group.rank = rank;
    fabric::Fabric fabric(group);
    // Plan once: which rank computes which heads, where the rows go, what it costs.
    UlyssesAttention attention(fabric, problem);
    if (rank == 0) std::printf("%s\n", describe(attention.plan()).c_str());

    // The rank's rows of a fused projection, [rows, 3, heads, dim], as its GEMM would leave them.
    const std::int64_t rows = problem.rows_q[static_cast<std::size_t>(rank)];
    const std::int64_t width = std::int64_t{problem.heads_q} * problem.head_dim;
    std::vector<Bf16> qkv(static_cast<std::size_t>(rows * 3 * width));
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<float> normal;
    for (Bf16& x : qkv) x = Bf16::from(normal(random));
    const auto view = [&](int which) {
        return View{qkv.data() + which * width, rows * 3 * width, 3 * width, problem.head_dim};
    };
    ShardedInput input;
    input.q.image = view(0);
    input.k.image = view(1);
    input.v.image = view(2);
    // Call many times. Each result is the rank's own rows of all heads, ready for the output
    // projection.
    double sum = 0;
    for (int step = 0; step < 3; ++step) {
        const Result result = attention.attend({input}).front();
        const auto* out = static_cast<const Bf16*>(result.out.data);
        for (std::int64_t r = 0; r < rows; ++r) sum += out[r * result.out.row_stride].value();
    }
    std::printf("rank %d: %ld rows, sum of their first elements %.4f\n", rank,
                static_cast<long>(rows), sum);
    fabric.barrier();  // a rank's memory stays until its peers have stored
}

}  // namespace

int main(int argc, char** argv) try {
    Problem problem;
    problem.heads_q = 10;
    problem.head_dim = 64;
    problem.rows_q = split_rows(301, argc > 1 ? std::atoi(argv[1]) : 4);
    std::vector<std::thread> ranks;
    for (int r = 0; r < problem.world(); ++r) ranks.emplace_back(run_rank, r, problem);
    for (std::thread& t : ranks) t.join();
} catch (const Error& e) {
    std::fprintf(stderr, "ulysses: %s\n", e.what());
    return e.exit_code();
}
