#include "ops/ulysses/bench_gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "xstage/error.hpp"
#include "xstage/ulysses/transform.hpp"

namespace xstage::ulysses {

void check_cuda(cudaError_t error, const char* what) {
    if (error != cudaSuccess)
        throw Error(ErrorKind::kEnvironment,
                    fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

Buffer::Buffer(std::size_t bytes, unsigned seed, cudaStream_t stream) {
    check_cuda(cudaMalloc(&data_, bytes), "cudaMalloc");
    // Drawn once: every buffer begins at another place of it.
    static const std::vector<std::uint16_t> values = [] {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::vector<std::uint16_t> drawn(3 << 20);
        for (auto& x : drawn) x = Bf16::from(normal(random)).bits;
        return drawn;
    }();
    const std::size_t tile = values.size() / 2;
    const std::uint16_t* from = values.data() + (seed * std::size_t{40009}) % tile / 2 * 2;
    for (std::size_t at = 0; at < bytes; at += tile * 2)
        check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(data_) + at, from,
                                   std::min(bytes - at, tile * 2), cudaMemcpyHostToDevice, stream),
                   "filling a buffer");
    check_cuda(cudaStreamSynchronize(stream), "filling a buffer");
}

Graph::Graph(cudaStream_t stream, const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    try {
        work();
    } catch (...) {
        cudaStreamEndCapture(stream, &graph);
        throw;
    }
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a graph");
    cudaGraphDestroy(graph);
}
Graph::~Graph() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
}
void Graph::launch(cudaStream_t stream) const {
    check_cuda(cudaGraphLaunch(exec_, stream), "launching a graph");
}

}  // namespace xstage::ulysses
