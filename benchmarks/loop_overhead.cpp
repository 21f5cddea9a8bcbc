// Host time of the C++ loop on a denoiser that costs nothing: nanoseconds of each trajectory, a line each.
//     loop_overhead PROGRAM NUMBERS ROUNDS
#include <zeus_trt/zeus_trt.hpp>

#include <chrono>
#include <iostream>

int main(int count, char** values) {
  if (count != 4) return 2;
  const auto program = zeus_trt::SamplingProgram::load(values[1]);
  if (!program) return std::cerr << program.error().message << "\n", 1;
  const std::vector<float> noise(std::stoul(values[2]), 0.5f), output(noise.size(), 0.0f);
  auto stepper = zeus_trt::Stepper<float>::make(*program, noise, 1);
  if (!stepper) return std::cerr << stepper.error().message << "\n", 1;
  const auto denoiser = [&](const zeus_trt::Call<float>&) { return zeus_trt::View<const float>(output); };
  for (int round = 0, rounds = std::stoi(values[3]); round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (!stepper->restart(noise) || !zeus_trt::run(*stepper, denoiser)) return 1;
    std::cout << (std::chrono::steady_clock::now() - start).count() << "\n";
  }
}
