#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace xstage::fabric {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Owns a file descriptor.
class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other) reset(std::exchange(other.fd_, -1));
        return *this;
    }
    ~UniqueFd() { reset(); }

    int get() const { return fd_; }
    int take() noexcept { return std::exchange(fd_, -1); }
    explicit operator bool() const { return fd_ >= 0; }
    void reset(int fd = -1) noexcept;

  private:
    int fd_ = -1;
};

/// What became of a bounded send or receive.
enum class Io { kOk, kClosed, kTimedOut, kFailed };

/// A name in the abstract namespace, which disappears with its last holder; a name that begins with
/// '/' is a path, for ranks in different network namespaces.
UniqueFd listen_at(const std::string& name, int backlog);
/// Waits for the name to appear. Empty when it did not before the deadline.
UniqueFd connect_to(const std::string& name, Deadline deadline);
/// Empty when nobody came, or when a process of another user did.
UniqueFd accept_from(int listener, Deadline deadline);
void remove_name(const std::string& name) noexcept;

/// Frames: a length and that many bytes.
Io send_frame(int fd, const std::string& bytes, Deadline deadline);
Io receive_frame(int fd, std::string& bytes, Deadline deadline);

/// One message with descriptors attached (SCM_RIGHTS), at most kMaxDescriptors of them. `failed`
/// tells the peer that the sender has none to give because something went wrong there.
inline constexpr std::size_t kMaxDescriptors = 250;
Io send_descriptors(int fd, std::span<const int> descriptors, bool failed, Deadline deadline);
Io receive_descriptors(int fd, std::vector<UniqueFd>& descriptors, bool& failed, Deadline deadline);

/// True once the other end is closed, by its owner or by the kernel at its death.
bool closed_by_peer(int fd);

/// Waits until one of the descriptors can be read; its index, or -1 at the deadline.
int wait_readable(std::span<const int> fds, Deadline deadline);

bool wait_writable(int fd, Deadline deadline);

/// How many descriptors this process may still open.
std::size_t descriptors_left();

std::string pack_fields(const std::vector<std::string>& fields);
/// Throws Error (kEnvironment) when the bytes are no fields.
std::vector<std::string> unpack_fields(const std::string& bytes);

}  // namespace xstage::fabric
