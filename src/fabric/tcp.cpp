// Ranks of several machines meet over TCP. Nothing but set-up travels here: who is in which call
// and how it went. There is no authentication, as in every launcher of this field: the network is
// taken to be the job's own.

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <map>
#include <thread>

#include "fabric/meeting_point.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

struct HostPort {
    std::string host;
    std::string port;
};

HostPort parse(const std::string& text, const std::string& name) {
    const std::size_t colon = text.rfind(':');
    HostPort at;
    if (colon != std::string::npos) {
        at = {text.substr(0, colon), text.substr(colon + 1)};
        if (at.host.size() > 2 && at.host.front() == '[' && at.host.back() == ']')
            at.host = at.host.substr(1, at.host.size() - 2);
    }
    unsigned port = 0;
    const auto [end, error] =
        std::from_chars(at.port.data(), at.port.data() + at.port.size(), port);
    if (at.host.empty() || error != std::errc() || end != at.port.data() + at.port.size() ||
        port == 0 || port > 65535)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("'{}' is no address; expected tcp://host:port", name));
    return at;
}

struct Addresses {
    addrinfo* first = nullptr;
    Addresses(const char* host, const char* port, int flags) {
        addrinfo hints{};
        hints.ai_family = AF_UNSPEC;
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = flags;
        if (::getaddrinfo(host, port, &hints, &first) != 0) first = nullptr;
    }
    Addresses(const Addresses&) = delete;
    Addresses& operator=(const Addresses&) = delete;
    ~Addresses() {
        if (first != nullptr) ::freeaddrinfo(first);
    }
};

void set_flag(int fd, int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
}

/// A verdict is one small frame that everybody waits for, and a node that loses power must be
/// noticed although it closes nothing.
void tune(int fd) {
    set_flag(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_flag(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_flag(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_flag(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_flag(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/// One attempt, bounded although the network may swallow it.
UniqueFd connect_once(const addrinfo& to, Deadline deadline) {
    UniqueFd fd(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fd;
    if (::connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0) {
        if (errno != EINPROGRESS || !wait_writable(fd.get(), deadline)) return UniqueFd();
        int error = 0;
        socklen_t length = sizeof error;
        if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0)
            return UniqueFd();
    }
    tune(fd.get());
    return fd;
}

class Tcp final : public MeetingPoint {
  public:
    explicit Tcp(const std::string& name) : first_(parse(name.substr(6), name)) {}

    UniqueFd listen(int rank, int backlog) override {
        const std::string port = rank == 0 ? first_.port : "0";
        // Every address of the machine: the one that the launcher names may be a router's view.
        const Addresses any(nullptr, port.c_str(), AI_PASSIVE | AI_NUMERICSERV);
        for (const int family : {AF_INET6, AF_INET})
            for (const addrinfo* a = any.first; a != nullptr; a = a->ai_next) {
                if (a->ai_family != family) continue;
                UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
                if (!fd) continue;
                set_flag(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
                if (family == AF_INET6) set_flag(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
                if (::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
                    ::listen(fd.get(), backlog) == 0)
                    return fd;
            }
        return UniqueFd();
    }

    UniqueFd connect(int rank, Deadline deadline) override {
        const HostPort to = rank == 0 ? first_ : parse(known_.at(rank), known_.at(rank));
        for (;;) {
            const Addresses found(to.host.c_str(), to.port.c_str(), AI_NUMERICSERV);
            for (const addrinfo* a = found.first; a != nullptr; a = a->ai_next)
                if (UniqueFd fd = connect_once(*a, deadline)) return fd;
            if (Clock::now() >= deadline) return UniqueFd();
            // A port that nobody listens on yet refuses at once; there is nothing to wait on.
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }

    UniqueFd accept(int listener, Deadline deadline) override {
        if (wait_readable({&listener, 1}, deadline) < 0) return UniqueFd();
        UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd) tune(fd.get());
        return fd;
    }

    void leave(int) noexcept override {}

    std::string door(int listener) const override {
        sockaddr_storage at{};
        socklen_t length = sizeof at;
        char port[NI_MAXSERV] = "";
        if (listener < 0 ||
            ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length) != 0 ||
            ::getnameinfo(reinterpret_cast<sockaddr*>(&at), length, nullptr, 0, port, sizeof port,
                          NI_NUMERICSERV) != 0)
            return "";
        return port;
    }

    std::string address(int connection, const std::string& door) const override {
        sockaddr_storage at{};
        socklen_t length = sizeof at;
        char host[NI_MAXHOST] = "";
        if (door.empty() ||
            ::getpeername(connection, reinterpret_cast<sockaddr*>(&at), &length) != 0 ||
            ::getnameinfo(reinterpret_cast<sockaddr*>(&at), length, host, sizeof host, nullptr, 0,
                          NI_NUMERICHOST) != 0)
            return "";
        return fmt::format("{}:{}", host, door);
    }

    void learn(int rank, const std::string& address) override { known_[rank] = address; }
    bool carries_descriptors() const override { return false; }

  private:
    HostPort first_;
    std::map<int, std::string> known_;
};

}  // namespace

std::unique_ptr<MeetingPoint> make_tcp_meeting_point(const std::string& name) {
    return std::make_unique<Tcp>(name);
}

}  // namespace xstage::fabric
