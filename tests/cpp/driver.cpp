// Runs trajectories whose denoiser is at the other end of the pipe: writes each call to stdout, reads its output from
// stdin.   driver PROGRAM NOISE ROWS GUIDANCE_SCALE TRAJECTORIES float|double
#include <zeus_trt/zeus_trt.hpp>

#include <fstream>
#include <iostream>
#include <iterator>
#include <mutex>
#include <thread>

namespace {

enum Kind : std::int32_t { call, result, error, quantized_call };
std::mutex pipe;

void write(Kind kind, std::size_t trajectory, std::size_t rows, const void* data, std::size_t bytes) {
  const std::int64_t head[] = {kind, static_cast<std::int64_t>(trajectory), static_cast<std::int64_t>(rows),
                               static_cast<std::int64_t>(bytes)};
  std::cout.write(reinterpret_cast<const char*>(head), sizeof head);
  std::cout.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

template <class T>
zeus_trt::Result<zeus_trt::View<const T>> run(const zeus_trt::SamplingProgram& program, zeus_trt::View<const T> noise,
                                              std::size_t rows, double scale, std::size_t trajectory,
                                              std::vector<T>& latents) {
  std::vector<T> output;
  const auto ask = [&](Kind kind, const zeus_trt::Call<T>& asked) {
    const std::lock_guard lock(pipe);
    const auto input = asked.input();
    write(kind, trajectory, asked.rows, input.data, input.size * sizeof(T));
    std::cout.write(reinterpret_cast<const char*>(asked.timesteps),
                    static_cast<std::streamsize>(asked.rows * sizeof(float)));
    std::cout.flush();
    output.resize(input.size);
    std::cin.read(reinterpret_cast<char*>(output.data()), static_cast<std::streamsize>(input.size * sizeof(T)));
    output.resize(static_cast<std::size_t>(std::cin.gcount()) / sizeof(T));
    return zeus_trt::View<const T>(output);
  };
  const auto full = [&](const zeus_trt::Call<T>& asked) { return ask(call, asked); };
  const auto quantized = [&](const zeus_trt::Call<T>& asked) { return ask(quantized_call, asked); };
  zeus_trt::EnginePair denoiser(full, quantized);
  auto stepper = zeus_trt::Stepper<T>::make(program, noise, rows);
  if (!stepper) return stepper.error();
  auto guidance = zeus_trt::ClassifierFreeGuidance<T>::make(scale, rows, noise.size / rows);
  if (!guidance) return guidance.error();
  auto made =
      std::abs(scale - 1) > 0 ? zeus_trt::run(*stepper, guidance->wrap(denoiser)) : zeus_trt::run(*stepper, denoiser);
  if (made) latents.assign(made->data, made->data + made->size);
  return made;
}

template <class T>
int run_all(const std::vector<std::string>& arguments) {
  const auto program = zeus_trt::SamplingProgram::load(arguments[1]);
  if (!program) return write(error, 0, 0, program.error().message.data(), program.error().message.size()), 1;
  std::ifstream file(arguments[2], std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::vector<T> noise(bytes.size() / sizeof(T));
  std::memcpy(noise.data(), bytes.data(), noise.size() * sizeof(T));
  const std::size_t rows = std::stoul(arguments[3]);
  std::vector<std::thread> threads;
  for (std::size_t trajectory = 0; trajectory < std::stoul(arguments[5]); ++trajectory)
    threads.emplace_back([&, trajectory] {
      std::vector<T> latents;
      const auto made = run<T>(*program, noise, rows, std::stod(arguments[4]), trajectory, latents);
      const std::lock_guard lock(pipe);
      if (made)
        write(result, trajectory, rows, latents.data(), latents.size() * sizeof(T));
      else
        write(error, trajectory, rows, made.error().message.data(), made.error().message.size());
      std::cout.flush();
    });
  for (auto& thread : threads) thread.join();
  return 0;
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values, values + count);
  return count == 7 ? (arguments[6] == "double" ? run_all<double> : run_all<float>)(arguments) : 2;
}
