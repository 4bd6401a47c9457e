#include "gpu_layer.hpp"

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace xstage::moe::suite {
namespace {

void check(cudaError_t error) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

__global__ void hold(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

}  // namespace

fabric::FabricOptions virtual_ranks(int world) {
    fabric::FabricOptions o;
    o.backend = fabric::Backend::kLocal;
    o.world = world;
    o.wait_timeout = std::chrono::seconds(4);
    o.devices.assign(static_cast<std::size_t>(world), 0);
    return o;
}

std::string missing_gpu() {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "no CUDA device";
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major == 9 ? "" : "the device is not of compute capability 9.0";
}

struct GpuLayer::Impl {
    Problem problem;
    fabric::Fabric group;
    cudaStream_t stream = nullptr;
    cudaStream_t other = nullptr;
    std::vector<void*> kept;
    std::vector<Input> inputs;
    std::unique_ptr<MegaMoe> moe;

    std::vector<std::int32_t*> tokens;

    Impl(const Problem& p, const fabric::FabricOptions& o) : problem(p), group(o) {}

    template <class T>
    T* upload(const std::vector<T>& from) {
        void* p = nullptr;
        check(cudaMalloc(&p, from.size() * sizeof(T) + 256));
        kept.push_back(p);
        check(cudaMemcpy(p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
        return static_cast<T*>(p);
    }
    std::size_t y_bytes() const {
        return static_cast<std::size_t>(problem.max_tokens) *
               static_cast<std::size_t>(problem.hidden) * 2;
    }
};

GpuLayer::GpuLayer(const Case& c, const Options& options)
    : GpuLayer(c, options, virtual_ranks(c.problem.ranks)) {}

GpuLayer::GpuLayer(const Case& c, const Options& options, const fabric::FabricOptions& group)
    : impl_(std::make_unique<Impl>(c.problem, group)) {
    Impl& m = *impl_;
    check(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
    check(cudaStreamCreateWithFlags(&m.other, cudaStreamNonBlocking));
    std::vector<Weights> weights;
    for (const int r : m.group.local_ranks()) {
        const RankData& d = c.ranks[static_cast<std::size_t>(r)];
        weights.push_back({m.upload(d.w1), m.upload(d.w2), m.upload(d.s1), m.upload(d.s2)});
        Input in;
        in.tokens = d.tokens;
        in.x = m.upload(d.x);
        in.x_scale = m.upload(d.x_scale);
        in.experts = m.upload(d.experts);
        in.weights = m.upload(d.weights);
        in.y = m.upload(std::vector<std::byte>(m.y_bytes()));
        m.inputs.push_back(in);
    }
    check(cudaDeviceSynchronize());
    m.moe = std::make_unique<MegaMoe>(m.group, c.problem, weights, options);
}

GpuLayer::~GpuLayer() {
    cudaDeviceSynchronize();
    impl_->moe.reset();
    for (void* p : impl_->kept) cudaFree(p);
    cudaStreamDestroy(impl_->stream);
    cudaStreamDestroy(impl_->other);
}

MegaMoe& GpuLayer::moe() {
    return *impl_->moe;
}
fabric::Fabric& GpuLayer::group() {
    return impl_->group;
}

void GpuLayer::launch() {
    impl_->moe->run(impl_->inputs, fabric::Streams(impl_->stream));
}

void GpuLayer::load(const Case& c) {
    for (std::size_t r = 0; r < c.ranks.size(); ++r) {
        const RankData& d = c.ranks[r];
        const Input& in = impl_->inputs[r];
        const auto copy = [&](const void* to, const auto& from) {
            check(cudaMemcpyAsync(const_cast<void*>(to), from.data(), from.size() * sizeof(from[0]),
                                  cudaMemcpyHostToDevice, impl_->stream));
        };
        copy(in.x, d.x);
        copy(in.x_scale, d.x_scale);
        copy(in.experts, d.experts);
        copy(in.weights, d.weights);
    }
    check(cudaStreamSynchronize(impl_->stream));
}

std::vector<std::vector<double>> GpuLayer::results() {
    impl_->group.synchronize(fabric::Streams(impl_->stream));
    return read();
}

std::vector<std::vector<double>> GpuLayer::read() const {
    const Impl& m = *impl_;
    check(cudaStreamSynchronize(m.stream));
    std::vector<std::vector<double>> all;
    for (const Input& in : m.inputs) {
        std::vector<std::uint16_t> bits(static_cast<std::size_t>(in.tokens) *
                                        static_cast<std::size_t>(m.problem.hidden));
        check(cudaMemcpy(bits.data(), in.y, bits.size() * 2, cudaMemcpyDeviceToHost));
        std::vector<double>& y = all.emplace_back();
        for (const std::uint16_t b : bits) y.push_back(from_bf16(b));
    }
    return all;
}

std::vector<std::vector<double>> GpuLayer::run() {
    for (const Input& in : impl_->inputs)
        check(cudaMemsetAsync(in.y, 0xff, impl_->y_bytes(), impl_->stream));
    launch();
    return results();
}

void GpuLayer::set_tokens(const std::vector<std::int32_t>& tokens) {
    Impl& m = *impl_;
    for (std::size_t i = 0; i < m.inputs.size(); ++i) {
        if (m.tokens.size() <= i) {
            m.tokens.push_back(m.upload(std::vector<std::int32_t>(1)));
            m.inputs[i].tokens_at = m.tokens[i];
        }
        check(cudaMemcpyAsync(m.tokens[i], &tokens[i], 4, cudaMemcpyHostToDevice, m.stream));
    }
    check(cudaStreamSynchronize(m.stream));
}

std::vector<std::vector<Stamp>> GpuLayer::stamps() {
    Impl& m = *impl_;
    const auto producers = static_cast<std::uint32_t>(m.moe->stamp_producers());
    constexpr std::uint32_t kBursts = 256;
    const std::vector<Stamp> none(std::size_t{producers} * kBursts);
    std::vector<StampBuffer> buffers;
    for (std::size_t i = 0; i < m.inputs.size(); ++i)
        buffers.push_back(
            {m.upload(none), m.upload(std::vector<std::uint32_t>(1)), producers, kBursts});
    m.moe->set_stamps(buffers);
    launch();
    m.group.synchronize(fabric::Streams(m.stream));
    m.moe->set_stamps({});
    std::vector<std::vector<Stamp>> all;
    for (const StampBuffer& b : buffers) {
        std::vector<Stamp> slots(none.size());
        std::uint32_t dropped = 0;
        check(cudaMemcpy(slots.data(), b.stamps, slots.size() * sizeof(Stamp),
                         cudaMemcpyDeviceToHost));
        check(cudaMemcpy(&dropped, b.dropped, 4, cudaMemcpyDeviceToHost));
        if (dropped != 0) throw std::runtime_error("stamps were dropped");
        std::vector<Stamp>& found = all.emplace_back();
        for (const Stamp& s : slots)
            if (s.bytes != 0) found.push_back(s);
    }
    return all;
}

void GpuLayer::replay(int replays, const std::function<void(int)>& before,
                      const std::function<void(int)>& after) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamBeginCapture(impl_->stream, cudaStreamCaptureModeThreadLocal));
    launch();
    check(cudaStreamEndCapture(impl_->stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < replays; ++i) {
        before(i);
        check(cudaGraphLaunch(exec, impl_->stream));
        after(i);
    }
    check(cudaStreamSynchronize(impl_->stream));
    check(cudaGraphExecDestroy(exec));
    check(cudaGraphDestroy(graph));
}

void GpuLayer::occupy() {
    hold<<<1, 32, 0, impl_->other>>>(20'000'000);
    check(cudaGetLastError());
}

}  // namespace xstage::moe::suite
