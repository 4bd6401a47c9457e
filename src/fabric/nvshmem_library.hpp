#pragma once

#include <nvshmem_host.h>

#include <string>

#include "fabric/nvshmem.hpp"

namespace xstage::fabric {

/// NVSHMEM's host library, opened at run time: nothing links against it, so what is built with it
/// runs where it is not.
struct NvshmemLibrary {
    decltype(&::nvshmemx_vendor_get_version_info) get_version;
    decltype(&::nvshmemx_init_status) init_status;
    decltype(&::nvshmemx_get_uniqueid) get_unique_id;
    decltype(&::nvshmemx_set_attr_uniqueid_args) set_unique_id;
    decltype(&::nvshmemx_hostlib_init_attr) init;
    decltype(&::nvshmemx_culibrary_init) init_device_code;
    decltype(&::nvshmem_my_pe) my_pe;
    decltype(&::nvshmem_n_pes) n_pes;
    decltype(&::nvshmem_align) align;
    decltype(&::nvshmem_free) free;
    decltype(&::nvshmem_ptr) ptr;

    NvshmemVersion version() const;
};

/// $XSTAGE_NVSHMEM_ROOT/lib if that is set, else where the loader looks. Throws Error
/// (kUnsupported) when it is not there or lacks a function.
const NvshmemLibrary& nvshmem_library();

}  // namespace xstage::fabric
