#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace xstage::fabric {

/// The driver's virtual memory calls, found through the runtime: nothing links against libcuda, so
/// a program built with CUDA still starts on a machine without a driver.
struct CudaDriver {
    decltype(&cuMemCreate) mem_create;
    decltype(&cuMemRelease) mem_release;
    decltype(&cuMemMap) mem_map;
    decltype(&cuMemUnmap) mem_unmap;
    decltype(&cuMemSetAccess) mem_set_access;
    decltype(&cuMemAddressReserve) address_reserve;
    decltype(&cuMemAddressFree) address_free;
    decltype(&cuMemExportToShareableHandle) export_handle;
    decltype(&cuMemImportFromShareableHandle) import_handle;
    decltype(&cuMemGetAllocationGranularity) granularity;
    decltype(&cuMemRetainAllocationHandle) retain_handle;
    decltype(&cuDeviceGetAttribute) device_attribute;
    decltype(&cuGetErrorName) error_name;
};

/// Throws Error (kUnsupported) when there is no driver, or one without these calls.
const CudaDriver& cuda_driver();

/// Throw Error (kEnvironment, or kUnsupported for what a device cannot do) with the call's name.
void check_driver(CUresult result, const char* call);
void check_runtime(cudaError_t error, const char* call);

/// Makes a device current and puts the old one back.
class DeviceScope {
  public:
    explicit DeviceScope(int device);
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

  private:
    int before_ = 0;
};

}  // namespace xstage::fabric
