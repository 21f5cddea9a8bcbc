// The record of a compiled engine, engine.json: which file it is, and which shapes it takes.
#pragma once

#include <zeus_trt/zeus_trt_manifest.hpp>

namespace zeus_trt {

// Smallest and largest shape of an input.
struct ShapeRange {
  std::vector<std::int64_t> min, max;
};

struct EngineRecord {
  std::string backend, backend_version, precision, file, sha256;
  std::int64_t size = 0;
  std::map<std::string, ShapeRange> profile;  // by input

  // Reads the engine.json of a folder, and checks size and SHA-256 of the engine beside it. The digest finds accidental
  // changes. An engine is native code: load none that somebody else could have put there.
  static Result<EngineRecord> load(const std::string& folder) noexcept {
    return detail::at_border<EngineRecord>([&] {
      EngineRecord made = read(detail::read_file(folder + "/engine.json", thing, advice));
      made.check_file(folder + "/" + made.file);
      return made;
    });
  }

  static Result<EngineRecord> parse(std::string_view text) noexcept {
    return detail::at_border<EngineRecord>([&] { return read(text); });
  }

  // Refuses a step of the letter Q for an engine that is not quantized: it would compute something else.
  Status check_letter(char letter) const noexcept {
    return detail::at_border<Done>([&]() -> Done {
      if (letter == 'Q' && precision != "int8" && precision != "fp8")
        throw detail::refuse("plan", "Q for an engine in " + precision, "an EnginePair of it and a quantized one",
                             "Give both engines, or fold a plan without Q.");
      return {};
    });
  }

  // Refuses a shape that the engine was not built for: it might run, and compute something else.
  Status check_shape(const std::string& input, const std::vector<std::int64_t>& shape) const noexcept {
    return detail::at_border<Done>([&]() -> Done {
      const auto known = profile.find(input);
      if (known == profile.end())
        throw detail::refuse("engine", "the input " + input, "one of its profile", "Build the engine again.");
      const auto& range = known->second;
      bool fits = shape.size() == range.min.size();
      std::string found, takes;
      for (std::size_t i = 0; i < range.min.size(); ++i) {
        const auto low = std::to_string(range.min[i]), high = std::to_string(range.max[i]);
        takes += (i ? "x" : "") + (low == high ? low : low + ".." + high);
        fits = fits && range.min[i] <= shape[i] && shape[i] <= range.max[i];
      }
      for (std::size_t i = 0; i < shape.size(); ++i) found += (i ? "x" : "") + std::to_string(shape[i]);
      if (!fits)
        throw detail::refuse(input, "the shape " + found, takes + ", which this engine was built for",
                             "Build an engine with a wider range.");
      return {};
    });
  }

 private:
  static constexpr auto* thing = "engine.json";
  static constexpr auto* advice = "Build the engine again.";

  static EngineRecord read(std::string_view text) {
    const auto data = detail::decode(text, thing, advice);
    detail::check_format(data, 2, thing, advice);
    try {
      return build(data);
    } catch (const detail::Misfit& misfit) {
      throw detail::refuse(thing, "JSON that does not fit (" + misfit.reason + ")", "an engine.json", advice);
    }
  }

  static EngineRecord build(const detail::Json& data) {
    using namespace detail;
    expect_fields(data, "engine", {"format", "spec", "file", "size", "sha256"}, {"build_seconds", "signature"});
    const auto& spec = expect_fields(
        data["spec"], "spec",
        {"backend", "backend_version", "precision", "profile", "target", "graph_sha256", "weights_sha256"},
        {"options", "exporter_version"});
    EngineRecord made;
    made.backend = read_text(spec["backend"], "spec.backend");
    made.backend_version = read_text(spec["backend_version"], "spec.backend_version");
    made.precision = read_text(spec["precision"], "spec.precision");
    if (!spec["profile"].is_object()) misfit("object", spec["profile"], "spec.profile");
    for (const auto& item : spec["profile"].items()) {
      const auto& range = expect_fields(item.value(), "spec.profile", {"min", "opt", "max"}, {});
      made.profile[item.key()] = {read_shape(range["min"]), read_shape(range["max"])};
      if (range["opt"].size() != range["min"].size() || range["max"].size() != range["min"].size())
        throw Misfit{item.key() + " has shapes of different axes"};
    }
    made.file = read_text(data["file"], "file");
    made.size = read_integer(data["size"], "size");
    made.sha256 = read_sha256(data["sha256"], "sha256", false);
    if (!is_plain_name(made.file) || made.file.find('/') != made.file.npos || made.size < 0)
      throw Misfit{"its file is '" + made.file + "' of " + std::to_string(made.size) + " bytes"};
    return made;
  }

  static std::vector<std::int64_t> read_shape(const detail::Json& data) {
    std::vector<std::int64_t> made;
    for (const auto& size : detail::read_list(data, "spec.profile"))
      made.push_back(detail::read_integer(size, "spec.profile"));
    return made;
  }

  void check_file(const std::string& path) const {
    std::ifstream stream(path, std::ios::binary);
    detail::Sha256 digest;
    std::int64_t found = 0;
    std::vector<char> piece(std::size_t{1} << 20);
    while (stream.read(piece.data(), static_cast<std::streamsize>(piece.size())) || stream.gcount()) {
      digest.add(piece.data(), static_cast<std::size_t>(stream.gcount()));
      found += stream.gcount();
    }
    if (found != size || digest.hex() != sha256)
      throw detail::refuse("engine", path + " with other content (" + std::to_string(found) + " bytes)",
                           std::to_string(size) + " bytes, SHA-256 " + sha256.substr(0, 12) + "...",
                           "Copy the folder again, or build the engine again.");
  }
};

}  // namespace zeus_trt
