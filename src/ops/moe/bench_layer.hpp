#pragma once

// A layer of the benchmark: the ranks of one process with random weights and inputs.

#include <cuda_runtime_api.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "ops/moe/bench.hpp"
#include "xstage/moe.hpp"

namespace xstage::moe {

/// Throws Error (kEnvironment).
void check_cuda(cudaError_t error, const char* what);

/// Device memory that goes with the object.
class Memory {
  public:
    explicit Memory(std::int64_t bytes);
    ~Memory() { cudaFree(data_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    template <class T = void>
    T* get() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_ = nullptr;
};

/// One rank's experts, filled with random numbers.
struct Experts {
    Memory w1, w2, s1, s2;

    Experts(const Problem& problem, unsigned seed, cudaStream_t stream);
    Weights weights() const { return {w1.get(), w2.get(), s1.get<float>(), s2.get<float>()}; }
};

/// A MegaMoe with its input and one event pair.
class Layer {
  public:
    Layer(fabric::Fabric& group, const Problem& problem,
          const std::vector<std::unique_ptr<Experts>>& experts, Routing routing,
          const BenchOptions& options, cudaStream_t stream);
    ~Layer();
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;

    MegaMoe& moe() { return *moe_; }
    /// All ranks at the line, then one call between events.
    double microseconds();
    /// Keeps the first result it is asked about and counts what differs from it in later ones.
    void compare();
    std::int64_t differing() const;
    /// One call with stamps: how long the bursts of Linear-2's stores took to issue.
    nlohmann::ordered_json store_spans();

  private:
    /// One rank of this process.
    struct Rank {
        Memory y, first;
        Input input;
        explicit Rank(std::int64_t bytes) : y(bytes), first(bytes) {}
    };
    void fill(Rank& rank, int number, Routing routing, unsigned seed);

    fabric::Fabric& group_;
    Problem problem_;
    cudaStream_t stream_;
    std::vector<std::unique_ptr<Rank>> ranks_;
    Memory count_{8};
    bool kept_ = false;
    std::unique_ptr<MegaMoe> moe_;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace xstage::moe
