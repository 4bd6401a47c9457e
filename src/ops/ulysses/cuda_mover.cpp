#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "fabric/group.hpp"
#include "ops/ulysses/mover.hpp"
#include "ulysses/send.cuh"
#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    throw Error(ErrorKind::kEnvironment, fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

class CudaMover final : public Mover {
  public:
    explicit CudaMover(const fabric::Fabric& group) : devices_(group.impl().cuda_devices) {
        for (int device : devices_)
            if (std::find(order_.begin(), order_.end(), device) == order_.end())
                order_.push_back(device);
        for (int device : order_) {
            check(cudaSetDevice(device), "cudaSetDevice");
            check(kernels::preload(), "loading the scatter kernels");
        }
    }

    void move(const RowScatter& scatter, int local, void* stream) override {
        select(local);
        check(kernels::scatter_rows(scatter, static_cast<cudaStream_t>(stream)),
              "launching a scatter of rows");
    }

    void move(const HeadExchange& exchange, int local, void* stream) override {
        select(local);
        const auto s = static_cast<cudaStream_t>(stream);
        check(kernels::row_rstd(exchange, s), "launching a norm");
        check(kernels::send_heads(exchange, s), "launching a scatter of heads");
    }

    void* stream(const fabric::Streams& streams, int local) const override {
        const std::span<void* const> all = streams.get();
        const auto device = static_cast<std::size_t>(
            std::find(order_.begin(), order_.end(), devices_[static_cast<std::size_t>(local)]) -
            order_.begin());
        if (all.size() == order_.size()) return all[device];
        if (all.size() == 1 && all[0] == nullptr) return nullptr;
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} streams for {} devices", all.size(), order_.size()));
    }

    void select(int local) const override {
        check(cudaSetDevice(devices_[static_cast<std::size_t>(local)]), "cudaSetDevice");
    }

  private:
    std::vector<int> devices_;  ///< per local rank
    std::vector<int> order_;    ///< each device once, in the order of Streams
};

}  // namespace

std::unique_ptr<Mover> make_cuda_mover(const fabric::Fabric& fabric) {
    return std::make_unique<CudaMover>(fabric);
}

}  // namespace xstage::ulysses
