// The CUDA space beside the host, on a denoiser that is the same on both.   cuda PROGRAM   (77: there is no device)
#include <zeus_trt/zeus_trt_cuda.cuh>

#include <iostream>

__global__ void denoise(const float* latents, const float* timesteps, float* output, std::size_t rows,
                        std::size_t size) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < rows * size) output[i] = 0.8f * latents[i] + timesteps[i / size] / 4096;
}

using zeus_trt::Call;
using zeus_trt::Cuda;
using zeus_trt::View;

int main(int, char** values) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 77;
  const auto program = zeus_trt::SamplingProgram::load(values[1]);
  const std::size_t rows = 2, size = 1000, count = rows * size;
  std::vector<float> noise(count), output(2 * count), found(count);
  for (std::size_t i = 0; i < count; ++i) noise[i] = std::sin(static_cast<float>(i));
  const auto on_host = [&](const Call<float>& call) {
    for (std::size_t i = 0; i < call.rows * size; ++i)
      output[i] = 0.8f * call.latents[i] + call.timesteps[i / size] / 4096;
    return View<const float>(output.data(), call.rows * size);
  };
  Cuda space;
  cudaStreamCreate(&space.stream);
  float* buffers = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&buffers), 3 * count * sizeof(float));
  cudaMemcpy(buffers, noise.data(), count * sizeof(float), cudaMemcpyHostToDevice);
  const auto on_device = [&](const Call<float>& call) {
    denoise<<<64, 256, 0, space.stream>>>(call.latents, call.timesteps, buffers + count, call.rows, size);
    return View<const float>(buffers + count, call.rows * size);
  };
  for (const double scale : {1.0, 2.5}) {
    auto host = zeus_trt::Stepper<float>::make(*program, noise, rows);
    auto device = zeus_trt::Stepper<float, Cuda>::make(*program, {buffers, count}, rows, space);
    auto host_guidance = zeus_trt::ClassifierFreeGuidance<float>::make(scale, rows, size);
    auto device_guidance = zeus_trt::ClassifierFreeGuidance<float, Cuda>::make(scale, rows, size, space);
    const auto expected = zeus_trt::run(*host, host_guidance->wrap(on_host));
    const auto made = zeus_trt::run(*device, device_guidance->wrap(on_device));
    if (!expected || !made) return std::cout << (made ? expected : made).error().message << "\n", 1;
    cudaMemcpy(found.data(), made->data, count * sizeof(float), cudaMemcpyDeviceToHost);
    float most = 0, error = 0;
    for (std::size_t i = 0; i < count; ++i) {
      most = std::max(most, std::abs(expected->data[i]));
      error = std::max(error, std::abs(found[i] - expected->data[i]));
    }
    std::cout << "relative error " << error / most << "\n";
    if (!(error < 1e-6f * most)) return 1;
  }
  auto bad = zeus_trt::Stepper<float, Cuda>::make(*program, {buffers, count}, rows, space);
  cudaMemset(buffers + count, 0xff, count * sizeof(float));  // NaN
  const auto refused =
      zeus_trt::run(*bad, [&](const Call<float>&) { return View<const float>(buffers + count, count); });
  std::cout << (refused ? "no error" : refused.error().message) << "\n";
  return refused || refused.error().message.find("NaN or infinity at full step 0") == std::string::npos;
}
