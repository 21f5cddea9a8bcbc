// Tensors on a CUDA device: Stepper<float, zeus_trt::Cuda>. An update is one kernel on a stream: it reads each latent
// of the state and the output once, and writes the new state and the next model input.
//
// Untested on a device: nvcc compiles it, and nothing ran it.
#pragma once

#include <zeus_trt/zeus_trt.hpp>

#include <cuda_runtime.h>

namespace zeus_trt {

namespace detail {

constexpr std::size_t most_on_device = 32;  // latents of a state: their addresses are arguments of the kernel

template <class T>
struct Addresses {
  const T* sources[most_on_device + 1];
  T* targets[most_on_device + 1];
};

// One number of each tensor; `N` sources in registers, or any number of them for 0.
template <int N, class T>
__global__ void update_numbers(Addresses<T> at, Update<T> job) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const int num_sources = N ? N : static_cast<int>(job.num_sources);
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < job.size; i += stride) {
    T values[N ? N : 1];
    const T output = at.sources[num_sources - 1][i];  // read before the last target, which may be the same memory
    if (!isfinite(output)) atomicMin(job.bad, job.step);
#pragma unroll
    for (int s = 0; s < N; ++s) values[s] = s + 1 < N ? at.sources[s][i] : output;
    T sample = 0;
    for (int t = 0; t < static_cast<int>(job.num_targets); ++t) {
      T sum = 0;
      if (t > 0 && t + 1 == static_cast<int>(job.num_targets) && job.scale != T(0)) {
        sum = job.scale * sample;
      } else {
        const T* weights = job.weights + t * num_sources;
#pragma unroll
        for (int s = 0; s < num_sources; ++s) {
          const T value = N ? values[N ? s : 0] : s + 1 < num_sources ? at.sources[s][i] : output;
          if (weights[s] != T(0)) sum = fma(weights[s], value, sum);
        }
      }
      if (t == 0) sample = sum;
      at.targets[t][i] = sum;
    }
  }
}

template <class T>
__global__ void check_numbers(const T* numbers, std::size_t count, int step, int* bad) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    if (!isfinite(numbers[i])) atomicMin(bad, step);
}

template <class T>
__global__ void guide_numbers(const T* negative, const T* positive, T scale, T* to, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
    to[i] = negative[i] + scale * (positive[i] - negative[i]);
}

}  // namespace detail

// Memory of the current device, and a stream of it. All work is enqueued; only `finish` waits, and says then which
// output was not finite. Faults of CUDA come to light there too.
struct Cuda {
  static constexpr bool is_immediate = false;
  static constexpr std::size_t most_latents = detail::most_on_device;
  cudaStream_t stream = nullptr;

  template <class T>
  T* allocate(std::size_t count) const noexcept {
    void* made = nullptr;
    return cudaMalloc(&made, count * sizeof(T)) == cudaSuccess ? static_cast<T*>(made) : nullptr;
  }

  template <class T>
  void release(T* numbers) const noexcept {
    cudaStreamSynchronize(stream);
    cudaFree(numbers);
  }

  template <class T>
  void copy(const T* from, T* to, std::size_t count) const noexcept {
    cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, stream);
  }

  Result<int> read(const int* number) const noexcept {
    int value = 0;
    cudaMemcpyAsync(&value, number, sizeof value, cudaMemcpyDeviceToHost, stream);
    const auto waited = cudaStreamSynchronize(stream), before = cudaGetLastError();
    const auto fault = waited != cudaSuccess ? waited : before;
    if (fault == cudaSuccess) return value;
    return detail::refuse("cuda", cudaGetErrorString(fault), "no error of the device", "Begin again in a new process.",
                          Error::Kind::denoiser);
  }

  template <class T>
  void check(const T* numbers, std::size_t count, int step, int* bad) const noexcept {
    detail::check_numbers<<<blocks(count), 256, 0, stream>>>(numbers, count, step, bad);
  }

  template <class T>
  void update(const Update<T>& job) const noexcept {
    detail::Addresses<T> at{};
    std::copy(job.sources, job.sources + job.num_sources, at.sources);
    std::copy(job.targets, job.targets + job.num_targets, at.targets);
    switch (job.num_sources) {
      case 1:
        return launch<1>(at, job);
      case 2:
        return launch<2>(at, job);
      case 3:
        return launch<3>(at, job);
      case 4:
        return launch<4>(at, job);
      case 5:
        return launch<5>(at, job);
      case 6:
        return launch<6>(at, job);
      default:
        return launch<0>(at, job);
    }
  }

  template <class T>
  void guide(const T* negative, const T* positive, T scale, T* to, std::size_t count) const noexcept {
    detail::guide_numbers<<<blocks(count), 256, 0, stream>>>(negative, positive, scale, to, count);
  }

 private:
  template <int N, class T>
  void launch(const detail::Addresses<T>& at, const Update<T>& job) const noexcept {
    detail::update_numbers<N><<<blocks(job.size), 256, 0, stream>>>(at, job);
  }

  static unsigned blocks(std::size_t count) noexcept {
    return static_cast<unsigned>(std::min<std::size_t>((count + 255) / 256, 4096));
  }
};

}  // namespace zeus_trt
