#include "fabric/cuda_driver.hpp"

#include <fmt/format.h>

#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

template <class Function>
void find(const char* name, unsigned version, Function& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
        (void)cudaGetLastError();
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("the CUDA driver has no {} ({})", name, cudaGetErrorString(error)));
    }
    function = reinterpret_cast<Function>(address);
}

CudaDriver load() {
    CudaDriver d{};
    find("cuMemCreate", 10020, d.mem_create);
    find("cuMemRelease", 10020, d.mem_release);
    find("cuMemMap", 10020, d.mem_map);
    find("cuMemUnmap", 10020, d.mem_unmap);
    find("cuMemSetAccess", 10020, d.mem_set_access);
    find("cuMemAddressReserve", 10020, d.address_reserve);
    find("cuMemAddressFree", 10020, d.address_free);
    find("cuMemExportToShareableHandle", 10020, d.export_handle);
    find("cuMemImportFromShareableHandle", 10020, d.import_handle);
    find("cuMemGetAllocationGranularity", 10020, d.granularity);
    find("cuMemRetainAllocationHandle", 11000, d.retain_handle);
    find("cuDeviceGetAttribute", 2000, d.device_attribute);
    find("cuGetErrorName", 6000, d.error_name);
    return d;
}

}  // namespace

const CudaDriver& cuda_driver() {
    static const CudaDriver driver = load();
    return driver;
}

void check_driver(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    cuda_driver().error_name(result, &name);
    const ErrorKind kind = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED
                               ? ErrorKind::kUnsupported
                               : ErrorKind::kEnvironment;
    throw Error(kind, fmt::format("{}: {}", call, name == nullptr ? "unknown error" : name));
}

void check_runtime(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    // 802: the Fabric Manager is not ready. Resetting the GPU is the administrator's to decide.
    if (error == cudaErrorSystemNotReady)
        throw Error(
            ErrorKind::kEnvironment,
            fmt::format("{}: the NVLink fabric is not ready (Fabric Manager, error 802)", call));
    const bool missing = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                         error == cudaErrorInvalidDevice || error == cudaErrorNotSupported;
    throw Error(missing ? ErrorKind::kUnsupported : ErrorKind::kEnvironment,
                fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

DeviceScope::DeviceScope(int device) {
    check_runtime(cudaGetDevice(&before_), "cudaGetDevice");
    check_runtime(cudaSetDevice(device), "cudaSetDevice");
}

DeviceScope::~DeviceScope() {
    cudaSetDevice(before_);
}

}  // namespace xstage::fabric
