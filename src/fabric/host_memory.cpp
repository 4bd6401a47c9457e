#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fabric/memory.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

[[noreturn]] void fail(const char* what) {
    throw Error(ErrorKind::kEnvironment, fmt::format("{}: {}", what, std::strerror(errno)));
}

/// memfd stands for physical memory, and mmap(MAP_FIXED) for mapping it: aliases are real. A handle
/// is the descriptor itself, so it must be released soon after mapping.
class HostMemory final : public Memory {
  public:
    explicit HostMemory(std::size_t page_bytes) : page_bytes_(page_bytes) {
        const auto system = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        if (page_bytes == 0 || page_bytes % system != 0)
            throw Error(ErrorKind::kBadInput,
                        fmt::format("host_page_bytes must be a multiple of {}", system));
    }

    std::size_t page_bytes() const override { return page_bytes_; }
    HandleType handle_type() const override { return HandleType::kPosixDescriptor; }

    Handle allocate(std::size_t bytes, int) override {
        UniqueFd fd(::memfd_create("xstage", MFD_CLOEXEC));
        if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
            fail("cannot allocate memory");
        return keep(std::move(fd));
    }

    UniqueFd export_descriptor(Handle handle) override {
        return duplicate(static_cast<int>(handle));
    }

    Handle import_descriptor(const UniqueFd& descriptor, std::size_t bytes) override {
        // Mapping past the end of a file succeeds and kills the reader later: look now.
        if (::lseek(descriptor.get(), 0, SEEK_END) != static_cast<off_t>(bytes))
            throw Error(ErrorKind::kEnvironment,
                        "a peer's allocation has another size than agreed");
        return keep(duplicate(descriptor.get()));
    }

    void release(Handle handle) noexcept override { ::close(static_cast<int>(handle)); }

    std::byte* reserve(std::size_t bytes) override {
        // mmap aligns to the system's page; the emulated page is larger.
        const std::size_t total = bytes + page_bytes_;
        void* p =
            ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) fail("cannot reserve address space");
        const auto start = reinterpret_cast<std::uintptr_t>(p);
        const std::uintptr_t aligned = (start + page_bytes_ - 1) / page_bytes_ * page_bytes_;
        if (aligned > start) ::munmap(p, aligned - start);
        const std::uintptr_t end = start + total;
        if (end > aligned + bytes)
            ::munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
        return reinterpret_cast<std::byte*>(aligned);
    }

    void unreserve(std::byte* address, std::size_t bytes) noexcept override {
        ::munmap(address, bytes);
    }

    void map(std::byte* address, std::size_t bytes, Handle handle) override {
        if (::mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   static_cast<int>(handle), 0) == MAP_FAILED)
            fail("cannot map memory");
    }

    void unmap(std::byte* address, std::size_t bytes) noexcept override {
        // Back to bare address space in one step, so that nobody else can slip in between.
        ::mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
               -1, 0);
    }

    void move(std::byte* from, std::byte* to, std::size_t bytes) override {
        // An old size of 0 maps the same shared pages a second time.
        if (::mremap(from, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED)
            fail("cannot move a mapping");
        unmap(from, bytes);
    }

    void quiesce() noexcept override {}

    void clear(std::byte* address, std::size_t bytes, int) override {
        std::memset(address, 0, bytes);
    }

  private:
    static UniqueFd duplicate(int fd) {
        UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
        if (!copy) fail("cannot duplicate a descriptor");
        return copy;
    }

    static Handle keep(UniqueFd fd) { return static_cast<Handle>(fd.take()); }

    std::size_t page_bytes_;
};

}  // namespace

std::unique_ptr<Memory> make_host_memory(std::size_t page_bytes) {
    return std::make_unique<HostMemory>(page_bytes);
}

}  // namespace xstage::fabric
