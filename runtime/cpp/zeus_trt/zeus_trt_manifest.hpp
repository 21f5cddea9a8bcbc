// The manifest of a bundle (runtime/bundle/FORMAT.md): what its engine takes and gives.
#pragma once

#include <zeus_trt/zeus_trt_file.hpp>

#include <map>
#include <optional>

namespace zeus_trt {

// An axis: a size, or the name of a symbol.
using Axis = std::variant<std::int64_t, std::string>;

// A tensor at the border of the denoiser. Floating-point tensors are float32, whatever the engine computes in.
struct Tensor {
  std::string name, dtype, role;  // role: latents, timestep, conditioning, constant, size, fixed or output
  std::vector<Axis> axes;
  std::optional<std::string> value;  // the symbol that an integer is the value of
};

// A size that varies.
struct Symbol {
  std::string name;
  std::vector<std::int64_t> observed;
  std::int64_t multiple_of = 1, minimum = 1;
  std::optional<std::int64_t> maximum;
};

struct FileEntry {
  std::int64_t size = 0;
  std::string sha256;
};

struct Labels {
  std::int64_t count = 0, null = 0;  // classes 0 to count - 1, and the class of unconditional rows
};

// What a runtime reads of a manifest. Other known fields are not looked at, and relations between sizes are only
// counted: keep to the shapes of the engine's profile (EngineRecord::check_shape).
struct Manifest {
  std::string model, component, prediction_type, weights_sha256, guidance;
  std::vector<Tensor> inputs;  // latents, timestep, conditioning
  Tensor output;
  std::vector<Symbol> symbols;
  std::vector<std::string> precisions;  // of the graphs, the default first
  std::map<std::string, FileEntry> files;
  std::optional<Labels> labels;
  std::optional<double> guidance_factor;
  std::string unsteppable;  // why no solver can step the graph; empty if one can
  std::size_t num_relations = 0;

  // Reads what Manifest.to_json() wrote, and checks its digest.
  static Result<Manifest> parse(std::string_view text) noexcept {
    return detail::at_border<Manifest>([&] { return read(text); });
  }

  static Result<Manifest> load(const std::string& path) noexcept {
    return detail::at_border<Manifest>([&] { return read(detail::read_file(path, thing, advice)); });
  }

 private:
  using Json = detail::Json;
  static constexpr auto* thing = "manifest";
  static constexpr auto* advice = "Export the model again.";

  static Tensor read_tensor(const Json& data, const std::string& where) {
    detail::expect_fields(data, where, {"name", "dtype", "axes"}, {"role", "value"});
    Tensor made;
    made.name = detail::read_text(data["name"], where + ".name");
    made.dtype = detail::read_text(data["dtype"], where + ".dtype");
    made.role = data.contains("role") ? detail::read_text(data["role"], where + ".role") : "conditioning";
    static const std::set<std::string> known = {"float32", "int64", "int32", "int16", "int8", "uint8", "bool"};
    if (!known.count(made.dtype)) throw detail::Misfit{made.name + " has the dtype " + made.dtype};
    for (const auto& axis : detail::read_list(data["axes"], where + ".axes"))
      made.axes.push_back(axis.is_string() ? Axis(axis.get<std::string>())
                                           : Axis(detail::read_size(axis, where + ".axes")));
    if (const auto& value = detail::find_field(data, "value"); !value.is_null())
      made.value = detail::read_text(value, where + ".value");
    return made;
  }

  static Symbol read_symbol(const Json& data) {
    detail::expect_fields(data, "symbols[...]", {"name", "observed"},
                          {"multiple_of", "maximum", "factors", "scale", "setting", "unit", "offset", "minimum"});
    Symbol made;
    made.name = detail::read_text(data["name"], "symbols[...].name");
    for (const auto& size : detail::read_list(data["observed"], made.name))
      made.observed.push_back(detail::read_size(size, made.name));
    if (data.contains("multiple_of")) made.multiple_of = detail::read_size(data["multiple_of"], made.name);
    if (data.contains("minimum")) made.minimum = detail::read_integer(data["minimum"], made.name);
    if (const auto& most = detail::find_field(data, "maximum"); !most.is_null())
      made.maximum = detail::read_size(most, made.name);
    return made;
  }

  static Manifest read(std::string_view text) {
    const auto data = detail::decode(text, thing, advice);
    detail::check_format(data, 2, thing, "export the model again: `zeus-trt export MODEL -o BUNDLE --overwrite`.");
    check_seal(text, data);
    try {
      return build(data);
    } catch (const detail::Misfit& misfit) {
      throw detail::refuse(thing, "JSON that does not fit (" + misfit.reason + ")", "a manifest", advice);
    }
  }

  // The digest is that of the text with 64 zeros in its place.
  static void check_seal(std::string_view text, const Json& data) {
    const std::string_view name = "\"manifest_sha256\"";
    const auto skip = [&](std::size_t i) { return std::min(text.find_first_not_of(" \t\n\r\f\v", i), text.size()); };
    std::string zeroed(text), found;
    for (auto at = text.find(name); at != text.npos && found.empty(); at = text.find(name, at + 1)) {
      const auto colon = skip(at + name.size());
      const auto quote = colon < text.size() && text[colon] == ':' ? skip(colon + 1) : text.size();
      if (quote + 66 > text.size() || text[quote] != '"' || text[quote + 65] != '"') continue;
      const auto digest = text.substr(quote + 1, 64);
      if (digest.find_first_not_of("0123456789abcdef") != digest.npos) continue;
      found = digest;
      zeroed.replace(quote + 1, 64, 64, '0');
    }
    const auto& said = detail::find_field(data, "manifest_sha256");
    if (!found.empty() && said == found && detail::sha256(zeroed) == found) return;
    throw detail::refuse(thing, said.is_null() ? "no manifest_sha256" : "a manifest_sha256 of other content",
                         "the digest that `zeus-trt export` wrote",
                         "The file was changed, or made by an older zeus-trt. Export the model again.");
  }

  static Manifest build(const Json& data) {
    using namespace detail;
    expect_fields(
        data, "manifest",
        {"manifest_sha256", "format", "model", "component", "denoiser_class", "denoiser_config", "weights_sha256",
         "prediction_type", "inputs", "output", "symbols", "labels", "graphs", "versions"},
        {"pipeline_class", "constants", "guidance", "guidance_factor", "timestep_scale", "constant_axis",
         "variance_axis", "unsteppable", "strength_rule", "relations", "adapters", "adapters_sha256", "layout",
         "networks", "masks", "is_bare", "branches", "foreign", "files"});
    if (!find_field(data, "foreign").is_null())
      throw refuse(thing, "a compiled engine of others, which has no graph", "a bundle with a graph",
                   "Run it with Python, or import the graph that the engine was compiled from.");
    Manifest made;
    made.model = read_text(data["model"], "model");
    made.component = read_text(data["component"], "component");
    made.prediction_type = read_text(data["prediction_type"], "prediction_type");
    made.weights_sha256 = read_sha256(data["weights_sha256"], "weights_sha256", true);
    for (const auto& input : read_list(data["inputs"], "inputs"))
      made.inputs.push_back(read_tensor(input, "inputs[...]"));
    made.output = read_tensor(data["output"], "output");
    for (const auto& symbol : read_list(data["symbols"], "symbols")) made.symbols.push_back(read_symbol(symbol));
    for (const auto& graph : read_list(data["graphs"], "graphs")) {
      expect_fields(graph, "graphs[...]", {"precision"}, {"keep_fp32", "verification"});
      made.precisions.push_back(read_text(graph["precision"], "graphs[...].precision"));
    }
    if (const auto& labels = data["labels"]; !labels.is_null()) {
      expect_fields(labels, "labels", {"count", "null"}, {});
      made.labels = Labels{read_size(labels["count"], "labels"), read_integer(labels["null"], "labels.null")};
      if (made.labels->null < 0 || made.labels->null > made.labels->count)
        throw Misfit{"labels have a null that is none"};
    }
    made.guidance = data.contains("guidance") ? read_text(data["guidance"], "guidance") : "batched";
    if (const auto& factor = find_field(data, "guidance_factor"); !factor.is_null())
      made.guidance_factor = read_number(factor, "guidance_factor");
    if (data.contains("unsteppable")) made.unsteppable = read_text(data["unsteppable"], "unsteppable");
    if (data.contains("relations")) made.num_relations = read_list(data["relations"], "relations").size();
    if (const auto& files = find_field(data, "files"); !files.is_null()) read_files(files, made.files);
    made.check();
    return made;
  }

  static void read_files(const Json& data, std::map<std::string, FileEntry>& files) {
    if (!data.is_object()) detail::misfit("object", data, "files");
    for (const auto& item : data.items()) {
      const auto& entry = detail::expect_fields(item.value(), "files[...]", {"size", "sha256"}, {});
      const auto size = detail::read_integer(entry["size"], "files[...].size");
      if (size < 0 || size >= std::int64_t{1} << 40 || !detail::is_plain_name(item.key()))
        throw detail::Misfit{"its files have '" + item.key() + "' of " + std::to_string(size) + " bytes"};
      files[item.key()] = {size, detail::read_sha256(entry["sha256"], "files[...].sha256", false)};
    }
  }

  void check() const {
    std::set<std::string> names, sizes, kinds(precisions.begin(), precisions.end());
    for (const auto& input : inputs) names.insert(input.name);
    for (const auto& symbol : symbols) sizes.insert(symbol.name);
    if (names.size() < inputs.size() || names.count("") || sizes.size() < symbols.size() || sizes.count(""))
      throw detail::Misfit{"it has an input or symbol without a name, or two of one name"};
    if (inputs.size() < 2 || inputs[0].axes.size() < 2 || inputs[1].axes.empty())
      throw detail::Misfit{"its inputs do not begin with latents and a timestep of shape (batch,)"};
    if (unsteppable.empty() && inputs[1].axes.size() != 1)
      throw detail::Misfit{"its timestep is not of shape (batch,), which a solver gives"};
    if (unsteppable.empty() && output.axes != inputs[0].axes)
      throw detail::Misfit{"its output has other axes than the latents"};
    for (const auto& tensor : {inputs, {output}})
      for (const auto& one : tensor)
        for (const auto& axis : one.axes)
          if (const auto* name = std::get_if<std::string>(&axis); name && !sizes.count(*name))
            throw detail::Misfit{"it has no symbol " + *name};
    if (precisions.empty() || kinds.size() < precisions.size())
      throw detail::Misfit{"it has no graph, or two of one precision"};
    for (const auto& kind : precisions)
      if (!files.count("graphs/" + kind + "/denoiser.onnx"))
        throw detail::Misfit{"its files lack graphs/" + kind + "/denoiser.onnx"};
    if (!files.count("scheduler/scheduler_config.json"))
      throw detail::Misfit{"its files lack scheduler/scheduler_config.json"};
  }
};

}  // namespace zeus_trt
