#include "trace/profile_json.hpp"

#include <concepts>

#include "trace/measurement_json.hpp"

namespace xstage::trace {
namespace {

using core::Json;

// One list of fields per struct serves reading and writing, so that the two cannot drift apart.
template <class Io>
void fields(Io& io, model::Estimate& e) {
    io("name", e.name), io("unit", e.unit), io("meaning", e.meaning);
    io("value", e.value), io("low", e.low), io("high", e.high), io("reason", e.reason);
}

template <class Io>
void fields(Io& io, model::StorePath& p) {
    io("name", p.name), io("instruction_bytes", p.instruction), io("per_warp", p.per_warp),
        io("warps_apart", p.warps_apart);
    io("wire", p.wire), io("link_cost", p.link_cost);
    io("start_cycles", p.start), io("cold_cycles", p.cold);
    io("per_instruction_cycles", p.per_instruction), io("per_rival_cycles", p.per_rival);
    io("accept_bytes_per_cycle", p.accept);
    io("room_bytes", p.room), io("between_cycles", p.between), io("finish_cycles", p.finish);
}

template <class Io>
void fields(Io& io, model::Topology& t) {
    io("sms", t.sms), io("clusters", t.clusters), io("halves", t.halves), io("order", t.order);
}

template <class Io>
void fields(Io& io, model::Network& n) {
    io("drain_gbps", n.drain), io("egress_bytes_per_cycle", n.egress);
    io("producer_room_bytes", n.producer_room), io("group_room_bytes", n.group_room);
    io("balance", n.balance), io("favour", n.favour), io("disfavour", n.disfavour);
    io("keep", n.keep), io("tail", n.tail);
    io("turn_bytes", n.turn), io("lasting", n.lasting), io("spread", n.spread);
    io("stride_cost", n.stride_cost), io("stride_half", n.stride_half);
}

template <class Io>
void fields(Io& io, model::Visibility& v) {
    io("fence_ns", v.fence), io("echo_ns", v.echo);
}

template <class Io>
void fields(Io& io, model::BurstGap& m) {
    io("issue_ns", m.issue), io("drain_gbps", m.drain), io("capacity_bytes", m.capacity);
}

template <class Io>
void fields(Io& io, model::ErrorLine& e) {
    io("what", e.what), io("path", e.path), io("producers", e.producers),
        io("statistic", e.statistic);
    io("rows", e.rows), io("median", e.median), io("p90", e.p90);
    io("simple_median", e.simple_median), io("simple_p90", e.simple_p90);
}

template <class Io>
void fields(Io& io, FitRun& f) {
    io("source", f.source), io("tool_version", f.tool_version), io("git_commit", f.git_commit);
    io("argv", f.argv), io("date", f.date);
}

template <class Io>
void fields(Io& io, model::Profile& p) {
    io("node", p.node), io("clock_ghz", p.clock), io("rows", p.rows);
    io("hierarchical", p.hierarchical);
    io("parameters", p.parameters), io("held_out", p.held_out), io("notes", p.notes);
    io("paths", p.paths), io("topology", p.topology), io("network", p.network);
    io("visibility", p.visibility), io("simple", p.simple),
        io("simple_producers", p.simple_producers);
}

template <class T>
concept Plain = std::same_as<T, std::string> || std::same_as<T, bool> || std::same_as<T, int> ||
    std::same_as<T, double>;

struct Writer {
    Json json = Json::object();

    template <class T>
    void operator()(const char* key, T& value) {
        json[key] = write(value);
    }

    template <Plain T>
    static Json write(T& value) {
        return value;
    }
    template <int B, int N, int C>
    static Json write(Quantity<B, N, C>& value) {
        return value.value();
    }
    template <class T>
    static Json write(std::optional<T>& value) {
        return value ? write(*value) : Json(nullptr);
    }
    template <class T>
    static Json write(std::vector<T>& values) {
        Json out = Json::array();
        for (T& value : values) out.push_back(write(value));
        return out;
    }
    template <class T>
    static Json write(T& value) {
        Writer writer;
        fields(writer, value);
        return std::move(writer.json);
    }
};

struct Reader {
    const Json& json;

    template <class T>
    void operator()(const char* key, T& value) {
        // The schema says what may be absent; it then keeps its default.
        if (const auto at = json.find(key); at != json.end()) read(*at, value);
    }

    template <Plain T>
    static void read(const Json& json, T& value) {
        value = json.get<T>();
    }
    template <int B, int N, int C>
    static void read(const Json& json, Quantity<B, N, C>& value) {
        value = Quantity<B, N, C>{json.get<double>()};
    }
    template <class T>
    static void read(const Json& json, std::optional<T>& value) {
        if (json.is_null()) return value.reset();
        read(json, value.emplace());
    }
    template <class T>
    static void read(const Json& json, std::vector<T>& values) {
        for (const Json& item : json) read(item, values.emplace_back());
    }
    template <class T>
    static void read(const Json& json, T& value) {
        Reader reader{json};
        fields(reader, value);
    }
};

}  // namespace

ProfileDocument profile_from_json(const Json& document, const std::string& file) {
    core::validate(document, "profile", file);
    ProfileDocument out;
    out.recording = provenance_from_json(document.at("provenance"));
    Reader::read(document.at("fitted"), out.fitted);
    Reader::read(document.at("profile"), out.profile);
    return out;
}

Json to_json(const ProfileDocument& profile) {
    ProfileDocument copy = profile;  // the field lists take references that can be written to
    return {{"schema_version", 3},
            {"kind", "xstage.profile"},
            {"provenance", to_json(copy.recording)},
            {"fitted", Writer::write(copy.fitted)},
            {"profile", Writer::write(copy.profile)}};
}

}  // namespace xstage::trace
