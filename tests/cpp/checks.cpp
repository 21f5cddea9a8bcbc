// What needs no Python beside it.   checks PROGRAM
#include <zeus_trt/zeus_trt.hpp>
#include <zeus_trt/zeus_trt_engine.hpp>

#include <iostream>
#include <stdexcept>

namespace {
std::atomic<std::size_t> allocations{0};
int failures = 0;

void expect(bool holds, const char* what) {
  if (!holds) ++failures, std::cout << "failed: " << what << "\n";
}

bool says(const zeus_trt::Error& error, const char* words) {
  return error.message.find(words) != std::string::npos;
}
}  // namespace

// Not inlined: else g++ sees `free` of what `new` made.
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (void* made = operator new(size, std::nothrow)) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
void* operator new[](std::size_t size) {
  return operator new(size);
}
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept {
  return operator new(size, tag);
}
void operator delete[](void* memory) noexcept {
  operator delete(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  operator delete(memory);
}

using zeus_trt::Call;
using zeus_trt::Stepper;
using zeus_trt::View;

// A denoiser with one buffer for all of its outputs.
struct Toy {
  std::vector<float> output = std::vector<float>(4096);
  View<const float> operator()(const Call<float>& call) {
    const auto input = call.input();
    for (std::size_t i = 0; i < input.size; ++i)
      output[i] = std::tanh(input.data[i] * 0.8f + call.timesteps[i / call.row_size] / 1000);
    return {output.data(), input.size};
  }
};

void check_digest() {
  using zeus_trt::detail::sha256;
  expect(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "SHA-256 of nothing");
  expect(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "SHA-256 of abc");
  expect(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
         "SHA-256 of a million a");
}

void check_letters() {
  zeus_trt::EngineRecord record;
  record.precision = "fp16";
  const auto refused = record.check_letter('Q');
  expect(!refused && says(refused.error(), "plan: got Q for an engine in fp16"), "Q for an engine that is not quantized");
  expect(static_cast<bool>(record.check_letter('F')), "F for any engine");
  record.precision = "int8";
  expect(static_cast<bool>(record.check_letter('Q')), "Q for a quantized engine");
}

void check_memory(const zeus_trt::SamplingProgram& program, const std::vector<float>& noise) {
  Toy toy;
  auto stepper = Stepper<float>::make(program, noise, 2);
  auto guidance = zeus_trt::ClassifierFreeGuidance<float>::make(2, 2, noise.size() / 2);
  auto guided = guidance->wrap(toy);
  const auto before = allocations.load();
  expect(static_cast<bool>(zeus_trt::run(*stepper, toy)), "a run");
  expect(static_cast<bool>(stepper->restart(noise)), "a restart");
  expect(static_cast<bool>(zeus_trt::run(*stepper, guided)), "a guided run");
  expect(allocations == before, "no allocation after construction");
}

void check_reuse(const zeus_trt::SamplingProgram& program, const std::vector<float>& noise) {
  Toy toy;
  auto stepper = Stepper<float>::make(program, noise, 2);
  expect(stepper->call()->letter == 'F' && stepper->call()->step == 0, "the first call");
  const auto latents = zeus_trt::run(*stepper, toy);
  const std::vector<float> first(latents->data, latents->data + latents->size);
  expect(static_cast<bool>(stepper->restart(noise)), "a restart");
  // An engine may answer in the memory of its input.
  const auto again = zeus_trt::run(*stepper, [&](const Call<float>& call) {
    const auto output = toy(call);
    std::copy(output.data, output.data + output.size, call.latents);
    return call.input();
  });
  expect(again && std::equal(first.begin(), first.end(), again->data), "an output in the memory of the input");
  auto moved = std::move(*stepper);
  expect(static_cast<bool>(moved.restart(noise)), "a stepper that moved");
  const auto third = zeus_trt::run(moved, toy);
  expect(third && std::equal(first.begin(), first.end(), third->data), "the run of a stepper that moved");
}

void check_control(const zeus_trt::SamplingProgram& program, const std::vector<float>& noise) {
  Toy toy;
  auto stepper = Stepper<float>::make(program, noise, 2);
  std::atomic<bool> cancelled{false};
  zeus_trt::Control control;
  control.cancelled = &cancelled;
  std::size_t calls = 0;
  control.on_call = [&](std::size_t done, std::size_t nfe) {
    expect(done == ++calls && nfe == program.nfe(), "the callback counts");
    cancelled = done == 2;
  };
  const auto stopped = zeus_trt::run(*stepper, toy, control);
  expect(!stopped && stopped.error().kind == zeus_trt::Error::Kind::cancelled && calls == 2, "a cancellation");
  cancelled = false;
  expect(static_cast<bool>(zeus_trt::run(*stepper, toy, control)) && calls == program.nfe(), "it goes on afterwards");
}

void check_errors(const zeus_trt::SamplingProgram& program, const std::vector<float>& noise) {
  Toy toy;
  expect(!Stepper<float>::make(program, noise, 0), "no rows");
  expect(!Stepper<float>::make(program, noise, 7), "rows that do not divide");
  const auto large = Stepper<float>::make(program, View<const float>(noise.data(), SIZE_MAX / 8 * 2), 2);
  expect(!large && large.error().kind == zeus_trt::Error::Kind::memory, "a size that overflows");
  expect(!zeus_trt::ClassifierFreeGuidance<float>::make(2, SIZE_MAX / 2, 1000), "a guidance that overflows");
  expect(!zeus_trt::ClassifierFreeGuidance<float>::make(std::nan(""), 1, 1), "a guidance scale");
  auto stepper = Stepper<float>::make(program, noise, 2);
  const auto short_output = stepper->feed(View<const float>(noise.data(), 3));
  expect(!short_output && says(short_output.error(), "denoiser: got an output of 3 numbers; expected 32"),
         "a short output");
  const std::vector<float> bad(noise.size(), std::numeric_limits<float>::infinity());
  expect(!stepper->feed(bad) && stepper->done() == 0, "an output that is not finite leaves the stepper where it was");
  expect(static_cast<bool>(zeus_trt::run(*stepper, toy)), "a run after refused outputs");
  expect(!stepper->call() && !stepper->feed(noise), "an output after the end");
  expect(!stepper->restart(View<const float>(noise.data(), 3)), "another noise");
  expect(static_cast<bool>(stepper->restart(noise)), "a restart");
  const auto thrown =
      zeus_trt::run(*stepper, [](const Call<float>&) -> View<const float> { throw std::runtime_error("fire"); });
  expect(!thrown && says(thrown.error(), "denoiser: got an exception (fire); expected an output."), "an exception");
  const auto odd = zeus_trt::run(*stepper, [](const Call<float>&) -> View<const float> { throw 1; });
  expect(!odd && says(odd.error(), "unknown kind"), "another exception");
  const auto refused = zeus_trt::run(*stepper, [](const Call<float>&) -> zeus_trt::Result<View<const float>> {
    return zeus_trt::Error{zeus_trt::Error::Kind::denoiser, "engine: got 1; expected 2. Change it."};
  });
  expect(!refused && refused.error().message == "engine: got 1; expected 2. Change it.", "an error of the engine");
  const std::vector<float> huge(noise.size(), 3e38f);
  const auto overflow = zeus_trt::run(*stepper, [&](const Call<float>&) { return View<const float>(huge); });
  expect(!overflow && says(overflow.error(), "latents: got NaN or infinity at the last step"), "latents that overflow");
  expect(!zeus_trt::SamplingProgram::load("no such file"), "a missing file");
  expect(!zeus_trt::SamplingProgram::load("/"), "a folder");
  expect(!zeus_trt::SamplingProgram::load("/dev/zero"), "a file without an end");
}

int main(int, char** values) {
  const auto program = zeus_trt::SamplingProgram::load(values[1]);
  if (!program) return std::cout << program.error().message << "\n", 1;
  std::vector<float> noise(32);
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<float>(i) / 16 - 1;
  check_digest();
  check_letters();
  check_memory(*program, noise);
  check_reuse(*program, noise);
  check_control(*program, noise);
  check_errors(*program, noise);
  std::cout << failures << " failures\n";
  return failures != 0;
}
