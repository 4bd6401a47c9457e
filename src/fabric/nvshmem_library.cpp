#include "fabric/nvshmem_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

constexpr const char* kHostLibrary = "libnvshmem_host.so.3";

void* open_library() {
    const char* root = std::getenv("XSTAGE_NVSHMEM_ROOT");
    const std::string path =
        root != nullptr ? fmt::format("{}/lib/{}", root, kHostLibrary) : kHostLibrary;
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        const char* why = ::dlerror();
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("NVSHMEM cannot be opened: {}; put its lib folder on "
                                "LD_LIBRARY_PATH or name its root in XSTAGE_NVSHMEM_ROOT",
                                why != nullptr ? why : "?"));
    }
    return library;
}

/// NVSHMEM opens its parts by bare name, which finds those that are loaded already. Transports
/// whose own libraries are missing here stay out, as they would otherwise.
void open_parts(void* function) {
    Dl_info info{};
    if (::dladdr(function, &info) == 0 || info.dli_fname == nullptr) return;
    const std::string file = info.dli_fname;
    const std::size_t slash = file.rfind('/');
    if (slash == std::string::npos) return;
    for (const char* part : {"bootstrap_uid", "transport_ibrc", "transport_ibgda",
                             "transport_ibdevx", "transport_libfabric", "transport_ucx"})
        ::dlopen(fmt::format("{}/nvshmem_{}.so.3", file.substr(0, slash), part).c_str(), RTLD_LAZY);
}

NvshmemLibrary load() {
    void* const library = open_library();
    NvshmemLibrary n{};
    const auto find = [&](auto& function, const char* name) {
        function =
            reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
        if (function == nullptr)
            throw Error(ErrorKind::kUnsupported,
                        fmt::format("this NVSHMEM has no {}; 3.4 or later is needed", name));
    };
    find(n.get_version, "nvshmemx_vendor_get_version_info");
    find(n.init_status, "nvshmemx_init_status");
    find(n.get_unique_id, "nvshmemx_get_uniqueid");
    find(n.set_unique_id, "nvshmemx_set_attr_uniqueid_args");
    find(n.init, "nvshmemx_hostlib_init_attr");
    find(n.init_device_code, "nvshmemx_culibrary_init");
    find(n.my_pe, "nvshmem_my_pe");
    find(n.n_pes, "nvshmem_n_pes");
    find(n.align, "nvshmem_align");
    find(n.free, "nvshmem_free");
    find(n.ptr, "nvshmem_ptr");
    open_parts(reinterpret_cast<void*>(n.align));
    return n;
}

}  // namespace

NvshmemVersion NvshmemLibrary::version() const {
    NvshmemVersion v;
    get_version(&v.major, &v.minor, &v.patch);
    return v;
}

const NvshmemLibrary& nvshmem_library() {
    static const NvshmemLibrary library = load();
    return library;
}

}  // namespace xstage::fabric
