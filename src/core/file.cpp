#include "core/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "xstage/error.hpp"

namespace xstage::core {
namespace {

class Descriptor {
  public:
    explicit Descriptor(int fd, bool owned = true) : fd_(fd), owned_(owned) {}
    ~Descriptor() {
        if (owned_ && fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int get() const { return fd_; }

  private:
    int fd_;
    bool owned_;
};

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
    throw Error(ErrorKind::kBadInput, fmt::format("{}: {}", path, reason));
}

[[noreturn]] void fail_errno(const std::string& path, const char* what) {
    fail(path, fmt::format("{}: {}", what, std::strerror(errno)));
}

void write_all(int fd, const std::string& path, const std::string& text) {
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail_errno(path, "cannot write");
        done += static_cast<std::size_t>(n);
    }
}

}  // namespace

std::string read_file(const std::string& path, std::size_t limit) {
    const bool standard_input = path == "-";
    const Descriptor file(
        standard_input ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC),
        !standard_input);
    if (file.get() < 0) fail_errno(path, "cannot open");
    struct stat status {};
    if (::fstat(file.get(), &status) == 0 && S_ISDIR(status.st_mode)) {
        fail(path, "is a directory; expected a file");
    }
    std::string text;
    char buffer[1 << 16];
    for (;;) {
        const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail_errno(path, "cannot read");
        if (n == 0) return text;
        text.append(buffer, static_cast<std::size_t>(n));
        if (text.size() > limit) {
            fail(path,
                 fmt::format("is larger than {} bytes; expected a document of xstage", limit));
        }
    }
}

void write_file_atomic(const std::string& path, const std::string& text) {
    if (path == "-") return write_all(STDOUT_FILENO, "standard output", text);

    std::string temporary = path + ".XXXXXX";
    const Descriptor file(::mkstemp(temporary.data()));
    if (file.get() < 0) fail_errno(path, "cannot create");
    try {
        write_all(file.get(), path, text);
        // mkstemp makes files private to the user; a document is as readable as any other file.
        const mode_t mask = ::umask(0);
        ::umask(mask);
        if (::fchmod(file.get(), 0666 & ~mask) != 0 || ::fsync(file.get()) != 0 ||
            ::rename(temporary.c_str(), path.c_str()) != 0) {
            fail_errno(path, "cannot write");
        }
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
}

}  // namespace xstage::core
