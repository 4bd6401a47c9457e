#include "core/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "core/file.hpp"
#include "xstage/error.hpp"

namespace xstage::core {
namespace {

using PlainJson = nlohmann::json;

[[noreturn]] void fail(const std::string& message) {
    throw Error(ErrorKind::kBadInput, message);
}

/// nlohmann's message without its prefix: "syntax error while parsing value - invalid literal;
/// ...".
std::string parse_reason(const std::string& what) {
    const auto dash = what.find("syntax error");
    std::string reason = dash == std::string::npos ? what : what.substr(dash);
    // One line and no control characters, whatever the file holds.
    std::replace_if(
        reason.begin(), reason.end(), [](unsigned char c) { return c < 0x20; }, ' ');
    return reason.substr(0, 200);
}

const PlainJson& resolve(const PlainJson& root, const PlainJson& node) {
    const PlainJson* at = &node;
    while (at->is_object() && at->contains("$ref")) {
        at = &root.at(PlainJson::json_pointer(at->at("$ref").get<std::string>().substr(1)));
    }
    return *at;
}

/// The schema of one property or array item, or nullptr where the schema says nothing of it.
const PlainJson* step(const PlainJson& root, const PlainJson& schema, const std::string& key) {
    const PlainJson& node = resolve(root, schema);
    if (node.contains("properties") && node["properties"].contains(key)) {
        return &node["properties"][key];
    }
    if (node.contains("items")) return &node["items"];
    return nullptr;
}

/// What a schema node asks for, in words: its description, its type and its bounds.
std::string expectation(const PlainJson& root, const PlainJson& schema) {
    const PlainJson& node = resolve(root, schema);
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
    if (node.contains("type")) {
        const auto& type = node["type"];
        add(type.is_string() ? type.get<std::string>() : fmt::format("one of {}", type.dump()));
    }
    if (node.contains("enum")) add("one of " + node["enum"].dump());
    if (node.contains("const")) add(node["const"].dump());
    if (node.contains("minimum")) add(">= " + node["minimum"].dump());
    if (node.contains("exclusiveMinimum")) add("> " + node["exclusiveMinimum"].dump());
    if (node.contains("maximum")) add("<= " + node["maximum"].dump());
    if (node.contains("minItems")) add("at least " + node["minItems"].dump() + " items");
    if (schema.contains("description") || node.contains("description")) {
        const auto& holder = schema.contains("description") ? schema : node;
        text += fmt::format(" ({})", holder["description"].get<std::string>());
    }
    return text.empty() ? "another value" : text;
}

/// Turns valijson's context ("<root>", "[bursts]", "[3]", ...) into path, schema node and value.
struct Place {
    std::string pointer = "/";
    const PlainJson* schema = nullptr;
    const Json* value = nullptr;
};

Place locate(const PlainJson& root, const Json& document, const std::vector<std::string>& context) {
    Place place{"", &root, &document};
    for (std::size_t i = 1; i < context.size(); ++i) {
        const std::string& part = context[i];
        const std::string key = part.size() > 2 ? part.substr(1, part.size() - 2) : part;
        place.pointer += "/" + key;
        if (place.schema != nullptr) place.schema = step(root, *place.schema, key);
        if (place.value != nullptr && place.value->is_object() && place.value->contains(key)) {
            place.value = &place.value->at(key);
        } else if (place.value != nullptr && place.value->is_array()) {
            place.value = &place.value->at(std::stoul(key));
        } else {
            place.value = nullptr;
        }
    }
    if (place.pointer.empty()) place.pointer = "/";
    return place;
}

struct CompiledSchema {
    PlainJson text;
    valijson::Schema schema;
};

const CompiledSchema& compiled(std::string_view name) {
    // Built on first use and kept: parsing a schema costs more than checking a document.
    static std::map<std::string, CompiledSchema, std::less<>> cache;
    if (const auto found = cache.find(name); found != cache.end()) return found->second;
    CompiledSchema& entry = cache[std::string(name)];
    entry.text = PlainJson::parse(schema_text(name));
    const valijson::adapters::NlohmannJsonAdapter adapter(entry.text);
    valijson::SchemaParser().populateSchema(adapter, entry.schema);
    return entry;
}

bool plain_array(const Json& value) {
    return value.is_array() && std::none_of(value.begin(), value.end(), [](const Json& item) {
               return item.is_structured() && !item.empty();
           });
}

void dump(const Json& value, int indent, std::string& out) {
    // From the third level on a value is a row of some table and keeps to one line.
    if (!value.is_structured() || value.empty() || plain_array(value) || indent >= 4) {
        out += value.dump();
        return;
    }
    const std::string pad(static_cast<std::size_t>(indent) + 2, ' ');
    const char* separator = "";
    out += value.is_object() ? "{" : "[";
    for (const auto& item : value.items()) {
        out += separator;
        out += "\n" + pad;
        if (value.is_object()) out += Json(item.key()).dump() + ": ";
        dump(item.value(), indent + 2, out);
        separator = ",";
    }
    out +=
        "\n" + std::string(static_cast<std::size_t>(indent), ' ') + (value.is_object() ? "}" : "]");
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
    try {
        return Json::parse(text);
    } catch (const Json::parse_error& error) {
        const std::size_t end = std::min(error.byte, text.size());
        const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(end), '\n');
        const auto newline = text.substr(0, end).rfind('\n');
        const auto column = end - (newline == std::string_view::npos ? 0 : newline + 1);
        fail(fmt::format("{}:{}:{}: expected JSON: {}", file, line, column,
                         parse_reason(error.what())));
    } catch (const Json::exception& error) {  // a number beyond double, say
        fail(fmt::format("{}: expected JSON: {}", file, parse_reason(error.what())));
    }
}

void validate(const Json& document, std::string_view name, const std::string& file) {
    const CompiledSchema& schema = compiled(name);
    // The kind and the version come first: a wrong one explains every other fault.
    for (const char* key : {"kind", "schema_version"}) {
        if (!schema.text["properties"].contains(key)) continue;
        const auto& wanted = schema.text["properties"][key]["const"];
        const bool present = document.is_object() && document.contains(key);
        if (!present || PlainJson(document[key]) != wanted) {
            fail(fmt::format("{}: /{}: expected {}, found {}", file, key, wanted.dump(),
                             present ? document[key].dump().substr(0, 80) : "nothing"));
        }
    }
    const PlainJson plain = document;
    const valijson::adapters::NlohmannJsonAdapter adapter(plain);
    valijson::Validator validator;
    valijson::ValidationResults results;
    if (validator.validate(schema.schema, adapter, &results)) return;

    // valijson reports from the leaf outwards; the first is the one that says most.
    valijson::ValidationResults::Error first;
    results.popError(first);
    const Place place = locate(schema.text, document, first.context);
    if (first.description.find("equired property") != std::string::npos ||
        place.schema == nullptr) {
        fail(fmt::format("{}: {}: {}", file, place.pointer, first.description));
    }
    fail(fmt::format("{}: {}: expected {}, found {}", file, place.pointer,
                     expectation(schema.text, *place.schema),
                     place.value == nullptr ? "nothing" : place.value->dump().substr(0, 80)));
}

Json load_json(const std::string& path, std::string_view schema) {
    Json document = parse_json(read_file(path), path);
    validate(document, schema, path);
    return document;
}

std::string dump_json(const Json& document) {
    std::string out;
    dump(document, 0, out);
    out += '\n';
    return out;
}

}  // namespace xstage::core
