#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "xstage/fabric.hpp"

namespace xstage::fabric {

/// Memory of the same size on every rank that puts reach on every node.
class SymmetricHeap {
  public:
    virtual ~SymmetricHeap() = default;

    /// Collective; zeroed. Throws the same Error on all ranks.
    virtual std::byte* allocate(std::size_t bytes, const std::string& what) = 0;
    /// Not collective: the memory is given back once every rank has released it.
    virtual void release(std::byte* memory) noexcept = 0;

    /// What `mine` is on that rank, as this process addresses it; null on another node.
    virtual std::byte* at(std::byte* mine, int rank) const = 0;
    /// The same as Engine::put and the signals of other nodes take it.
    virtual std::byte* target(std::byte* mine, int rank) const = 0;
};

/// Of a group whose nodes are emulated on one machine: everything is mapped, and at() hides it.
std::unique_ptr<SymmetricHeap> make_host_heap(Fabric::Impl& group);

/// Owns one allocation.
class HeapMemory {
  public:
    HeapMemory() = default;
    HeapMemory(std::shared_ptr<SymmetricHeap> heap, std::size_t bytes, const std::string& what)
        : heap_(std::move(heap)), data_(heap_->allocate(bytes, what)) {}
    HeapMemory(HeapMemory&& other) noexcept
        : heap_(std::move(other.heap_)), data_(std::exchange(other.data_, nullptr)) {}
    HeapMemory& operator=(HeapMemory&& other) noexcept {
        std::swap(heap_, other.heap_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~HeapMemory() {
        if (data_ != nullptr) heap_->release(data_);
    }

    std::byte* data() const { return data_; }
    std::byte* at(int rank) const { return heap_->at(data_, rank); }
    std::byte* target(int rank) const { return heap_->target(data_, rank); }

  private:
    std::shared_ptr<SymmetricHeap> heap_;
    std::byte* data_ = nullptr;
};

}  // namespace xstage::fabric
