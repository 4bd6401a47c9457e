#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "probe/node.hpp"

namespace xstage::probe {

/// What the management library tells, loaded at run time; every answer can be absent.
class Nvml {
  public:
    Nvml();
    ~Nvml();
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    bool loaded() const { return library_ != nullptr; }
    std::string driver() const;
    struct Links {
        int active = 0;
        double line_rate = 0;  ///< GB/s per direction over all links
        bool to_switch = false;
    };
    Links links(const std::string& uuid) const;
    ThrottleState throttle(const std::string& uuid) const;
    /// Payload bytes that left over all links since the driver started; -1 where unreadable.
    std::int64_t link_bytes_sent(const std::string& uuid) const;
    std::int64_t link_bytes_received(const std::string& uuid) const;
    bool mig_enabled(const std::string& uuid) const;
    /// Processes other than this one with a context on the GPU; -1 where unreadable.
    int other_processes(const std::string& uuid) const;
    /// State of the fabric registration in words; empty where there is none.
    std::string fabric_state(const std::string& uuid) const;

  private:
    void* device(const std::string& uuid) const;
    std::int64_t counter(const std::string& uuid, unsigned field) const;

    void* library_ = nullptr;
    mutable std::map<std::string, void*> devices_;  ///< handles by UUID: the look-up is slow
};

}  // namespace xstage::probe
