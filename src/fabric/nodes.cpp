// Which ranks share a node, and a machine whose descriptors can be handed around.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "fabric/group.hpp"
#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

/// Equal for two processes that can meet over socket names: one kernel and one network namespace.
std::string this_machine() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    char space[64] = "";
    const ssize_t length = ::readlink("/proc/self/ns/net", space, sizeof space - 1);
    if (boot.empty() || length <= 0) {
        char host[256] = "";
        ::gethostname(host, sizeof host - 1);
        return host;
    }
    return boot + " " + std::string(space, static_cast<std::size_t>(length));
}

std::string fresh_nonce() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
}

/// 0, 1, ... in the order of first appearance.
std::vector<int> numbered(const std::vector<std::string>& labels) {
    std::vector<std::string> seen;
    std::vector<int> numbers;
    for (const std::string& label : labels) {
        auto at = std::find(seen.begin(), seen.end(), label);
        if (at == seen.end()) at = seen.insert(at, label);
        numbers.push_back(static_cast<int>(at - seen.begin()));
    }
    return numbers;
}

}  // namespace

void Fabric::Impl::find_nodes() {
    nodes.assign(options.world, 0);
    sharers.clear();
    for (int r = 0; r < options.world; ++r) sharers.push_back(r);
    if (!rendezvous) return;

    const bool named = rendezvous->carries_descriptors();
    const std::vector<std::string> all =
        agree("nodes", {},
              pack_fields({named ? "" : this_machine(), std::to_string(options.node),
                           options.rank == 0 ? fresh_nonce() : ""}));
    // From here on all ranks see the same and so throw the same.
    std::vector<std::string> machines, labels;
    for (int r = 0; r < options.world; ++r) {
        const std::vector<std::string> fields = unpack_fields(all[r]);
        machines.push_back(fields.at(0));
        const bool told = std::stoi(fields.at(1)) >= 0;
        if (told != (std::stoi(unpack_fields(all[0]).at(1)) >= 0))
            throw Error(ErrorKind::kBadInput,
                        fmt::format("rank {} {} its node and rank 0 {}", r,
                                    told ? "says" : "does not say", told ? "does not" : "does"));
        labels.push_back(told ? fields.at(1) : fields.at(0));
    }
    nodes = numbered(labels);
    for (int a = 0; a < options.world; ++a)
        for (int b = 0; b < a; ++b)
            if (nodes[a] == nodes[b] && machines[a] != machines[b])
                throw Error(ErrorKind::kBadInput,
                            fmt::format("ranks {} and {} are on different machines and cannot both "
                                        "be on node {}",
                                        b, a, labels[a]));
    const std::vector<int> machine = numbered(machines);
    if (backend != Backend::kNvshmem && *std::max_element(machine.begin(), machine.end()) > 0)
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("the ranks are on several machines; the backend {} is for one, and "
                                "nvshmem for several",
                                name_of(backend)));
    if (backend == Backend::kProcess && several_nodes())
        throw Error(ErrorKind::kBadInput, "the backend process knows no nodes");
    if (named) return;
    std::erase_if(sharers, [&](int r) { return machine[r] != machine[options.rank]; });
    agree("neighbours", attempt([&] {
              if (sharers.size() == 1) return;
              const auto me = std::find(sharers.begin(), sharers.end(), options.rank);
              neighbours = std::make_unique<Rendezvous>(
                  fmt::format("{}-{}", unpack_fields(all[0]).at(2), sharers.front()),
                  static_cast<int>(me - sharers.begin()), static_cast<int>(sharers.size()),
                  options.setup_timeout);
          }));
}

}  // namespace xstage::fabric
