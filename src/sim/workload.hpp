#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xstage::sim {

/// Where the bytes of a burst go: shares per GPU, which sum to 1. Most bursts go to one GPU; a tile
/// of tokens of many ranks goes to many.
using Route = std::vector<std::pair<int, double>>;

enum class Channel : std::uint8_t { kLink, kNetwork };

/// Bytes that leave the GPU by one channel.
struct Part {
    double bytes = 0;
    double issue_ns = 0;  ///< without backpressure
    int route = 0;        ///< index into the program's routes
    Channel channel = Channel::kLink;
    double cost = 1;  ///< link time per byte over that of the best address pattern
};

enum class Role : std::uint8_t { kTile, kLinear1, kLinear2, kDispatch, kBurst, kCopy };

std::string_view role_name(Role role);

/// One task of a producer: compute, then store what was computed.
struct Step {
    Role role = Role::kTile;
    int id = 0;             ///< number of the tile among those of its role
    double compute_ns = 0;  ///< from the claim to the first store
    /// How much of compute_ns may run before the producer's previous store has been accepted: 0
    /// where the storing warps also compute, up to compute_ns where an accumulator is left to them.
    double free_ns = 0;
    /// A producer that must have stored as many steps before this one may compute beyond free_ns
    /// (CTAs of a cluster that share their loads); -1: none.
    int pair = -1;
    int gate = -1;        ///< must be open before the step starts; -1: none
    double local_ns = 0;  ///< issue of the bytes that stay on this GPU
    int parts = 0;
    Part part[2];
};

/// The tasks of one GPU. Producers 0 .. producers()-1 claim them; the engine calls from one thread.
class Program {
  public:
    virtual ~Program() = default;

    virtual int producers() const = 0;
    /// Producers from this one on do not run on SMs and share one group of their own (dispatch).
    virtual int first_helper() const { return producers(); }
    virtual const std::vector<Route>& routes() const = 0;
    /// The next task of this producer; false when there is none left.
    virtual bool claim(int producer, Step& step) = 0;
    virtual int gates() const { return 0; }
    virtual bool open(int /*gate*/) const { return true; }
    /// The step's stores were accepted. Returns the gate that this opened, or -1.
    virtual int accepted(const Step& /*step*/) { return -1; }
    /// The step's bytes left the GPU. Returns the gate that this opened, or -1.
    virtual int drained(const Step& /*step*/) { return -1; }
};

/// A fresh program of the GPU `rank`: each run needs one per GPU.
using ProgramFactory = std::function<std::unique_ptr<Program>(int rank)>;

}  // namespace xstage::sim
