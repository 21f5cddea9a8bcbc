// TensorRT 10 and 11 engines as denoisers of steppers on a CUDA device (zeus_trt_cuda.cuh).
//
//     auto engine = zeus_trt::TensorRtEngine::open("deploy", 0, stream);
//     auto denoiser = engine->bind({{"encoder_hidden_states", {text, {2, 77, 768}}}}, {4, 64, 64});
//     auto latents = zeus_trt::run(*stepper, **denoiser);
//
// Compiled against NVIDIA's public headers, and never run. TensorRT-RTX has the same interface; its headers could not
// be had, so it was not compiled against them.
#pragma once

#include <zeus_trt/zeus_trt.hpp>
#include <zeus_trt/zeus_trt_engine.hpp>

#include <NvInferRuntime.h>
#include <cuda_runtime_api.h>

#include <mutex>

namespace zeus_trt {

// Contiguous numbers on the device, of the type that the manifest declares. Whoever gives them keeps them alive.
struct DeviceTensor {
  const void* data = nullptr;
  std::vector<std::int64_t> shape;
};

using DeviceTensors = std::map<std::string, DeviceTensor>;

// An engine, its context and one buffer for its output. All calls are enqueued on the stream that it was opened with;
// steppers use the same stream. Threads may share it.
class TensorRtEngine {
 public:
  // Opens what `zeus-trt package` wrote, on a device: `engine`, or `quantized`, which answers the Q steps of plans. The
  // engine is native code.
  static Result<TensorRtEngine> open(const std::string& folder, int device = 0, cudaStream_t stream = nullptr,
                                     const std::string& name = "engine") noexcept {
    auto manifest = Manifest::load(folder + "/manifest.json");
    if (!manifest) return manifest.error();
    auto record = EngineRecord::load(folder + "/" + name);
    if (!record) return record.error();
    return detail::at_border<TensorRtEngine>([&] {
      TensorRtEngine made(std::move(*manifest), std::move(*record), device, stream);
      made.load(folder + "/" + name + "/" + made.state_->record.file);
      return made;
    });
  }

  const Manifest& manifest() const noexcept { return state_->manifest; }
  const EngineRecord& record() const noexcept { return state_->record; }

  // Enqueues a call: a tensor per input of the manifest. The output, on the device, holds until the next call.
  Result<View<const float>> operator()(const DeviceTensors& inputs) noexcept {
    return detail::at_border<View<const float>>([&] {
      State& state = *state_;
      const DeviceGuard guard(state.device);
      const std::lock_guard<std::mutex> lock(state.mutex);
      for (const auto& spec : state.manifest.inputs) {
        const auto found = inputs.find(spec.name);
        if (found == inputs.end() || inputs.size() != state.manifest.inputs.size())
          throw detail::refuse("tensorrt", "other inputs than " + spec.name + " and its like",
                               std::to_string(state.manifest.inputs.size()) + " by name", "Pass each of them.");
        if (Status fits = state.record.check_shape(spec.name, found->second.shape); !fits) throw fits.error();
      }
      choose_profile(inputs);
      bool is_set = state.context->setTensorAddress(state.manifest.output.name.c_str(), state.output.get());
      for (const auto& [name, tensor] : inputs)
        is_set = is_set && state.context->setInputShape(name.c_str(), write_dims(tensor.shape)) &&
                 state.context->setInputTensorAddress(name.c_str(), tensor.data);
      if (!is_set || !state.context->enqueueV3(state.stream)) throw refuse("a call that fails");
      std::size_t count = 1;
      for (const auto size : inputs.at(state.manifest.inputs[0].name).shape) count *= static_cast<std::size_t>(size);
      return View<const float>(state.output.get(), count);
    });
  }

  // The denoiser of one trajectory.
  class Denoiser {
   public:
    Result<View<const float>> operator()(const Call<float>& call) noexcept {
      if (Status fits = engine_->record().check_letter(call.letter); !fits) return fits.error();
      latents_->data = call.latents;
      timesteps_->data = call.timesteps;
      latents_->shape[0] = timesteps_->shape[0] = static_cast<std::int64_t>(call.rows);
      return (*engine_)(inputs_);
    }

   private:
    friend class TensorRtEngine;
    TensorRtEngine* engine_ = nullptr;
    DeviceTensors inputs_;
    DeviceTensor *latents_ = nullptr, *timesteps_ = nullptr;  // of inputs_
  };

  // A denoiser for conditioning by name, with as many rows as the calls; `row_shape` is that of the latents without the
  // batch. The engine must outlive it.
  Result<std::unique_ptr<Denoiser>> bind(DeviceTensors conditioning, std::vector<std::int64_t> row_shape) noexcept {
    return detail::at_border<std::unique_ptr<Denoiser>>([&] {
      auto made = std::make_unique<Denoiser>();
      made->engine_ = this;
      made->inputs_ = std::move(conditioning);
      made->latents_ = &made->inputs_[manifest().inputs[0].name];
      made->timesteps_ = &made->inputs_[manifest().inputs[1].name];
      row_shape.insert(row_shape.begin(), 0);
      made->latents_->shape = std::move(row_shape);
      made->timesteps_->shape = {0};
      return made;
    });
  }

 private:
  // The device of the caller's thread is what it was before, whatever happens.
  class DeviceGuard {
   public:
    explicit DeviceGuard(int device) {
      cudaGetDevice(&before_);
      if (cudaSetDevice(device) != cudaSuccess)
        throw detail::refuse("device", "cuda:" + std::to_string(device), "a CUDA device that is here", "Change it.");
    }
    ~DeviceGuard() { cudaSetDevice(before_); }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

   private:
    int before_ = 0;
  };

  // Keeps TensorRT's last words for messages.
  class Log final : public nvinfer1::ILogger {
   public:
    void log(Severity severity, const char* text) noexcept override {
      if (severity > Severity::kERROR) return;
      const std::lock_guard<std::mutex> lock(mutex_);
      std::snprintf(last_, sizeof last_, "%s", text);
    }
    std::string last() {
      const std::lock_guard<std::mutex> lock(mutex_);
      return last_[0] ? last_ : "TensorRT does not say why";
    }

   private:
    std::mutex mutex_;
    char last_[500] = {};
  };

  struct Free {
    void operator()(float* numbers) const noexcept { cudaFree(numbers); }
  };

  struct State {  // members go in the reverse order: the context before its engine
    Manifest manifest;
    EngineRecord record;
    int device;
    cudaStream_t stream;
    Log log;
    std::mutex mutex;
    std::unique_ptr<float, Free> output;
    std::unique_ptr<nvinfer1::IRuntime> runtime;
    std::unique_ptr<nvinfer1::ICudaEngine> engine;
    std::unique_ptr<nvinfer1::IExecutionContext> context;

    State(Manifest known, EngineRecord built, int place, cudaStream_t order)
        : manifest(std::move(known)), record(std::move(built)), device(place), stream(order) {}
    ~State() {
      int before = 0;
      cudaGetDevice(&before);
      cudaSetDevice(device);
      cudaStreamSynchronize(stream);  // the device may still run the engine's code
      context.reset();
      engine.reset();
      runtime.reset();
      output.reset();
      cudaSetDevice(before);
    }
  };

  TensorRtEngine(Manifest manifest, EngineRecord record, int device, cudaStream_t stream)
      : state_(std::make_unique<State>(std::move(manifest), std::move(record), device, stream)) {}

  Error refuse(const std::string& got) const {
    return detail::refuse("tensorrt", got + " (" + state_->log.last() + ")", "an engine of this GPU and TensorRT",
                          "Build it again.", Error::Kind::denoiser);
  }

  void load(const std::string& path) {
    State& state = *state_;
    const DeviceGuard guard(state.device);
    std::vector<char> plan(static_cast<std::size_t>(state.record.size));
    std::ifstream(path, std::ios::binary).read(plan.data(), static_cast<std::streamsize>(plan.size()));
    state.runtime.reset(nvinfer1::createInferRuntime(state.log));
    if (state.runtime) state.engine.reset(state.runtime->deserializeCudaEngine(plan.data(), plan.size()));
    if (state.engine) state.context.reset(state.engine->createExecutionContext());
    if (!state.context) throw refuse(path + ", which does not load");
    check_inputs();
    std::size_t count = sizeof(float);
    for (const auto size : state.record.profile.at(state.manifest.inputs[0].name).max)
      count = detail::multiply(count, static_cast<std::size_t>(size));
    void* made = nullptr;
    if (cudaMalloc(&made, count) != cudaSuccess)
      throw detail::refuse("memory", "too little on the device", "more", "Ask for less at once.", Error::Kind::memory);
    state.output.reset(static_cast<float*>(made));
  }

  void check_inputs() const {
    const State& state = *state_;
    for (const auto& spec : state.manifest.inputs)
      if (spec.value || !state.record.profile.count(spec.name) || state.engine->isShapeInferenceIO(spec.name.c_str()))
        throw detail::refuse("tensorrt", "the input " + spec.name + ", which is a size", "tensors", "Use Python.");
    const auto& latents = state.manifest.inputs[0].name;
    for (const auto& name : {latents, state.manifest.inputs[1].name, state.manifest.output.name})
      if (state.engine->getTensorDataType(name.c_str()) != nvinfer1::DataType::kFLOAT)
        throw detail::refuse("tensorrt", name + " of another type than float32", "the manifest's", "Build it again.");
  }

  // The first profile that takes all of these shapes; the present one stays where it does.
  void choose_profile(const DeviceTensors& inputs) {
    State& state = *state_;
    if (takes(state.context->getOptimizationProfile(), inputs)) return;
    for (int profile = 0; profile < state.engine->getNbOptimizationProfiles(); ++profile)
      if (takes(profile, inputs) && state.context->setOptimizationProfileAsync(profile, state.stream)) return;
    throw refuse("shapes that no profile takes");
  }

  bool takes(int profile, const DeviceTensors& inputs) const {
    using nvinfer1::OptProfileSelector;
    if (profile < 0) return false;
    for (const auto& [name, tensor] : inputs) {
      const auto low = state_->engine->getProfileShape(name.c_str(), profile, OptProfileSelector::kMIN);
      const auto high = state_->engine->getProfileShape(name.c_str(), profile, OptProfileSelector::kMAX);
      if (low.nbDims != static_cast<int>(tensor.shape.size())) return false;
      for (int i = 0; i < low.nbDims; ++i) {
        const auto size = tensor.shape[static_cast<std::size_t>(i)];
        if (size < low.d[i] || size > high.d[i]) return false;
      }
    }
    return true;
  }

  static nvinfer1::Dims write_dims(const std::vector<std::int64_t>& shape) {
    nvinfer1::Dims dims{};
    dims.nbDims = static_cast<int>(std::min<std::size_t>(shape.size(), nvinfer1::Dims::MAX_DIMS));
    for (int i = 0; i < dims.nbDims; ++i) dims.d[i] = shape[static_cast<std::size_t>(i)];
    return dims;
  }

  std::unique_ptr<State> state_;
};

}  // namespace zeus_trt
