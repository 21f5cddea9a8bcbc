// Runs the sampling programs of zeus-trt in C++17, with nothing but the standard library and nlohmann-json.
//
//     auto program = zeus_trt::SamplingProgram::load("programs/50-r3.json");
//     if (!program) return fail(program.error().message);
//     auto stepper = zeus_trt::Stepper<float>::make(*program, noise, rows);
//     if (!stepper) return fail(stepper.error().message);
//     auto latents = zeus_trt::run(*stepper, engine);
//
// `engine` maps a Call, the model input and the timesteps of a full step, to the View of its output. A server that
// gathers the calls of many trajectories asks each stepper itself: `call`, `feed`, and `finish` at the end.
//
// No function throws, and nothing allocates memory once a stepper is made. Objects share nothing: any number of threads
// may run, each with its own stepper, and read the same program.
#pragma once

#include <zeus_trt/zeus_trt_program.hpp>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>

namespace zeus_trt {

// Numbers that somebody else owns. Made of a pointer and a count, or of a container that has a name.
template <class T>
struct View {
  T* data = nullptr;
  std::size_t size = 0;

  View() = default;
  View(T* numbers, std::size_t count) : data(numbers), size(count) {}
  template <class U, class = std::enable_if_t<std::is_convertible_v<U*, T*>>>
  View(const View<U>& other) : data(other.data), size(other.size) {}
  template <class C, class = decltype(std::declval<C&>().data())>
  View(C& container) : data(container.data()), size(container.size()) {}
};

// Arithmetic of one full step over tensors of `size` numbers: targets[t] = sum over s of weights[t][s] * sources[s],
// and where `scale` is not 0 the last target is that times the first one instead.
template <class T>
struct Update {
  const T* const* sources;  // the state, then the output of the denoiser, which may share the memory of the last target
  std::size_t num_sources;
  T* const* targets;  // the new state, then the next model input
  std::size_t num_targets;
  const T* weights;  // row-major, in the space
  T scale;
  std::size_t size;
  int step;  // which full step this is
  int* bad;  // in the space: the first full step whose output is not finite
};

// Where tensors are, and who computes. Another space has the same members; zeus_trt_cuda.cuh has one.
struct Host {
  static constexpr bool is_immediate = true;  // nothing waits for a check: every output is checked before it is used
  static constexpr std::size_t most_latents = SamplingProgram::most_latents;

  template <class T>
  T* allocate(std::size_t count) const noexcept {  // null where there is no room
    return new (std::nothrow) T[count];
  }
  template <class T>
  void release(T* numbers) const noexcept {
    delete[] numbers;
  }
  template <class T>
  void copy(const T* from, T* to, std::size_t count) const noexcept {  // `from` may be on the host
    std::memcpy(to, from, count * sizeof(T));
  }
  Result<int> read(const int* number) const noexcept { return *number; }  // waits until all work is done

  // Lowers `bad` to `step` if there is a number that is not finite.
  template <class T>
  void check(const T* numbers, std::size_t count, int step, int* bad) const noexcept {
    int wrong = 0;  // not a bool: g++ has no vector form of that
    for (std::size_t i = 0; i < count; ++i) wrong |= !(std::abs(numbers[i]) <= std::numeric_limits<T>::max());
    if (wrong) *bad = std::min(*bad, step);
  }

  template <class T>
  void update(const Update<T>& job) const noexcept {
    constexpr std::size_t most = 512;  // numbers of each tensor that stay in the first cache
    T sums[most];
    for (std::size_t begin = 0; begin < job.size; begin += most) {
      const std::size_t count = std::min(most, job.size - begin);
      for (std::size_t t = 0; t < job.num_targets; ++t) {
        const bool is_scaled = t > 0 && t + 1 == job.num_targets && std::abs(job.scale) > 0;
        const T* weights = is_scaled ? &job.scale : job.weights + t * job.num_sources;
        const std::size_t terms = is_scaled ? 1 : job.num_sources;
        const auto is_used = [](T weight) { return std::abs(weight) > 0; };
        auto left = std::count_if(weights, weights + terms, is_used);
        T* target = job.targets[t] + begin;
        if (!left) std::fill(target, target + count, T(0));
        bool is_first = true;
        for (std::size_t s = 0; s < terms; ++s) {
          if (!is_used(weights[s])) continue;
          const T weight = weights[s];
          const T* from = (is_scaled ? job.targets[0] : job.sources[s]) + begin;
          T* to = --left ? sums : target;  // a target that is a source too is written after it was read
          if (is_first)
            for (std::size_t i = 0; i < count; ++i) to[i] = weight * from[i];
          else
            for (std::size_t i = 0; i < count; ++i) to[i] = sums[i] + weight * from[i];
          is_first = false;
        }
      }
    }
  }

  template <class T>
  void guide(const T* negative, const T* positive, T scale, T* to, std::size_t count) const noexcept {
    // Two loops: as one sum, some compilers round once where Python rounds twice.
    for (std::size_t i = 0; i < count; ++i) to[i] = scale * (positive[i] - negative[i]);
    for (std::size_t i = 0; i < count; ++i) to[i] += negative[i];
  }
};

namespace detail {

// Memory of a space.
template <class T, class Space>
class Memory {
 public:
  Memory(Space space, std::size_t count)
      : numbers_(count <= PTRDIFF_MAX / sizeof(T) ? space.template allocate<T>(count) : nullptr, Release{space}) {
    if (!numbers_)
      throw refuse("batch", std::to_string(count) + " numbers, which do not fit in memory", "fewer at once",
                   "Lower it.", Error::Kind::memory);
  }
  T* get() const noexcept { return numbers_.get(); }

 private:
  struct Release {
    Space space;
    void operator()(T* numbers) const noexcept { space.release(numbers); }
  };
  std::unique_ptr<T, Release> numbers_;
};

// a * b; the largest number where that is too large: no memory has so much room.
inline std::size_t multiply(std::size_t a, std::size_t b) {
  return b && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

}  // namespace detail

// What the denoiser reads at a full step. Both tensors are the caller's to overwrite, and hold until `feed`.
template <class T>
struct Call {
  T* latents;        // (rows, row_size)
  float* timesteps;  // (rows,)
  std::size_t rows, row_size;
  std::size_t step;  // index among the evaluations of the plan
  double timestep;
  char letter;  // the engine that it is for: F the full one, Q the quantized one

  View<T> input() const noexcept { return {latents, rows * row_size}; }
};

// A trajectory that is asked for its next call; a skipped step costs nothing. It owns twice `num_latents` latents and
// one more in `Space`, and allocates nothing after `make`. The arithmetic is that of `T`: float, or double for tests.
template <class T = float, class Space = Host>
class Stepper {
  static_assert(std::is_floating_point_v<T>);

 public:
  // `noise`: standard normal numbers in the space, (rows, row_size). The program need not outlive the stepper.
  static Result<Stepper> make(const SamplingProgram& program, View<const T> noise, std::size_t rows,
                              Space space = {}) noexcept {
    return detail::at_border<Stepper>([&]() -> Result<Stepper> {
      if (!rows || !noise.size || noise.size % rows)
        return detail::refuse("noise", std::to_string(noise.size) + " numbers for " + std::to_string(rows) + " rows",
                              "as many in each row", "Change one of them.");
      if (program.num_latents() > Space::most_latents)
        return detail::refuse("sampling program", std::to_string(program.num_latents()) + " latents",
                              std::to_string(Space::most_latents) + " at most", "Run it on the host.");
      Stepper made(program, noise.size, rows, space);
      if (Status begun = made.restart(noise); !begun) return begun.error();
      return made;
    });
  }

  // Begins another trajectory in the same memory.
  Status restart(View<const T> noise) noexcept {
    if (noise.size != size_) return refuse_size("noise", "", noise.size, "Change it.");
    const int none = INT_MAX;
    space_.copy(&none, bad_.get(), 1);
    place_ = 0;
    sources_[0] = noise.data;
    targets_[0] = state(0);
    targets_[1] = input_.get();
    update(weights_.get(), first_, 1, 2, none);
    prepare_call();
    return Done{};
  }

  // The next full step's call; null at the end.
  const Call<T>* call() const noexcept { return place_ < nfe() ? &call_ : nullptr; }

  // The sample, in memory that `feed` and `restart` overwrite.
  View<const T> latents() const noexcept { return {state(0), size_}; }

  std::size_t nfe() const noexcept { return steps_.size(); }
  std::size_t done() const noexcept { return place_; }  // calls that were fed

  // Takes the output of `call`, and keeps no reference to it. An output of another size is refused, and on the host one
  // that is not finite: the stepper stays where it was.
  Status feed(View<const T> output) noexcept {
    if (place_ == nfe())
      return detail::refuse("output", "one after the last call", "no more", "Begin again with restart().");
    if (output.size != size_)
      return refuse_size("denoiser", "an output of ", output.size, "Fix the engine, or the guidance around it.");
    const int number = static_cast<int>(place_);
    if constexpr (Space::is_immediate) {
      int bad = INT_MAX;
      space_.check(output.data, size_, number, &bad);
      if (bad != INT_MAX) return explain(bad);
    }
    const Step& step = steps_[place_];
    for (std::size_t s = 0; s + 1 < step.columns; ++s) sources_[s] = state(s);
    sources_[step.columns - 1] = output.data;
    ++place_;  // the other half of the memory is the state from here on
    for (std::size_t t = 0; t + 1 < std::max<std::size_t>(step.rows, 2); ++t) targets_[t] = state(t);
    if (step.rows > 1) targets_[step.rows - 1] = input_.get();
    update(weights_.get() + step.weights, step.scale, step.columns, step.rows, number);
    prepare_call();
    return Done{};
  }

  // Waits for the space, and looks whether all outputs and the latents are finite.
  Status finish() noexcept {
    space_.check(state(0), size_, static_cast<int>(nfe()), bad_.get());
    const Result<int> bad = space_.read(bad_.get());
    if (!bad) return bad.error();
    return *bad == INT_MAX ? Status(Done{}) : Status(explain(*bad));
  }

 private:
  struct Step {
    std::size_t index, rows, columns, weights;  // its place in the plan, its matrix, and where its weights begin
    double timestep;
    T scale;  // the next model input is this times the new sample; 0 where it is a sum of other latents
    char letter;
  };

  Stepper(const SamplingProgram& program, std::size_t size, std::size_t rows, Space space)
      : space_(space),
        rows_(rows),
        size_(size),
        first_(static_cast<T>(program.first_input)),
        num_latents_(program.num_latents()),
        states_(space, detail::multiply(size, 2 * num_latents_)),
        input_(space, size),
        weights_(space, count_weights(program)),
        timesteps_(space, detail::multiply(rows, program.nfe())),
        bad_(space, 1),
        sources_(num_latents_ + 1),
        targets_(num_latents_ + 1) {
    std::vector<T> weights = {static_cast<T>(program.init_noise_sigma), 0};
    std::vector<float> timesteps;
    for (std::size_t k = 0; k < program.nfe(); ++k) {
      const Matrix& matrix = program.matrices[k];
      steps_.push_back({program.steps[k], matrix.rows, matrix.columns, weights.size(), program.timesteps[k],
                        find_scale(matrix), program.plan[program.steps[k]]});
      for (const double weight : matrix.values) weights.push_back(static_cast<T>(weight));
      timesteps.insert(timesteps.end(), rows, static_cast<float>(program.timesteps[k]));
    }
    space_.copy(weights.data(), weights_.get(), weights.size());
    space_.copy(timesteps.data(), timesteps_.get(), timesteps.size());
  }

  // As Python does: fewer tensors to read, and the same rounding.
  static T find_scale(const Matrix& matrix) {
    const double* sample = matrix.values.data();
    const double* input = sample + (matrix.rows - 1) * matrix.columns;
    double both = 0, square = 0;
    for (std::size_t s = 0; s < matrix.columns; ++s) both += input[s] * sample[s], square += sample[s] * sample[s];
    for (std::size_t s = 0; s < matrix.columns; ++s) {
      const double scaled = both / square * sample[s];
      if (!(std::abs(input[s] - scaled) <= 1e-12 * std::abs(scaled))) return 0;
    }
    return static_cast<T>(both / square);
  }

  static std::size_t count_weights(const SamplingProgram& program) {
    std::size_t count = 2;
    for (const Matrix& matrix : program.matrices) count += matrix.values.size();
    return count;
  }

  T* state(std::size_t i) const noexcept { return states_.get() + (place_ % 2 * num_latents_ + i) * size_; }

  void update(const T* weights, T scale, std::size_t num_sources, std::size_t num_targets, int step) noexcept {
    space_.update(
        Update<T>{sources_.data(), num_sources, targets_.data(), num_targets, weights, scale, size_, step, bad_.get()});
  }

  void prepare_call() noexcept {
    if (place_ == nfe()) return;
    const Step& step = steps_[place_];
    call_ = {input_.get(), timesteps_.get() + place_ * rows_, rows_, size_ / rows_, step.index, step.timestep,
             step.letter};
  }

  Error refuse_size(const char* thing, const char* kind, std::size_t found, const char* advice) const {
    const std::string got = kind + std::to_string(found) + " numbers";
    return detail::refuse(thing, got, std::to_string(size_) + ", as its latents", advice);
  }

  Error explain(int bad) const {
    const bool is_output = static_cast<std::size_t>(bad) < nfe();
    const std::string place =
        is_output ? "full step " + std::to_string(steps_[static_cast<std::size_t>(bad)].index) : "the last step";
    return detail::refuse(
        is_output ? "model_output" : "latents", "NaN or infinity at " + place, "numbers",
        "If it runs in fp16, export it in bf16 or keep some modules in fp32; else look for them in the "
        "conditioning.",
        Error::Kind::denoiser);
  }

  Space space_;
  std::size_t rows_, size_;
  T first_;
  std::size_t num_latents_, place_ = 0;
  detail::Memory<T, Space> states_, input_, weights_;
  detail::Memory<float, Space> timesteps_;
  detail::Memory<int, Space> bad_;
  std::vector<Step> steps_;
  std::vector<const T*> sources_;
  std::vector<T*> targets_;
  Call<T> call_{};
};

// Classifier-free guidance: negative + scale * (positive - negative), from one call of twice the rows, the negative
// rows first. The engine's conditioning has its rows in the same order. It has memory for one trajectory.
template <class T = float, class Space = Host>
class ClassifierFreeGuidance {
 public:
  static Result<ClassifierFreeGuidance> make(double scale, std::size_t rows, std::size_t row_size,
                                             Space space = {}) noexcept {
    return detail::at_border<ClassifierFreeGuidance>([&]() -> Result<ClassifierFreeGuidance> {
      if (!std::isfinite(scale))
        return detail::refuse("guidance_scale", std::to_string(scale), "a number", "Change it.");
      return ClassifierFreeGuidance(static_cast<T>(scale), rows, row_size, space);
    });
  }

  // The call of twice the rows that serves `call`; in this object's memory.
  Call<T> expand(const Call<T>& call) noexcept {
    const std::size_t rows = std::min(call.rows, rows_), size = std::min(call.rows * call.row_size, size_);
    for (std::size_t half = 0; half < 2; ++half) {
      space_.copy(call.latents, latents_.get() + half * size, size);
      space_.copy(call.timesteps, timesteps_.get() + half * rows, rows);
    }
    return {latents_.get(), timesteps_.get(), 2 * rows, call.row_size, call.step, call.timestep, call.letter};
  }

  // The guided output for the output of that call; in this object's memory.
  Result<View<const T>> combine(View<const T> output) noexcept {
    if (output.size != 2 * size_)
      return detail::refuse("denoiser", "an output of " + std::to_string(output.size) + " numbers",
                            std::to_string(2 * size_) + ", as its latents",
                            "Fix the engine, or the guidance around it.");
    space_.guide(output.data, output.data + size_, scale_, guided_.get(), size_);
    return View<const T>{guided_.get(), size_};
  }

  // The denoiser under this guidance, which must outlive it.
  template <class Denoiser>
  auto wrap(Denoiser& denoiser) {
    return [this, &denoiser](const Call<T>& call) -> Result<View<const T>> {
      Result<View<const T>> output = denoiser(expand(call));
      if (!output) return output.error();
      return combine(*output);
    };
  }

 private:
  ClassifierFreeGuidance(T scale, std::size_t rows, std::size_t row_size, Space space)
      : space_(space),
        scale_(scale),
        rows_(rows),
        size_(detail::multiply(rows, row_size)),
        latents_(space, detail::multiply(2, size_)),
        guided_(space, size_),
        timesteps_(space, detail::multiply(2, rows)) {}

  Space space_;
  T scale_;
  std::size_t rows_, size_;
  detail::Memory<T, Space> latents_, guided_;
  detail::Memory<float, Space> timesteps_;
};

// Two engines behind one call, for plans with Q: the letter of a step says which of them answers. Both must outlive it.
template <class Full, class Quantized>
class EnginePair {
 public:
  EnginePair(Full& full, Quantized& quantized) : full_(full), quantized_(quantized) {}

  template <class T>
  Result<View<const T>> operator()(const Call<T>& call) {
    if (call.letter == 'Q') return quantized_(call);
    return full_(call);
  }

 private:
  Full& full_;
  Quantized& quantized_;
};

struct Control {
  std::function<void(std::size_t done, std::size_t nfe)> on_call;  // after every full step
  const std::atomic<bool>* cancelled = nullptr;                    // read before every call
};

// Runs a trajectory to its end. `denoiser` maps a Call<T> to a View<const T> of its output, or to a Result of one. What
// it throws becomes an error. After a cancellation, `run` goes on where it was.
template <class T, class Space, class Denoiser>
Result<View<const T>> run(Stepper<T, Space>& stepper, Denoiser&& denoiser, const Control& control = {}) noexcept {
  const auto refuse = [](const char* reason) {
    return detail::refuse("denoiser", std::string("an exception (") + reason + ")", "an output",
                          "Fix the engine, or the callback.", Error::Kind::denoiser);
  };
  try {
    while (const Call<T>* call = stepper.call()) {
      if (control.cancelled && control.cancelled->load())
        return detail::refuse("trajectory", "cancelled at step " + std::to_string(call->step), "to run to its end",
                              "Run it again to go on.", Error::Kind::cancelled);
      Result<View<const T>> output = denoiser(*call);
      if (!output) return output.error();
      if (Status fed = stepper.feed(*output); !fed) return fed.error();
      if (control.on_call) control.on_call(stepper.done(), stepper.nfe());
    }
    if (Status finished = stepper.finish(); !finished) return finished.error();
    return stepper.latents();
  } catch (const std::exception& error) {
    return refuse(error.what());
  } catch (...) {
    return refuse("of an unknown kind");
  }
}

}  // namespace zeus_trt
