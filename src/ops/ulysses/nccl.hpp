#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace xstage::ulysses {

/// NCCL by dlopen, for the serial baseline alone.
class Nccl {
  public:
    /// Every rank of a node; the id travels through `path`, which rank 0 writes before `ready` is
    /// called on all ranks. Throws Error (kUnsupported) when there is no libnccl.
    Nccl(int rank, int world, const std::string& path, const std::function<void()>& ready);
    ~Nccl();
    Nccl(const Nccl&) = delete;
    Nccl& operator=(const Nccl&) = delete;

    struct Piece {
        const void* send;
        std::size_t send_bytes;
        void* receive;
        std::size_t receive_bytes;
    };
    /// pieces[p] to and from rank p, in one group.
    void all_to_all(const std::vector<Piece>& pieces, void* stream);

  private:
    struct Library;
    std::unique_ptr<Library> library_;
    void* communicator_ = nullptr;
};

}  // namespace xstage::ulysses
