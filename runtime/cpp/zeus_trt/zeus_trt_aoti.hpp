// AOTInductor packages (.pt2) as denoisers, through libtorch.
//
//     auto engine = zeus_trt::AotiEngine::open("deploy");
//     auto denoiser = engine->bind({{"class_labels", labels}});
//     auto latents = zeus_trt::run(*stepper, *denoiser);
#pragma once

#include <zeus_trt/zeus_trt.hpp>
#include <zeus_trt/zeus_trt_engine.hpp>

#include <mutex>
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

namespace zeus_trt {

using Tensors = std::map<std::string, at::Tensor>;

// A package and what is known of it. Threads may share it: one call runs at a time.
class AotiEngine {
 public:
  // Opens what `zeus-trt package` wrote. The package is native code, which runs from here on.
  static Result<AotiEngine> open(const std::string& folder, at::Device device = at::kCPU) noexcept {
    auto manifest = Manifest::load(folder + "/manifest.json");
    if (!manifest) return manifest.error();
    auto record = EngineRecord::load(folder + "/engine");
    if (!record) return record.error();
    return in_torch<AotiEngine>(folder, "a package for torch " TORCH_VERSION, "Build it again.", [&] {
      return AotiEngine(*manifest, *record, folder + "/engine/" + record->file, device);
    });
  }

  const Manifest& manifest() const noexcept { return state_->manifest; }
  const EngineRecord& record() const noexcept { return state_->record; }

  // The output, float32 on the engine's device, for a tensor per input of the manifest; each is cast and moved.
  Result<at::Tensor> operator()(const Tensors& inputs) noexcept {
    std::vector<at::Tensor> cast;
    for (const auto& spec : state_->manifest.inputs) {
      const auto found = inputs.find(spec.name);
      if (found == inputs.end() || inputs.size() != state_->manifest.inputs.size())
        return detail::refuse("aot-inductor", "the inputs " + list(inputs), list(state_->manifest.inputs),
                              "Pass each of them by name.");
      if (Status fits = state_->record.check_shape(spec.name, found->second.sizes().vec()); !fits) return fits.error();
      cast.push_back(found->second);
    }
    return in_torch<at::Tensor>("a call", "an output", "Look at the inputs.", [&] {
      const c10::InferenceMode guard;
      for (std::size_t i = 0; i < cast.size(); ++i) {
        const auto type = find_type(state_->manifest.inputs[i].dtype);
        cast[i] = cast[i].to(state_->device, type).contiguous();
      }
      const std::lock_guard<std::mutex> lock(state_->mutex);
      return state_->loader.run(cast).at(0).contiguous();
    });
  }

  // The denoiser of one trajectory: conditioning, and the output of the last call.
  class Denoiser {
   public:
    Result<View<const float>> operator()(const Call<float>& call) noexcept {
      if (Status fits = engine_->record().check_letter(call.letter); !fits) return fits.error();
      auto shape = row_shape_;
      shape.insert(shape.begin(), static_cast<std::int64_t>(call.rows));
      const auto options = at::TensorOptions(at::kFloat).device(engine_->state_->device);
      inputs_[latents_] = at::from_blob(call.latents, shape, options);
      inputs_[timestep_] = at::from_blob(call.timesteps, {shape[0]}, options);
      auto made = (*engine_)(inputs_);
      if (!made) return made.error();
      output_ = *made;
      return View<const float>(output_.const_data_ptr<float>(), static_cast<std::size_t>(output_.numel()));
    }

   private:
    friend class AotiEngine;
    AotiEngine* engine_ = nullptr;
    std::string latents_, timestep_;
    std::vector<std::int64_t> row_shape_;
    Tensors inputs_;
    at::Tensor output_;
  };

  // A denoiser for conditioning by name, as many rows as the calls have: with guidance twice those of the latents, the
  // negative rows first. `row_shape`: of the latents, without the batch; needed where the manifest leaves it open. The
  // engine must outlive it.
  Result<Denoiser> bind(Tensors conditioning, std::vector<std::int64_t> row_shape = {}) noexcept {
    Denoiser made;
    made.engine_ = this;
    made.latents_ = manifest().inputs[0].name;
    made.timestep_ = manifest().inputs[1].name;
    made.inputs_ = std::move(conditioning);
    made.row_shape_ = std::move(row_shape);
    const auto& axes = manifest().inputs[0].axes;
    for (std::size_t i = 1; made.row_shape_.size() + 1 < axes.size() && i < axes.size(); ++i) {
      const auto* size = std::get_if<std::int64_t>(&axes[i]);
      if (!size)
        return detail::refuse("row_shape", "none", "sizes, since " + std::get<std::string>(axes[i]) + " may vary",
                              "Give the shape of a row.");
      made.row_shape_.push_back(*size);
    }
    return made;
  }

 private:
  // What torch throws becomes an error.
  template <class T, class Body>
  static Result<T> in_torch(const std::string& got, const char* expected, const char* advice, Body&& body) noexcept {
    const auto refuse = [&](const char* reason) {
      return detail::refuse("aot-inductor", got + ", which fails (" + reason + ")", expected, advice,
                            Error::Kind::denoiser);
    };
    try {
      return body();
    } catch (const c10::Error& error) {
      return refuse(error.what_without_backtrace());
    } catch (const std::exception& error) {
      return refuse(error.what());
    }
  }

  static at::ScalarType find_type(const std::string& name) {
    static const std::map<std::string, at::ScalarType> known = {
        {"float32", at::kFloat}, {"int64", at::kLong}, {"int32", at::kInt}, {"int16", at::kShort},
        {"int8", at::kChar},     {"uint8", at::kByte}, {"bool", at::kBool}};
    return known.at(name);
  }

  static std::string list(const Tensors& inputs) {
    std::string names;
    for (const auto& input : inputs) names += (names.empty() ? "" : ", ") + input.first;
    return names;
  }

  static std::string list(const std::vector<Tensor>& inputs) {
    std::string names;
    for (const auto& input : inputs) names += (names.empty() ? "" : ", ") + input.name;
    return names;
  }

  struct State {
    Manifest manifest;
    EngineRecord record;
    at::Device device;
    torch::inductor::AOTIModelPackageLoader loader;
    std::mutex mutex;
  };

  // Single-threaded: one call at a time, as the lock has it.
  AotiEngine(Manifest manifest, EngineRecord record, const std::string& package, at::Device device)
      : state_(new State{
            std::move(manifest), std::move(record), device, {package, "model", true, 1, device.index()}, {}}) {}

  std::unique_ptr<State> state_;
};

}  // namespace zeus_trt
