#include "fabric/socket.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <thread>

#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

constexpr std::uint32_t kDescriptorMagic = 0x78736664;
constexpr std::size_t kMaxFrame = std::size_t{64} << 20;

struct Address {
    sockaddr_un address{};
    socklen_t length = 0;
};

Address address_of(const std::string& name) {
    Address a;
    a.address.sun_family = AF_UNIX;
    const bool path = name.front() == '/';
    const std::size_t offset = path ? 0 : 1;  // a leading zero byte makes the name abstract
    if (name.size() + offset + 1 > sizeof a.address.sun_path)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("group name '{}' is too long for a socket", name));
    std::memcpy(a.address.sun_path + offset, name.data(), name.size());
    a.length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + offset + name.size() + path);
    return a;
}

int milliseconds_to(Deadline deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

bool wait_for(int fd, short events, Deadline deadline) {
    for (;;) {
        pollfd p{fd, events, 0};
        const int n = ::poll(&p, 1, milliseconds_to(deadline));
        if (n > 0) return true;
        if (n == 0) return false;
        if (errno != EINTR) return false;
    }
}

bool would_block() {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

Io transfer(int fd, char* data, std::size_t bytes, bool sending, Deadline deadline) {
    while (bytes > 0) {
        const ssize_t n = sending ? ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : ::recv(fd, data, bytes, MSG_DONTWAIT);
        if (n > 0) {
            data += n;
            bytes -= static_cast<std::size_t>(n);
        } else if (n == 0 || errno == EPIPE || errno == ECONNRESET) {
            return Io::kClosed;
        } else if (!would_block()) {
            return Io::kFailed;
        } else if (!wait_for(fd, sending ? POLLOUT : POLLIN, deadline)) {
            return Io::kTimedOut;
        }
    }
    return Io::kOk;
}

struct DescriptorHeader {
    std::uint32_t magic;
    std::uint32_t count;
    std::uint32_t failed;
};

}  // namespace

void UniqueFd::reset(int fd) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
}

UniqueFd listen_at(const std::string& name, int backlog) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const Address a = address_of(name);
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&a.address), a.length) != 0 ||
        ::listen(fd.get(), backlog) != 0)
        return UniqueFd();
    return fd;
}

UniqueFd connect_to(const std::string& name, Deadline deadline) {
    const Address a = address_of(name);
    for (;;) {
        UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!fd) return fd;
        if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&a.address), a.length) == 0)
            return fd;
        if (Clock::now() >= deadline) return UniqueFd();
        // There is no event for "a name appears"; a millisecond is far below any set-up.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

UniqueFd accept_from(int listener, Deadline deadline) {
    if (!wait_for(listener, POLLIN, deadline)) return UniqueFd();
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    ucred peer{};
    socklen_t length = sizeof peer;
    if (fd && (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
               peer.uid != ::geteuid()))
        fd.reset();
    return fd;
}

void remove_name(const std::string& name) noexcept {
    if (!name.empty() && name.front() == '/') ::unlink(name.c_str());
}

Io send_frame(int fd, const std::string& bytes, Deadline deadline) {
    std::uint64_t size = bytes.size();
    std::string frame(reinterpret_cast<const char*>(&size), sizeof size);
    frame += bytes;
    return transfer(fd, frame.data(), frame.size(), true, deadline);
}

Io receive_frame(int fd, std::string& bytes, Deadline deadline) {
    std::uint64_t size = 0;
    const Io io = transfer(fd, reinterpret_cast<char*>(&size), sizeof size, false, deadline);
    if (io != Io::kOk) return io;
    if (size > kMaxFrame) return Io::kFailed;
    bytes.resize(size);
    return transfer(fd, bytes.data(), size, false, deadline);
}

Io send_descriptors(int fd, std::span<const int> descriptors, bool failed, Deadline deadline) {
    DescriptorHeader header{kDescriptorMagic, static_cast<std::uint32_t>(descriptors.size()),
                            failed};
    iovec io{&header, sizeof header};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * kMaxDescriptors));
    msghdr message{};
    message.msg_iov = &io;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
        std::memcpy(CMSG_DATA(c), descriptors.data(), sizeof(int) * descriptors.size());
    }
    for (;;) {
        const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        // The header is a few bytes: the kernel takes it whole or not at all.
        if (n == static_cast<ssize_t>(sizeof header)) return Io::kOk;
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return Io::kClosed;
        // ETOOMANYREFS: descriptors of other senders are still in flight and will land.
        if (n >= 0 || (!would_block() && errno != ETOOMANYREFS)) return Io::kFailed;
        if (errno == ETOOMANYREFS) std::this_thread::yield();
        if (Clock::now() >= deadline || !wait_for(fd, POLLOUT, deadline)) return Io::kTimedOut;
    }
}

Io receive_descriptors(int fd, std::vector<UniqueFd>& descriptors, bool& failed,
                       Deadline deadline) {
    DescriptorHeader header{};
    iovec io{&header, sizeof header};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * kMaxDescriptors));
    msghdr message{};
    for (;;) {
        message = msghdr{};
        message.msg_iov = &io;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        const ssize_t n = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n > 0) break;
        if (n == 0 || errno == ECONNRESET) return Io::kClosed;
        if (!would_block()) return Io::kFailed;
        if (!wait_for(fd, POLLIN, deadline)) return Io::kTimedOut;
    }
    descriptors.clear();
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int received = -1;
            std::memcpy(&received, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            descriptors.emplace_back(received);
        }
    }
    // Truncated control data means this process ran out of descriptors.
    const bool whole = header.magic == kDescriptorMagic && !(message.msg_flags & MSG_CTRUNC) &&
                       descriptors.size() == header.count;
    failed = header.failed != 0;
    return whole ? Io::kOk : Io::kFailed;
}

bool closed_by_peer(int fd) {
    char byte;
    const ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && !would_block());
}

int wait_readable(std::span<const int> fds, Deadline deadline) {
    std::vector<pollfd> polls;
    for (int fd : fds) polls.push_back({fd, POLLIN, 0});
    for (;;) {
        const int n = ::poll(polls.data(), polls.size(), milliseconds_to(deadline));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        for (std::size_t i = 0; i < polls.size(); ++i)
            if (polls[i].revents != 0) return static_cast<int>(i);
    }
}

bool wait_writable(int fd, Deadline deadline) {
    return wait_for(fd, POLLOUT, deadline);
}

std::size_t descriptors_left() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    std::size_t open = 0;
    std::error_code error;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd", error))
        ++open;
    return limit.rlim_cur > open ? static_cast<std::size_t>(limit.rlim_cur) - open : 0;
}

std::string pack_fields(const std::vector<std::string>& fields) {
    std::string bytes;
    for (const std::string& field : fields) {
        const std::uint64_t size = field.size();
        bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
        bytes += field;
    }
    return bytes;
}

std::vector<std::string> unpack_fields(const std::string& bytes) {
    std::vector<std::string> fields;
    std::size_t at = 0;
    while (at < bytes.size()) {
        std::uint64_t size = 0;
        if (bytes.size() - at < sizeof size)
            throw Error(ErrorKind::kEnvironment, "a message between ranks is cut short");
        std::memcpy(&size, bytes.data() + at, sizeof size);
        at += sizeof size;
        if (bytes.size() - at < size)
            throw Error(ErrorKind::kEnvironment, "a message between ranks is cut short");
        fields.push_back(bytes.substr(at, size));
        at += size;
    }
    return fields;
}

}  // namespace xstage::fabric
