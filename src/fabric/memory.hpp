#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fabric/socket.hpp"
#include "xstage/fabric.hpp"

namespace xstage::fabric {

/// Physical memory that can be mapped at any page of any rank's address space, several times.
/// An allocation lives as long as a mapping of it or its handle does.
class Memory {
  public:
    using Handle = std::uint64_t;

    virtual ~Memory() = default;

    virtual std::size_t page_bytes() const = 0;
    virtual HandleType handle_type() const = 0;

    /// `bytes` are whole pages; `rank` says on whose device.
    virtual Handle allocate(std::size_t bytes, int rank) = 0;
    /// A descriptor that another rank can import; the caller closes it.
    virtual UniqueFd export_descriptor(Handle handle) = 0;
    virtual Handle import_descriptor(const UniqueFd& descriptor, std::size_t bytes) = 0;
    virtual void release(Handle handle) noexcept = 0;

    /// Address space alone, page-aligned.
    virtual std::byte* reserve(std::size_t bytes) = 0;
    virtual void unreserve(std::byte* address, std::size_t bytes) noexcept = 0;
    virtual void map(std::byte* address, std::size_t bytes, Handle handle) = 0;
    virtual void unmap(std::byte* address, std::size_t bytes) noexcept = 0;

    /// Waits for whatever this process's devices are doing: a mapping must outlive its last store.
    virtual void quiesce() noexcept = 0;
    /// Moves a mapping into other reserved space; the memory behind it stays.
    virtual void move(std::byte* from, std::byte* to, std::size_t bytes) = 0;

    /// Zeroes mapped memory of a local rank and waits for it.
    virtual void clear(std::byte* address, std::size_t bytes, int rank) = 0;
};

std::unique_ptr<Memory> make_host_memory(std::size_t page_bytes);

}  // namespace xstage::fabric
