// Sampling programs: solver, step plan and predictor of a trajectory as one table of numbers.
#pragma once

#include <zeus_trt/zeus_trt_file.hpp>

#include <algorithm>
#include <charconv>

namespace zeus_trt {

namespace detail {

// A number as Python writes it: fingerprints are digests of that text.
inline std::string write_number(double value) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  std::string written(text, end);
  const int power = std::stoi(written.substr(written.find('e') + 1));
  if (power < -4 || power >= 16) return written;
  end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr;
  written.assign(text, end);
  return written.find('.') == written.npos ? written + ".0" : written;
}

inline void write_json(const Json& data, bool as_float, std::string& out) {
  if (data.is_object() || data.is_array()) {
    out += data.is_object() ? '{' : '[';
    for (auto item = data.begin(); item != data.end(); ++item) {
      if (item != data.begin()) out += ", ";
      if (data.is_object()) out += Json(item.key()).dump(-1, ' ', true) + ": ";
      write_json(*item, as_float, out);
    }
    out += data.is_object() ? '}' : ']';
  } else {
    out += data.is_number_float() || (as_float && data.is_number()) ? write_number(data.get<double>())
                                                                    : data.dump(-1, ' ', true);
  }
}

}  // namespace detail

// Row-major, finite.
struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;
};

// Solver, step plan and predictor in one table of numbers. Full step k calls the denoiser at `timesteps[k]`, and its
// output o gives [next state; next input] = matrices[k] [state; o]. The state begins as the noise times
// `init_noise_sigma`; the first input is that times `first_input`. The last matrix has one row: the result.
struct SamplingProgram {
  std::vector<std::size_t> steps;  // index of every full step among the evaluations
  std::vector<double> timesteps;
  std::vector<Matrix> matrices;
  double first_input = 1, init_noise_sigma = 1;
  std::string plan, predictor, solver, fingerprint;  // `predictor` is its name

  static constexpr std::size_t most_latents = 1024;

  std::size_t nfe() const noexcept { return steps.size(); }
  std::size_t num_latents() const noexcept {
    std::size_t most = 0;
    for (const auto& matrix : matrices) most = std::max(most, matrix.columns - 1);
    return most;
  }

  // Reads what SamplingProgram.to_json() wrote, and checks its fingerprint.
  static Result<SamplingProgram> parse(std::string_view text) noexcept {
    return detail::at_border<SamplingProgram>([&] { return read(text); });
  }

  static Result<SamplingProgram> load(const std::string& path) noexcept {
    return detail::at_border<SamplingProgram>([&] { return read(detail::read_file(path, thing, advice)); });
  }

 private:
  static constexpr auto* thing = "sampling program";
  static constexpr auto* advice = "Check the path, or make the sampling program again.";

  static Error refuse(const std::string& reason) {
    return detail::refuse(thing, "malformed content (" + reason + ")", "a sampling program", "Fold it again.");
  }

  static SamplingProgram read(std::string_view text) {
    const auto data = detail::decode(text, thing, advice);
    detail::check_format(data, 1, thing, "make the sampling program again.");
    std::set<std::string> wrong = {"steps", "timesteps", "matrices", "first_input", "init_noise_sigma",
                                   "plan",  "predictor", "solver",   "fingerprint", "format"};
    for (const auto& item : data.items())
      if (!wrong.erase(item.key())) wrong.insert(item.key());
    std::string names;
    for (const auto& name : wrong) names += (names.empty() ? "" : ", ") + name;
    if (!names.empty()) throw refuse("it lacks a field, or has another: " + names);
    try {
      return build(data);
    } catch (const detail::Misfit& misfit) {
      throw detail::refuse(thing, "JSON that does not fit (" + misfit.reason + ")", "a sampling program",
                           "Fold it again.");
    }
  }

  static SamplingProgram build(const detail::Json& data) {
    using namespace detail;
    SamplingProgram made;
    made.plan = read_text(data["plan"], "plan");
    for (const auto& step : read_list(data["steps"], "steps"))
      made.steps.push_back(static_cast<std::size_t>(read_integer(step, name_item("steps", made.steps.size()))));
    for (const auto& timestep : read_list(data["timesteps"], "timesteps"))
      made.timesteps.push_back(read_number(timestep, name_item("timesteps", made.timesteps.size())));
    for (const auto& rows : read_list(data["matrices"], "matrices"))
      made.matrices.push_back(read_matrix(rows, made.matrices.size()));
    made.first_input = read_number(data["first_input"], "first_input");
    made.init_noise_sigma = read_number(data["init_noise_sigma"], "init_noise_sigma");
    made.solver = read_text(data["solver"], "solver");
    const auto& predictor = data["predictor"];
    if (!predictor.is_object()) misfit("object", predictor, "predictor");
    if (!predictor.contains("name") || predictor.size() > 1 + predictor.count("rows"))
      throw refuse("its predictor lacks a name, or has another field");
    made.predictor = read_text(predictor["name"], "predictor.name");
    made.check();
    Json content = data;
    content.erase("fingerprint");
    std::string written;
    for (auto item = content.begin(); item != content.end(); ++item) {
      written += (written.empty() ? "{\"" : ", \"") + item.key() + "\": ";
      const auto& name = item.key();
      write_json(*item, name != "format" && name != "steps" && name != "predictor", written);
    }
    made.fingerprint = sha256(written + "}");
    if (data["fingerprint"] != made.fingerprint) throw refuse("its fingerprint is that of another program");
    return made;
  }

  static std::string name_item(const char* list, std::size_t index) {
    return list + ("[" + std::to_string(index)) + "]";
  }

  static Matrix read_matrix(const detail::Json& rows, std::size_t index) {
    Matrix made;
    const auto fail = [&] { throw refuse("entry " + std::to_string(index) + " is no finite array of 2 dimensions"); };
    if (!rows.is_array() || rows.empty() || !rows[0].is_array() || rows[0].empty()) fail();
    made.rows = rows.size(), made.columns = rows[0].size();
    for (const auto& row : rows) {
      if (!row.is_array() || row.size() != made.columns) fail();
      for (const auto& value : row) {
        if (!value.is_number()) fail();
        made.values.push_back(value.get<double>());
      }
    }
    return made;
  }

  static std::vector<std::size_t> find_full_steps(const std::string& plan) {
    const auto refuse = [](std::size_t step, char found, const char* expected, const char* advice) {
      throw detail::refuse("plan", std::string(1, found) + " at step " + std::to_string(step), expected, advice);
    };
    std::vector<std::size_t> full;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (plan[i] == 'F' || plan[i] == 'Q')
        full.push_back(i);
      else if (plan[i] != 'X' && plan[i] != 'R')
        refuse(i, plan[i], "the letters F (full), Q (quantized), X (extrapolate) and R (reuse)", "Fold it again.");
      else if (full.empty())
        refuse(i, plan[i], "F", "Nothing can be predicted before the denoiser ran.");
      else if (plan[i] == 'X' && full.size() < 2)
        refuse(i, 'X', "two full steps before the first X", "Extrapolation needs two outputs: begin with FF.");
    }
    if (full.empty() || full.back() + 1 != plan.size())
      throw detail::refuse("plan", "no F as the last step", "F", "The last step sets the finest detail: run it.");
    return full;
  }

  void check() const {
    if (steps != find_full_steps(plan)) throw refuse("its steps are not the full steps of its plan");
    if (timesteps.size() != steps.size() || matrices.size() != steps.size()) throw refuse("its lists differ in length");
    std::size_t rows = 2;
    for (std::size_t k = 0; k < matrices.size(); rows = matrices[k++].rows)
      if (matrices[k].columns != rows || rows < 2)
        throw refuse("the shape of full step " + std::to_string(k) + " does not follow from those before");
    if (rows != 1) throw refuse("the last matrix has more than one row");
    if (num_latents() > most_latents) throw refuse("it keeps more than " + std::to_string(most_latents) + " latents");
  }
};

}  // namespace zeus_trt
