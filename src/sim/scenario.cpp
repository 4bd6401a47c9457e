#include "sim/scenario.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "core/file.hpp"
#include "core/json.hpp"
#include "xstage/documents.hpp"
#include "xstage/error.hpp"

namespace xstage::sim {
namespace {

using core::Json;

template <class T>
void take(const Json& from, const char* key, T& to) {
    if (from.contains(key)) to = from[key].get<T>();
}

template <class T>
void take(const Json& from, const char* key, T& to, const std::map<std::string, T>& names) {
    if (from.contains(key)) to = names.at(from[key].get<std::string>());
}

/// Paths in a document count from where the document is.
std::string beside(const std::string& document, const std::string& file) {
    const std::filesystem::path path(file);
    if (path.is_absolute() || document == "-") return file;
    return (std::filesystem::path(document).parent_path() / path).string();
}

class Reader {
  public:
    explicit Reader(std::string file) : file_(std::move(file)) {}

    [[noreturn]] void fail(const std::string& where, const std::string& message) const {
        throw Error(ErrorKind::kBadInput, fmt::format("{}: {}: {}", file_, where, message));
    }

    Ulysses ulysses(const Json& json) const {
        Ulysses out;
        take(json, "sequence", out.sequence);
        take(json, "heads", out.heads);
        take(json, "head_dim", out.head_dim);
        take(json, "batch", out.batch);
        take(json, "tile_rows", out.tile_rows);
        take(json, "tile_columns", out.tile_columns);
        take(json, "clusters", out.clusters);
        take(json, "layout", out.layout,
             {{"peers", Layout::kPeers},
              {"padded", Layout::kPadded},
              {"pages", Layout::kPages},
              {"batched", Layout::kBatched}});
        take(json, "order", out.order,
             {{"head_major", plan::TileOrder::kHeadMajor},
              {"interleaved", plan::TileOrder::kInterleaved},
              {"rotated", plan::TileOrder::kRotated},
              {"remote_first", plan::TileOrder::kRemoteFirst}});
        take(json, "first", out.first,
             {{"rank_zero", FirstChunk::kRankZero},
              {"own", FirstChunk::kOwn},
              {"peer", FirstChunk::kPeer}});
        take(json, "row_pitch_bytes", out.row_pitch);
        take(json, "page_bytes", out.page_bytes);
        take(json, "copying_sms", out.copying_sms);
        take(json, "all_remote", out.all_remote);
        take(json, "all_local", out.all_local);
        take(json, "attention_ns", out.attention_ns);
        take(json, "free_ns", out.free_ns);
        return out;
    }

    Moe moe(const Json& json, const Cluster& cluster) const {
        Moe out;
        take(json, "hidden", out.hidden);
        take(json, "intermediate", out.intermediate);
        take(json, "experts", out.experts);
        take(json, "top_k", out.top_k);
        take(json, "tokens", out.tokens);
        take(json, "activation_bytes", out.activation_bytes);
        take(json, "weight_bytes", out.weight_bytes);
        take(json, "tile_rows", out.tile_rows);
        take(json, "tile_columns1", out.tile_columns1);
        take(json, "tile_columns2", out.tile_columns2);
        take(json, "order", out.order.kind,
             {{"wave", plan::MoeOrderKind::kWave},
              {"alternate", plan::MoeOrderKind::kAlternate},
              {"lead", plan::MoeOrderKind::kLead},
              {"ratio", plan::MoeOrderKind::kRatio}});
        take(json, "wave", out.order.wave);
        out.order.lead = 1 + 2 * cluster.node.sms / out.columns1();
        take(json, "lead", out.order.lead);
        out.order.slack = 2 * cluster.node.sms;
        take(json, "slack", out.order.slack);
        take(json, "dispatch", out.dispatch,
             {{"hidden", Dispatch::kHidden}, {"pull", Dispatch::kPull}});
        take(json, "epilogue_apart", out.epilogue_apart);
        take(json, "copying_sms", out.copying_sms);
        take(json, "tile1_ns", out.tile1_ns);
        take(json, "tile2_ns", out.tile2_ns);
        take(json, "fixed_ns", out.fixed_ns);
        if (out.experts % cluster.gpus != 0) {
            fail("/moe/experts", fmt::format("expected a multiple of the {} GPUs, found {}",
                                             cluster.gpus, out.experts));
        }
        if (out.top_k > out.experts) {
            fail("/moe/top_k",
                 fmt::format("expected at most the {} experts, found {}", out.experts, out.top_k));
        }
        out.routing = std::make_shared<Routing>(routing(json, out, cluster.gpus));
        return out;
    }

    Trace trace(const Json& json, const Cluster& cluster) const {
        Trace out;
        if (json.contains("uniform")) {
            const Json& uniform = json["uniform"];
            std::vector<double> gaps;
            take(uniform, "gap_ns", gaps);
            out = uniform_trace(cluster.gpus, uniform["producers"].get<int>(),
                                uniform["bytes"].get<std::vector<double>>(), gaps, false);
        } else if (json.contains("recording")) {
            out = recorded(beside(file_, json["recording"].get<std::string>()), cluster);
        } else if (!json.contains("bursts")) {
            fail("/trace", "expected one of uniform, bursts, recording");
        }
        take(json, "in_step", out.in_step);
        const Json none = Json::array();
        const Json& bursts = json.contains("bursts") ? json["bursts"] : none;
        for (std::size_t i = 0; i < bursts.size(); ++i) {
            TraceBurst burst;
            take(bursts[i], "rank", burst.rank);
            take(bursts[i], "producer", burst.producer);
            take(bursts[i], "destination", burst.destination);
            take(bursts[i], "gap_ns", burst.gap_ns);
            take(bursts[i], "bytes", burst.bytes);
            for (const char* key : {"rank", "destination"}) {
                if (bursts[i][key].get<int>() >= cluster.gpus) {
                    fail(fmt::format("/trace/bursts/{}/{}", i, key),
                         fmt::format("expected a GPU below {}, found {}", cluster.gpus,
                                     bursts[i][key].get<int>()));
                }
            }
            out.bursts.push_back(burst);
        }
        return out;
    }

  private:
    Routing routing(const Json& json, const Moe& moe, int gpus) const {
        bool balanced = false;
        take(json, "balanced", balanced);
        if (balanced) return balanced_routing(moe.experts, gpus, moe.top_k, moe.tokens);
        if (json.contains("routing_file")) {
            return read_routing(beside(file_, json["routing_file"].get<std::string>()), moe.experts,
                                gpus);
        }
        RoutingSeed how{
            moe.experts, gpus,
            moe.top_k,   std::vector<std::int64_t>(static_cast<std::size_t>(gpus), moe.tokens),
            1,           0,
            -1};
        take(json, "seed", how.seed);
        take(json, "skew", how.skew);
        take(json, "remote_share", how.remote_share);
        if (how.remote_share >= 0) {
            const int local = moe.experts / gpus;
            if (gpus == 1 || moe.top_k > local || moe.top_k > moe.experts - local) {
                fail("/moe/remote_share", "expected GPUs that each have at least top_k experts");
            }
        }
        return seeded_routing(how);
    }

    /// The stamps of a user's own kernel on one GPU: gaps are from the end of a producer's last
    /// issue to its next start.
    Trace recorded(const std::string& path, const Cluster& cluster) const {
        const Measurements measurements = read_measurements(path);
        Trace out;
        std::map<int, double> end;
        for (const UserBurst& burst : measurements.user_bursts) {
            if (burst.destination >= cluster.gpus) {
                fail("/gpus", fmt::format("expected more than {}, to which {} stores",
                                          burst.destination, path));
            }
            const double start = burst.start.value();
            const double clock = burst.clock ? burst.clock->value() : 1.0;
            const auto last = end.find(burst.producer);
            const double gap = std::max(0.0, start - (last == end.end() ? 0 : last->second));
            end[burst.producer] = start + burst.issue.value() / clock;
            out.bursts.push_back({0, burst.producer, burst.destination, gap, burst.bytes.value()});
        }
        if (out.bursts.empty())
            fail("/trace/recording", fmt::format("expected user_bursts in {}", path));
        return out;
    }

    std::string file_;
};

}  // namespace

ProgramFactory Scenario::programs() const {
    if (ulysses) return ulysses_programs(cluster, *ulysses);
    if (moe) return moe_programs(cluster, *moe);
    return trace_programs(cluster, *trace);
}

std::vector<std::string> Scenario::assumptions() const {
    std::vector<std::string> out;
    const Node& node = cluster.node;
    if (cluster.gpus > node.gpus_measured) {
        out.push_back(fmt::format(
            "extrapolated: the node was measured with {} GPUs, {} are simulated; links of "
            "a GPU to its peers together are taken to be as fast as to one",
            node.gpus_measured, cluster.gpus));
    }
    if (cluster.gpus > 2) {
        out.push_back(fmt::format(
            "a GPU takes in {:.0f} GB/s from all its peers; the switch holds {:.0f} KB of an "
            "incast and treats senders alike",
            node.ingress_rate, node.ingress_buffer / 1e3));
    }
    if (cluster.gpus_per_node > 0 && cluster.gpus > cluster.gpus_per_node) {
        out.push_back(
            fmt::format("between nodes each GPU has {:.0f} GB/s of its own", node.network_rate));
    }
    if (moe && moe->tile1_ns <= 0) {
        out.push_back(
            "tile times are a roofline: arithmetic at the node's rate, an expert's weights read "
            "once");
    }
    if (moe && moe->dispatch == Dispatch::kHidden) {
        out.push_back("all tokens are at their experts when the kernel starts");
    }
    if (ulysses && std::fmod(std::log2(ulysses->pitch()), 1) != 0 &&
        node.pitch_cost.count(ulysses->pitch()) == 0) {
        out.push_back(
            fmt::format("rows {:.0f} bytes apart take no more of the link than packed ones; the "
                        "node was not measured with them",
                        ulysses->pitch()));
    }
    if (ulysses && ulysses->attention_ns <= 0) {
        out.push_back("attention time is arithmetic at the node's bf16 rate");
    }
    return out;
}

Node read_node(const std::string& file, const std::string& path) {
    const Json json = core::parse_json(core::read_file(file), file);
    if (json.is_object() && json.value("kind", "") == "xstage.profile") {
        return node_from_profile(read_profile(file).profile, path.empty() ? "st16" : path);
    }
    core::validate(json, "sim_node", file);
    const auto fail = [&](const std::string& where, const std::string& message) {
        throw Error(ErrorKind::kBadInput, fmt::format("{}: {}: {}", file, where, message));
    };
    Node node;
    if (json.contains("profile")) {
        const std::string profile = beside(file, json["profile"].get<std::string>());
        node = node_from_profile(read_profile(profile).profile, path.empty() ? "st16" : path);
    } else {
        for (const char* key : {"sms", "link_gbps", "paths"}) {
            if (!json.contains(key)) fail(fmt::format("/{}", key), "expected it, or a /profile");
        }
    }
    take(json, "name", node.name);
    take(json, "sms", node.sms);
    take(json, "groups", node.groups);
    take(json, "halves", node.halves);
    take(json, "link_gbps", node.link_rate);
    take(json, "ingress_gbps", node.ingress_rate);
    take(json, "ingress_buffer_bytes", node.ingress_buffer);
    take(json, "network_gbps", node.network_rate);
    take(json, "network_latency_ns", node.network_latency_ns);
    take(json, "shared_room_bytes", node.shared_room);
    take(json, "shared_cap_bytes", node.shared_cap);
    take(json, "producer_gbps", node.producer_rate);
    take(json, "arbitration_spread", node.favour);
    take(json, "arbitration_spread", node.disfavour);
    take(json, "local_gbps", node.local_rate);
    if (json.contains("pitches")) {
        for (const Json& row : json["pitches"])
            node.pitch_cost[row["bytes"].get<double>()] = row["cost"].get<double>();
    }
    take(json, "visible_ns", node.visible_ns);
    take(json, "ack_ns", node.ack_ns);
    take(json, "fp8_tflops", node.fp8_tflops);
    take(json, "bf16_tflops", node.bf16_tflops);
    take(json, "memory_gbps", node.memory_rate);
    take(json, "gpus_measured", node.gpus_measured);
    if (std::accumulate(node.halves.begin(), node.halves.end(), 0) != node.group_count() &&
        !node.halves.empty()) {
        fail("/halves", fmt::format("expected {} groups in all", node.group_count()));
    }
    if (!json.contains("paths")) return node;
    const Json& paths = json["paths"];
    if (paths.empty() || (!path.empty() && !paths.contains(path))) {
        fail("/paths", fmt::format("expected the store path '{}'", path));
    }
    const Json& chosen = path.empty() ? paths.begin().value() : paths[path];
    take(chosen, "private_room_bytes", node.private_room);
    take(chosen, "issue_base_ns", node.issue_base_ns);
    take(chosen, "issue_gbps", node.issue_rate);
    return node;
}

Scenario read_scenario(const std::string& file, const std::string& node) {
    const Json json = core::load_json(file, "sim_scenario");
    const Reader reader(file);
    Scenario out;
    take(json, "name", out.name);
    std::string path;
    take(json, "path", path);
    out.cluster.node =
        read_node(node.empty() ? beside(file, json["node"].get<std::string>()) : node, path);
    take(json, "gpus", out.cluster.gpus);
    take(json, "gpus_per_node", out.cluster.gpus_per_node);
    if (json.contains("ulysses") + json.contains("moe") + json.contains("trace") != 1) {
        reader.fail("/", "expected exactly one of ulysses, moe, trace");
    }
    if (json.contains("ulysses")) out.ulysses = reader.ulysses(json["ulysses"]);
    if (json.contains("moe")) out.moe = reader.moe(json["moe"], out.cluster);
    if (json.contains("trace")) out.trace = reader.trace(json["trace"], out.cluster);
    try {
        out.programs();  // checks the shape against the cluster
    } catch (const Error& error) {
        throw Error(error.kind(), fmt::format("{}: {}", file, error.what()));
    }
    return out;
}

}  // namespace xstage::sim
