// What the headers of zeus-trt share: errors as values, strict JSON, digests.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace zeus_trt {

// What went wrong, as one sentence: "<thing>: got <x>; expected <y>. <what to do>."
struct Error {
  enum class Kind { input, memory, cancelled, denoiser };
  Kind kind;
  std::string message;
};

// A value, or why there is none. Reading the value of an error is a fault of the caller.
template <class T>
class [[nodiscard]] Result {
 public:
  template <class U, class = std::enable_if_t<std::is_convertible_v<U&&, T> && !std::is_convertible_v<U&&, Error>>>
  Result(U&& value) : content_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Error error) : content_(std::move(error)) {}
  explicit operator bool() const noexcept { return content_.index() == 0; }
  T& operator*() noexcept { return *value(); }
  const T& operator*() const noexcept { return *const_cast<Result*>(this)->value(); }
  T* operator->() noexcept { return value(); }
  const T* operator->() const noexcept { return const_cast<Result*>(this)->value(); }
  const Error& error() const noexcept {
    assert(!*this);
    return *std::get_if<1>(&content_);
  }

 private:
  T* value() noexcept {
    assert(*this);
    return std::get_if<0>(&content_);
  }
  std::variant<T, Error> content_;
};

struct Done {};
using Status = Result<Done>;

namespace detail {

using Json = nlohmann::json;

// Why a field does not fit; thrown and caught inside.
struct Misfit {
  std::string reason;
};

inline std::string escape(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    char hex[5];
    std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned>(code));
    out += code >= 0x20 && code < 0x7f ? std::string(1, letter) : std::string(hex);
  }
  constexpr std::size_t longest = 4000;
  return out.size() <= longest ? out : out.substr(0, longest / 2) + " [...] " + out.substr(out.size() - longest / 4);
}

inline Error refuse(std::string_view thing, std::string_view got, std::string_view expected, std::string_view advice,
                    Error::Kind kind = Error::Kind::input) {
  std::string text;
  for (const auto part : {thing, std::string_view(": got "), got, std::string_view("; expected "), expected,
                          std::string_view(". "), advice})
    text += part;
  return {kind, escape(text)};
}

// Calls `body` and gives what it returns or throws as a value.
template <class T, class Body>
Result<T> at_border(Body&& body) noexcept {
  try {
    return body();
  } catch (Error& error) {
    return std::move(error);
  } catch (const std::bad_alloc&) {
    return refuse("memory", "too little", "more", "Ask for less at once.", Error::Kind::memory);
  } catch (const std::exception& error) {
    return refuse("zeus-trt", error.what(), "no such error, which is a fault of zeus-trt", "Report it.");
  }
}

// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256 {
 public:
  void add(const char* data, std::size_t size) noexcept {
    total_ += size;
    while (size) {
      const std::size_t count = std::min(size, sizeof block_ - filled_);
      std::memcpy(block_ + filled_, data, count);
      filled_ += count, data += count, size -= count;
      if (filled_ == sizeof block_) mix();
    }
  }

  std::string hex() {
    const std::uint64_t bits = total_ * 8;
    add("\x80", 1);
    while (filled_ != 56) add("", 1);
    char end[8];
    for (int i = 0; i < 8; ++i) end[i] = static_cast<char>(bits >> (56 - 8 * i) & 0xff);
    add(end, 8);
    char text[65];
    for (std::size_t i = 0; i < 8; ++i) std::snprintf(text + 8 * i, 9, "%08x", static_cast<unsigned>(h_[i]));
    return text;
  }

 private:
  static std::uint32_t turn(std::uint32_t x, int n) noexcept { return (x >> n) | (x << (32 - n)); }

  void mix() noexcept {
    static constexpr std::uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i)
      w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 |
             std::uint32_t{block_[4 * i + 2]} << 8 | std::uint32_t{block_[4 * i + 3]};
    for (int i = 16; i < 64; ++i)
      w[i] = w[i - 16] + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >> 3)) +
             (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >> 10));
    std::uint32_t s[8];
    std::copy(h_, h_ + 8, s);
    for (int i = 0; i < 64; ++i) {
      const auto one =
          s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const auto two =
          (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      std::copy_backward(s, s + 7, s + 8);
      s[4] += one, s[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) h_[i] += s[i];
    filled_ = 0;
  }

  std::uint32_t h_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[64] = {};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

inline std::string sha256(std::string_view text) {
  Sha256 digest;
  digest.add(text.data(), text.size());
  return digest.hex();
}

// Finds what strict JSON does not have: repeated keys, numbers beyond 64 bits, and nesting deeper than 64 levels.
class Strictness final : public nlohmann::json_sax<Json> {
 public:
  std::string fault;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    return value <= INT64_MAX || fail("the integer " + std::to_string(value) + " has more than 64 bits");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return text.find_first_of(".eE") != text.npos ||
           fail("the integer " + text.substr(0, 20) + " has more than 64 bits");
  }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    return keys_.back().insert(name).second || fail("the key '" + name + "' is repeated");
  }
  bool parse_error(std::size_t, const std::string& token, const nlohmann::detail::exception& error) override {
    return fail(error.id == 406 ? "the number " + token.substr(0, 20) + " is not finite" : error.what());
  }

 private:
  bool fail(std::string reason) {
    fault = std::move(reason);
    return false;
  }
  bool enter() {
    keys_.emplace_back();
    return keys_.size() <= 64 || fail("it is nested deeper than 64 levels");
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }
  std::vector<std::set<std::string>> keys_;
};

constexpr std::size_t largest_file = std::size_t{1} << 24;  // bytes

inline Json decode(std::string_view text, const char* thing, const char* advice) {
  Strictness strict;
  if (text.size() > largest_file)
    strict.fault = "it has more than " + std::to_string(largest_file) + " bytes";
  else if (text.find('\0') != text.npos || text.substr(0, 3) == "\xef\xbb\xbf")  // the parser would end or begin there
    strict.fault = "it has a NUL or a byte order mark";
  else
    Json::sax_parse(text.begin(), text.end(), &strict);
  if (!strict.fault.empty()) throw refuse(thing, "text that is no strict JSON (" + strict.fault + ")", "JSON", advice);
  return Json::parse(text.begin(), text.end());
}

inline std::string read_file(const std::string& path, const char* thing, const char* advice) {
  std::ifstream file(path, std::ios::binary);
  std::string text(largest_file + 1, '\0');
  if (!file || !file.read(text.data(), static_cast<std::streamsize>(text.size())).eof() || file.bad()) {
    const bool is_large = file.good();
    throw is_large ? refuse(thing, path + " of more than " + std::to_string(largest_file) + " bytes",
                            "at most " + std::to_string(largest_file), advice)
                   : refuse(thing, path + ", which cannot be read", "a file", advice);
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

inline void check_format(const Json& data, int expected, const char* thing, const char* advice) {
  const Json found = data.is_object() && data.contains("format") ? data["format"] : Json();
  if (found.is_number_integer() && found == expected) return;
  const std::string said = found.is_null() ? "None" : found.is_string() ? found.get<std::string>() : found.dump();
  throw refuse(thing, "format " + said, std::to_string(expected), std::string("Update zeus-trt, or: ") + advice);
}

[[noreturn]] inline void misfit(const char* expected, const Json& found, const std::string& where) {
  const char* kind = found.is_boolean() ? "bool" : found.type_name();
  if (found.is_string()) kind = "str";
  if (found.is_number()) kind = found.is_number_float() ? "float" : "int";
  throw Misfit{std::string("Expected ") + expected + ", got " + kind + " - at " + where};
}

inline const std::string& read_text(const Json& data, const std::string& where) {
  if (!data.is_string()) misfit("str", data, where);
  return data.get_ref<const std::string&>();
}

inline std::int64_t read_integer(const Json& data, const std::string& where) {
  if (!data.is_number_integer()) misfit("int", data, where);
  return data.get<std::int64_t>();
}

inline double read_number(const Json& data, const std::string& where) {
  if (!data.is_number()) misfit("float", data, where);
  return data.get<double>();
}

inline const Json& read_list(const Json& data, const std::string& where) {
  if (!data.is_array()) misfit("array", data, where);
  return data;
}

// An object whose fields are all known; `optional` ones may be missing.
inline const Json& expect_fields(const Json& data, const std::string& where,
                                 std::initializer_list<const char*> required,
                                 std::initializer_list<const char*> optional) {
  if (!data.is_object()) misfit("object", data, where);
  std::size_t found = 0;
  for (const char* name : required)
    if (!data.contains(name)) throw Misfit{std::string("Object missing required field ") + name + " - at " + where};
  for (const auto names : {required, optional})
    for (const char* name : names) found += data.count(name);
  if (found == data.size()) return data;
  for (const auto& item : data.items()) {
    const auto is_name = [&](const char* name) { return item.key() == name; };
    if (std::none_of(required.begin(), required.end(), is_name) &&
        std::none_of(optional.begin(), optional.end(), is_name))
      throw Misfit{"unknown field " + where + "." + item.key()};
  }
  return data;
}

inline const Json& find_field(const Json& data, const char* name) {
  static const Json none;
  const auto found = data.find(name);
  return found == data.end() ? none : *found;
}

inline std::int64_t read_size(const Json& data, const std::string& where) {
  const auto size = read_integer(data, where);
  if (size < 1 || size >= std::int64_t{1} << 31) throw Misfit{where + " has the size " + std::to_string(size)};
  return size;
}

inline std::string read_sha256(const Json& data, const std::string& where, bool may_be_empty) {
  const auto text = read_text(data, where);
  const bool is_hex = text.find_first_not_of("0123456789abcdef") == text.npos;
  if (!is_hex || (text.size() != 64 && !(may_be_empty && text.empty()))) throw Misfit{where + " is no SHA-256"};
  return text;
}

// A relative path in its shortest form, inside its folder on any system.
inline bool is_plain_name(const std::string& name) {
  if (name.empty() || name.size() > 250 || name.find_first_of("\\:*?\"<>|\x7f") != name.npos) return false;
  for (std::size_t begin = 0; begin <= name.size();) {
    const auto end = std::min(name.find('/', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.front() == ' ' || part.back() == ' ') return false;
    begin = end + 1;
  }
  return std::none_of(name.begin(), name.end(), [](char letter) { return static_cast<unsigned char>(letter) < 0x20; });
}

}  // namespace detail

}  // namespace zeus_trt
