#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace xstage::ulysses {

/// Throws Error (kEnvironment).
void check_cuda(cudaError_t error, const char* what);

/// Device memory filled with normal bf16 values (a tile of them, repeated). Read as fp32, they are
/// ordinary values too.
class Buffer {
  public:
    Buffer(std::size_t bytes, unsigned seed, cudaStream_t stream);
    ~Buffer() { cudaFree(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    void* get() const { return data_; }

  private:
    void* data_ = nullptr;
};

/// What `work` enqueues on the stream, captured.
class Graph {
  public:
    Graph(cudaStream_t stream, const std::function<void()>& work);
    ~Graph();
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void launch(cudaStream_t stream) const;

  private:
    cudaGraphExec_t exec_ = nullptr;
};

}  // namespace xstage::ulysses
