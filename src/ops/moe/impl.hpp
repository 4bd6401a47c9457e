#pragma once

#include <memory>
#include <vector>

#include "fabric/group.hpp"
#include "xstage/moe.hpp"

namespace xstage::moe {

/// What runs a checked call; one per backend.
class Engine {
  public:
    virtual ~Engine() = default;
    virtual void run(std::span<const Input> inputs, const plan::MoeOrder& order, StorePath path,
                     const fabric::Streams& streams) = 0;
    virtual int stamp_producers() const { return 0; }
    virtual void set_stamps(std::span<const StampBuffer> buffers) = 0;
};

/// What the engines are given. Everything outlives them.
struct EngineArgs {
    fabric::Fabric& fabric;
    const Problem& problem;
    const Layout& layout;
    const Options& options;
    const fabric::SymmetricBuffer& workspace;
    std::span<const Weights> weights;
};

std::unique_ptr<Engine> make_host_engine(const EngineArgs& args);
/// Throws Error (kUnsupported) in a build without CUDA or without the kernels.
std::unique_ptr<Engine> make_cuda_engine(const EngineArgs& args);

struct MegaMoe::Impl {
    fabric::Fabric& fabric;
    Problem problem;
    Options options;
    std::vector<Weights> weights;
    Layout layout{};
    std::unique_ptr<fabric::SymmetricBuffer> workspace;
    std::unique_ptr<Engine> engine;
};

}  // namespace xstage::moe
