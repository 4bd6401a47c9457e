// Memory by CUDA's virtual memory management.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "fabric/cuda_backend.hpp"
#include "fabric/cuda_driver.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

class CudaMemory final : public Memory {
  public:
    CudaMemory(std::vector<int> ranks, std::vector<int> devices, HandleType type)
        : ranks_(std::move(ranks)), devices_(std::move(devices)), type_(type) {
        for (int device : devices_) {
            const CUmemAllocationProp prop = properties(device);
            std::size_t bytes = 0;
            check_driver(driver_.granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                         "cuMemGetAllocationGranularity");
            page_bytes_ = std::max(page_bytes_, bytes);
            if (std::none_of(access_.begin(), access_.end(),
                             [&](const CUmemAccessDesc& a) { return a.location.id == device; })) {
                CUmemAccessDesc access{};
                access.location = prop.location;
                access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                access_.push_back(access);
            }
        }
    }

    std::size_t page_bytes() const override { return page_bytes_; }
    HandleType handle_type() const override { return type_; }

    Handle allocate(std::size_t bytes, int rank) override {
        const CUmemAllocationProp prop = properties(device_of(rank));
        CUmemGenericAllocationHandle handle = 0;
        check_driver(driver_.mem_create(&handle, bytes, &prop, 0), "cuMemCreate");
        return handle;
    }

    UniqueFd export_descriptor(Handle handle) override {
        int fd = -1;
        check_driver(
            driver_.export_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            "cuMemExportToShareableHandle");
        return UniqueFd(fd);
    }

    Handle import_descriptor(const UniqueFd& descriptor, std::size_t) override {
        CUmemGenericAllocationHandle handle = 0;
        // The driver takes the number itself in place of a pointer.
        void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.get()));
        check_driver(
            driver_.import_handle(&handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "cuMemImportFromShareableHandle");
        return handle;
    }

    void release(Handle handle) noexcept override { driver_.mem_release(handle); }

    std::byte* reserve(std::size_t bytes) override {
        CUdeviceptr address = 0;
        check_driver(driver_.address_reserve(&address, bytes, page_bytes_, 0, 0),
                     "cuMemAddressReserve");
        return reinterpret_cast<std::byte*>(address);
    }

    void unreserve(std::byte* address, std::size_t bytes) noexcept override {
        driver_.address_free(reinterpret_cast<CUdeviceptr>(address), bytes);
    }

    void map(std::byte* address, std::size_t bytes, Handle handle) override {
        const auto at = reinterpret_cast<CUdeviceptr>(address);
        check_driver(driver_.mem_map(at, bytes, 0, handle, 0), "cuMemMap");
        const CUresult access = driver_.mem_set_access(at, bytes, access_.data(), access_.size());
        if (access != CUDA_SUCCESS) driver_.mem_unmap(at, bytes);
        check_driver(access, "cuMemSetAccess");
    }

    void unmap(std::byte* address, std::size_t bytes) noexcept override {
        driver_.mem_unmap(reinterpret_cast<CUdeviceptr>(address), bytes);
    }

    void move(std::byte* from, std::byte* to, std::size_t bytes) override {
        CUmemGenericAllocationHandle handle = 0;
        check_driver(driver_.retain_handle(&handle, from), "cuMemRetainAllocationHandle");
        try {
            map(to, bytes, handle);
        } catch (...) {
            release(handle);
            throw;
        }
        release(handle);
        unmap(from, bytes);
    }

    void quiesce() noexcept override {
        int before = 0;
        if (cudaGetDevice(&before) != cudaSuccess) return;
        for (const CUmemAccessDesc& access : access_) {
            cudaSetDevice(access.location.id);
            cudaDeviceSynchronize();
        }
        cudaSetDevice(before);
    }

    void clear(std::byte* address, std::size_t bytes, int rank) override {
        const DeviceScope scope(device_of(rank));
        check_runtime(cudaMemset(address, 0, bytes), "cudaMemset");
        check_runtime(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

  private:
    int device_of(int rank) const {
        const auto at = std::find(ranks_.begin(), ranks_.end(), rank);
        return devices_[static_cast<std::size_t>(at - ranks_.begin())];
    }

    CUmemAllocationProp properties(int device) const {
        CUmemAllocationProp prop{};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.location.id = device;
        prop.requestedHandleTypes = type_ == HandleType::kPosixDescriptor
                                        ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                        : CU_MEM_HANDLE_TYPE_NONE;
        return prop;
    }

    const CudaDriver& driver_ = cuda_driver();
    std::vector<int> ranks_;
    std::vector<int> devices_;
    HandleType type_;
    std::size_t page_bytes_ = 0;
    std::vector<CUmemAccessDesc> access_;
};

std::string uuid_of(int device) {
    cudaDeviceProp prop{};
    check_runtime(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
    std::string text = "GPU";
    for (int i = 0; i < 16; ++i) {
        if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += fmt::format("{:02x}", static_cast<unsigned char>(prop.uuid.bytes[i]));
    }
    return text;
}

void require(int device, CUdevice_attribute attribute, const char* what) {
    int value = 0;
    check_driver(cuda_driver().device_attribute(&value, attribute, device), "cuDeviceGetAttribute");
    if (value == 0)
        throw Error(ErrorKind::kUnsupported, fmt::format("device {} has no {}", device, what));
}

void require_peer_access(const std::vector<int>& devices) {
    std::string missing;
    for (int a : devices)
        for (int b : devices) {
            int can = 1;
            if (a != b)
                check_runtime(cudaDeviceCanAccessPeer(&can, a, b), "cudaDeviceCanAccessPeer");
            const std::string pair = fmt::format("{} to {}", a, b);
            if (can == 0 && missing.find(pair) == std::string::npos)
                missing += (missing.empty() ? "" : ", ") + pair;
        }
    if (!missing.empty())
        throw Error(ErrorKind::kUnsupported, "devices without peer access: " + missing);
}

}  // namespace

CudaParts open_cuda(const FabricOptions& options, const std::vector<int>& local_ranks,
                    const std::vector<int>& places) {
    int count = 0;
    check_runtime(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (!options.devices.empty() && options.devices.size() != local_ranks.size())
        throw Error(ErrorKind::kBadInput, fmt::format("{} devices for {} ranks of this process",
                                                      options.devices.size(), local_ranks.size()));
    const bool travels = options.backend != Backend::kLocal;
    CudaParts parts;
    for (std::size_t i = 0; i < local_ranks.size(); ++i) {
        const int device = options.devices.empty() ? places[i] % count : options.devices[i];
        if (device < 0 || device >= count)
            throw Error(
                ErrorKind::kUnsupported,
                fmt::format("there is no CUDA device {} among the {} visible", device, count));
        const DeviceScope scope(device);
        check_runtime(cudaFree(nullptr), "creating a CUDA context");
        require(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                "virtual memory management");
        if (travels)
            require(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                    "memory handles that travel as descriptors");
        parts.devices.push_back(device);
        parts.device_ids.push_back(uuid_of(device));
    }
    require_peer_access(parts.devices);
    parts.memory = std::make_shared<CudaMemory>(local_ranks, parts.devices,
                                                travels ? options.handle_type : HandleType::kNone);
    return parts;
}

}  // namespace xstage::fabric
