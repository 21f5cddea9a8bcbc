// Reads mutated sampling programs and manifests: each is refused in one sentence, or is read and runs.
//     mutate PROGRAM MANIFEST ROUNDS SEED
#include <zeus_trt/zeus_trt.hpp>
#include <zeus_trt/zeus_trt_manifest.hpp>

#include <iostream>
#include <random>

namespace {

using Json = nlohmann::json;
std::mt19937_64 random_bits;

std::size_t draw(std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_bits);
}

const std::string& draw_token() {
  static const std::vector<std::string> tokens = {"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "\"",
                                                  "null",
                                                  "true",
                                                  "NaN",
                                                  "-Infinity",
                                                  "1e999",
                                                  "1e-999",
                                                  "0",
                                                  "-0",
                                                  "9223372036854775808",
                                                  "-9223372036854775809",
                                                  "99999999999999999999",
                                                  "1e9",
                                                  "\\ud800",
                                                  "\xff",
                                                  "\xc3",
                                                  "\xef\xbb\xbf",
                                                  std::string(1, '\0'),
                                                  "\"steps\": 1,",
                                                  "\"format\": 2,",
                                                  "-1",
                                                  "4294967296",
                                                  "\n",
                                                  std::string(70, '['),
                                                  "[[1.0, 2.0]]",
                                                  "[]",
                                                  "{}",
                                                  "\"\"",
                                                  "1.5",
                                                  "FXR",
                                                  "\\u0000",
                                                  "../",
                                                  "/",
                                                  "batch"};
  return tokens[draw(tokens.size())];
}

// Changes bytes: most are no JSON any more.
std::string change_text(std::string text) {
  for (std::size_t i = 0, count = 1 + draw(4); i < count && !text.empty(); ++i) {
    const auto place = draw(text.size()), length = std::min(1 + draw(20), text.size() - place);
    switch (draw(5)) {
      case 0:
        text[place] = static_cast<char>(draw(256));
        break;
      case 1:
        text.erase(place, length);
        break;
      case 2:
        text.insert(place, draw_token());
        break;
      case 3:
        text.replace(place, length, draw_token());
        break;
      default:
        text.insert(place, text.substr(draw(text.size()), length));
        break;
    }
  }
  return text;
}

// Changes a value somewhere inside: still JSON.
void change_value(Json& data) {
  if (data.is_structured() && !data.empty() && draw(8)) {
    auto item = data.begin();
    std::advance(item, static_cast<std::ptrdiff_t>(draw(data.size())));
    if (draw(12)) return change_value(*item);
    if (draw(2)) return void(data.erase(item));
    if (data.is_array()) return data.push_back(Json(*item));
    data[item.key() + "x"] = Json(*item);
    return;
  }
  static const std::vector<Json> values = {
      nullptr,   true, 0,   -1,      1,        2,      1.5,           -0.0,           1e300,        1e-300,  INT64_MAX,
      INT64_MIN, "",   "F", "FFXRF", "\n\x7f", "../x", Json::array(), Json::object(), {{1.0, 2.0}}, {1, {2}}};
  data = values[draw(values.size())];
}

// Gives a changed program or manifest the digest of its new content, so that the checks after it run.
std::string seal_program(Json data) {
  data.erase("fingerprint");
  std::string text;
  for (auto item = data.begin(); item != data.end(); ++item) {
    text += (text.empty() ? "{\"" : ", \"") + item.key() + "\": ";
    zeus_trt::detail::write_json(*item, item.key() != "format" && item.key() != "steps" && item.key() != "predictor",
                                 text);
  }
  data["fingerprint"] = zeus_trt::detail::sha256(text + "}");
  return data.dump();
}

std::string seal_manifest(Json data) {
  const std::string zeros(64, '0');
  data["manifest_sha256"] = zeros;
  auto text = data.dump();
  const auto place = text.find("\"manifest_sha256\":\"" + zeros);
  return text.replace(place + 19, 64, zeus_trt::detail::sha256(text));
}

bool is_sentence(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char letter) { return letter >= 0x20 && letter < 0x7f; });
  return plain && text.find(": got ") != text.npos && text.find("; expected ") != text.npos && text.back() == '.';
}

template <class T>
bool judge(const zeus_trt::Result<T>& made, const std::string& text, std::size_t& accepted) {
  if (made) return ++accepted, true;
  if (is_sentence(made.error().message)) return true;
  std::cout << "no sentence: " << made.error().message << "\n" << text << "\n";
  return false;
}

bool read_program(const std::string& text, std::size_t& accepted) {
  const auto program = zeus_trt::SamplingProgram::parse(text);
  if (!judge(program, text, accepted)) return false;
  if (!program) return true;
  const std::vector<float> noise(24, 1.0f);
  auto stepper = zeus_trt::Stepper<float>::make(*program, noise, 2);
  if (!stepper) return is_sentence(stepper.error().message);
  const auto latents = zeus_trt::run(*stepper, [](const zeus_trt::Call<float>& call) { return call.input(); });
  return latents || is_sentence(latents.error().message);
}

bool read_manifest(const std::string& text, std::size_t& accepted) {
  return judge(zeus_trt::Manifest::parse(text), text, accepted);
}

}  // namespace

int main(int count, char** values) {
  if (count != 5) return 2;
  const auto program = zeus_trt::detail::read_file(values[1], "program", ""),
             manifest = zeus_trt::detail::read_file(values[2], "manifest", "");
  random_bits.seed(std::stoull(values[4]));
  std::size_t accepted = 0;
  const auto rounds = std::stoul(values[3]);
  for (std::size_t round = 0; round < rounds; ++round) {
    const bool is_program = draw(2) == 0;
    const auto& text = is_program ? program : manifest;
    std::string changed;
    if (draw(2)) {
      changed = change_text(text);
    } else {
      auto data = Json::parse(text);
      for (std::size_t i = 0, changes = 1 + draw(3); i < changes; ++i) change_value(data);
      changed = !data.is_object() || !draw(4) ? data.dump() : is_program ? seal_program(data) : seal_manifest(data);
    }
    if (!(is_program ? read_program : read_manifest)(changed, accepted)) return 1;
  }
  std::cout << rounds << " mutations, " << accepted << " still valid\n";
  return 0;
}
