// Samples a class-conditional model: labels in, a picture and its latents out.
//
//     sample DEPLOY PROGRAM LABELS GUIDANCE_SCALE SEED OUTPUT
//     sample deploy deploy/programs/20-r3.json 3,8 2.5 0 digits.pgm
//
// Writes OUTPUT, a PGM or PPM of all images side by side, and OUTPUT.f32, the latents as float32 numbers.
#include <zeus_trt/zeus_trt_aoti.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <fstream>
#include <iostream>
#include <sstream>

namespace {

int fail(const zeus_trt::Error& error) {
  std::cerr << "Error: " << error.message << "\n";
  return 1;
}

at::Tensor read_labels(const std::string& text) {
  std::vector<std::int64_t> labels;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) labels.push_back(std::stoll(word));
  return at::tensor(labels);
}

// Pixels of -1..1, (images, 1 or 3, height, width), as one row of images.
void write_picture(const at::Tensor& latents, const std::string& path) {
  const auto pixels = latents.mul(127.5).add(127.5).round().clamp(0, 255).to(at::kByte);
  const auto row = pixels.permute({2, 0, 3, 1}).contiguous();  // height, images, width, channels
  std::ofstream file(path, std::ios::binary);
  file << (row.size(3) == 3 ? "P6" : "P5") << "\n" << row.size(1) * row.size(2) << " " << row.size(0) << "\n255\n";
  file.write(reinterpret_cast<const char*>(row.data_ptr()), row.numel());
}

int sample(const std::vector<std::string>& arguments) {
  auto engine = zeus_trt::AotiEngine::open(arguments[1]);
  if (!engine) return fail(engine.error());
  const auto program = zeus_trt::SamplingProgram::load(arguments[2]);
  if (!program) return fail(program.error());
  const auto labels = read_labels(arguments[3]);
  const double scale = std::stod(arguments[4]);
  const bool is_guided = std::abs(scale - 1) > 0 && engine->manifest().labels.has_value();

  std::vector<std::int64_t> shape = {labels.size(0)};
  for (std::size_t i = 1; i < engine->manifest().inputs[0].axes.size(); ++i)
    shape.push_back(std::get<std::int64_t>(engine->manifest().inputs[0].axes[i]));
  // The numbers of torch.randn(shape, generator=torch.Generator().manual_seed(seed)) in Python.
  auto noise = at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(std::stoull(arguments[5])));

  const auto rows = static_cast<std::size_t>(shape[0]), size = static_cast<std::size_t>(noise.numel());
  auto stepper = zeus_trt::Stepper<float>::make(*program, {noise.data_ptr<float>(), size}, rows);
  if (!stepper) return fail(stepper.error());
  auto guidance = zeus_trt::ClassifierFreeGuidance<float>::make(scale, rows, size / rows);
  if (!guidance) return fail(guidance.error());
  const auto null = at::full_like(labels, is_guided ? engine->manifest().labels->null : 0);
  auto denoiser = engine->bind({{"class_labels", is_guided ? at::cat({null, labels}) : labels}});
  if (!denoiser) return fail(denoiser.error());

  zeus_trt::Control control;
  control.on_call = [](std::size_t done, std::size_t nfe) { std::cerr << "\r" << done << " of " << nfe << " calls"; };
  const auto made = is_guided ? zeus_trt::run(*stepper, guidance->wrap(*denoiser), control)
                              : zeus_trt::run(*stepper, *denoiser, control);
  std::cerr << "\n";
  if (!made) return fail(made.error());
  write_picture(at::from_blob(const_cast<float*>(made->data), shape), arguments[6]);
  std::ofstream(arguments[6] + ".f32", std::ios::binary)
      .write(reinterpret_cast<const char*>(made->data), static_cast<std::streamsize>(made->size * sizeof(float)));
  std::cout << arguments[6] << ": " << rows << " images, " << program->nfe() << " of " << program->plan.size()
            << " steps full\n";
  return 0;
}

}  // namespace

int main(int count, char** values) {
  if (count == 7) return sample({values, values + count});
  std::cerr << "sample DEPLOY PROGRAM LABELS GUIDANCE_SCALE SEED OUTPUT\n";
  return 2;
}
