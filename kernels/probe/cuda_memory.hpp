#pragma once

// Owners of CUDA objects, and the check that turns an error into an exception with its place.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "xstage/error.hpp"

namespace xstage::probe {

[[noreturn]] inline void throw_cuda(cudaError_t error, const char* expression, const char* file,
                                    int line) {
    cudaGetLastError();  // a sticky error stays, any other must not leak into the next call
    const char* hint = "";
    auto kind = ErrorKind::kEnvironment;
    switch (error) {
        case cudaErrorSystemNotReady:
            hint = " (fabric not ready: the fabric manager or the partition is not up)";
            break;
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorPeerAccessUnsupported:
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorMemoryAllocation:
            kind = ErrorKind::kUnsupported;
            break;
        default:
            break;
    }
    throw Error(kind, fmt::format("{}: {} [{}]{} at {}:{}", expression, cudaGetErrorString(error),
                                  static_cast<int>(error), hint, file, line));
}

#define XSTAGE_CUDA_CHECK(expression)                                                     \
    do {                                                                                  \
        if (const cudaError_t xstage_error = (expression); xstage_error != cudaSuccess) { \
            ::xstage::probe::throw_cuda(xstage_error, #expression, __FILE__, __LINE__);   \
        }                                                                                 \
    } while (false)

/// Makes `device` current for a scope.
class OnDevice {
  public:
    explicit OnDevice(int device) {
        XSTAGE_CUDA_CHECK(cudaGetDevice(&before_));
        if (device != before_) XSTAGE_CUDA_CHECK(cudaSetDevice(device));
    }
    ~OnDevice() { cudaSetDevice(before_); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

  private:
    int before_ = 0;
};

/// Device memory, zeroed when it is made.
template <class T>
class DeviceArray {
  public:
    DeviceArray() = default;
    DeviceArray(int device, std::size_t count) : device_(device), count_(count) {
        const OnDevice on(device);
        XSTAGE_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
        XSTAGE_CUDA_CHECK(cudaMemset(data_, 0, count * sizeof(T)));
        XSTAGE_CUDA_CHECK(cudaDeviceSynchronize());
    }
    ~DeviceArray() {
        if (data_ != nullptr) cudaFree(data_);
    }
    DeviceArray(DeviceArray&& other) noexcept
        : device_(other.device_),
          count_(std::exchange(other.count_, 0)),
          data_(std::exchange(other.data_, nullptr)) {}
    DeviceArray& operator=(DeviceArray&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(count_, other.count_);
        std::swap(data_, other.data_);
        return *this;
    }

    T* get() const { return data_; }
    std::size_t size() const { return count_; }
    void reserve(int device, std::size_t count) {
        if (count > count_ || device != device_) *this = DeviceArray(device, count);
    }

  private:
    int device_ = 0;
    std::size_t count_ = 0;
    T* data_ = nullptr;
};

class Stream {
  public:
    Stream() = default;
    explicit Stream(int device) {
        const OnDevice on(device);
        XSTAGE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    ~Stream() {
        if (stream_ != nullptr) cudaStreamDestroy(stream_);
    }
    Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Stream& operator=(Stream&& other) noexcept {
        std::swap(stream_, other.stream_);
        return *this;
    }
    cudaStream_t get() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

class Event {
  public:
    explicit Event(int device) {
        const OnDevice on(device);
        XSTAGE_CUDA_CHECK(cudaEventCreate(&event_));
    }
    ~Event() {
        if (event_ != nullptr) cudaEventDestroy(event_);
    }
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&&) = delete;
    cudaEvent_t get() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace xstage::probe
