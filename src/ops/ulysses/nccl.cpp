#include "ops/ulysses/nccl.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <fstream>

#include "xstage/error.hpp"

namespace xstage::ulysses {
namespace {

// nccl.h's ABI, stable since NCCL 2.0: a 128-byte id by value, int results with 0 for success, and
// ncclInt8 = 0.
struct UniqueId {
    char bytes[128];
};
constexpr int kInt8 = 0;

template <class F>
F* symbol(void* library, const char* name) {
    void* address = ::dlsym(library, name);
    if (address == nullptr)
        throw Error(ErrorKind::kUnsupported, fmt::format("libnccl has no {}", name));
    return reinterpret_cast<F*>(address);
}

void check(int result, const char* what) {
    if (result != 0)
        throw Error(ErrorKind::kEnvironment, fmt::format("{}: NCCL error {}", what, result));
}

}  // namespace

struct Nccl::Library {
    void* handle = ::dlopen("libnccl.so.2", RTLD_NOW);
    int (*get_id)(UniqueId*) = nullptr;
    int (*init)(void**, int, UniqueId, int) = nullptr;
    int (*destroy)(void*) = nullptr;
    int (*start)() = nullptr;
    int (*end)() = nullptr;
    int (*send)(const void*, std::size_t, int, int, void*, void*) = nullptr;
    int (*receive)(void*, std::size_t, int, int, void*, void*) = nullptr;

    Library() {
        if (handle == nullptr)
            throw Error(ErrorKind::kUnsupported,
                        "libnccl.so.2 cannot be opened: add its folder to LD_LIBRARY_PATH");
        get_id = symbol<int(UniqueId*)>(handle, "ncclGetUniqueId");
        init = symbol<int(void**, int, UniqueId, int)>(handle, "ncclCommInitRank");
        destroy = symbol<int(void*)>(handle, "ncclCommDestroy");
        start = symbol<int()>(handle, "ncclGroupStart");
        end = symbol<int()>(handle, "ncclGroupEnd");
        send = symbol<int(const void*, std::size_t, int, int, void*, void*)>(handle, "ncclSend");
        receive = symbol<int(void*, std::size_t, int, int, void*, void*)>(handle, "ncclRecv");
    }
};

Nccl::Nccl(int rank, int world, const std::string& path, const std::function<void()>& ready)
    : library_(std::make_unique<Library>()) {
    UniqueId id{};
    if (rank == 0) {
        check(library_->get_id(&id), "ncclGetUniqueId");
        std::ofstream(path, std::ios::binary).write(id.bytes, sizeof id.bytes);
    }
    ready();
    if (rank != 0) std::ifstream(path, std::ios::binary).read(id.bytes, sizeof id.bytes);
    check(library_->init(&communicator_, world, id, rank), "ncclCommInitRank");
}

Nccl::~Nccl() {
    library_->destroy(communicator_);
}

void Nccl::all_to_all(const std::vector<Piece>& pieces, void* stream) {
    check(library_->start(), "ncclGroupStart");
    for (std::size_t p = 0; p < pieces.size(); ++p) {
        const int peer = static_cast<int>(p);
        check(library_->send(pieces[p].send, pieces[p].send_bytes, kInt8, peer, communicator_,
                             stream),
              "ncclSend");
        check(library_->receive(pieces[p].receive, pieces[p].receive_bytes, kInt8, peer,
                                communicator_, stream),
              "ncclRecv");
    }
    check(library_->end(), "ncclGroupEnd");
}

}  // namespace xstage::ulysses
