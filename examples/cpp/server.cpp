// A sketch of a server: requests come from a pool of threads, and one engine call serves the rows of all that wait,
// whatever their plans are.
//
//     server DEPLOY OUTPUT PROGRAM PROGRAM ...
//     server deploy latents.f32 deploy/programs/20-r0.json deploy/programs/20-r3.json
//
// Request k runs the k-th program with label k % 10 and seed k. Writes the latents of all, in this order.
#include <zeus_trt/zeus_trt_aoti.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <future>
#include <iostream>
#include <thread>

namespace {

using Latents = zeus_trt::Result<at::Tensor>;

struct Request {
  zeus_trt::Stepper<float> stepper;
  at::Tensor labels;
  std::vector<std::int64_t> shape;
  std::promise<Latents> done;
};

class Server {
 public:
  Server(zeus_trt::AotiEngine& engine, std::int64_t most_rows)
      : engine_(engine), most_rows_(most_rows), thread_([this] { work(); }) {}

  ~Server() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    waits_.notify_one();
    thread_.join();
  }

  // Any thread may ask.
  std::future<Latents> submit(const zeus_trt::SamplingProgram& program, at::Tensor noise, at::Tensor labels) {
    auto stepper =
        zeus_trt::Stepper<float>::make(program, {noise.data_ptr<float>(), static_cast<std::size_t>(noise.numel())},
                                       static_cast<std::size_t>(noise.size(0)));
    std::promise<Latents> done;
    auto future = done.get_future();
    if (!stepper) {
      done.set_value(stepper.error());
      return future;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    asked_.push_back({std::move(*stepper), labels, noise.sizes().vec(), std::move(done)});
    waits_.notify_one();
    return future;
  }

  std::size_t calls = 0;  // of the engine

 private:
  void work() {
    for (std::deque<Request> running;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        waits_.wait(lock, [&] { return !running.empty() || !asked_.empty() || is_closed_; });
        if (running.empty() && asked_.empty()) return;
        for (; !asked_.empty(); asked_.pop_front()) running.push_back(std::move(asked_.front()));
      }
      step(running);
    }
  }

  // One engine call for the first requests; they go to the end of the line, or are done.
  void step(std::deque<Request>& running) {
    std::vector<Request> batch;
    std::vector<at::Tensor> latents, timesteps, labels;
    for (std::int64_t rows = 0; !running.empty() && rows + running.front().shape[0] <= most_rows_;) {
      batch.push_back(std::move(running.front()));
      running.pop_front();
      const auto* call = batch.back().stepper.call();
      rows += batch.back().shape[0];
      latents.push_back(at::from_blob(call->latents, batch.back().shape));
      timesteps.push_back(at::from_blob(call->timesteps, {batch.back().shape[0]}));
      labels.push_back(batch.back().labels);
    }
    if (batch.empty()) {
      running.front().done.set_value(zeus_trt::Error{
          zeus_trt::Error::Kind::input, "batch: got more rows than the engine takes; expected fewer. Split it."});
      return running.pop_front();
    }
    auto output = engine_({{engine_.manifest().inputs[0].name, at::cat(latents)},
                           {engine_.manifest().inputs[1].name, at::cat(timesteps)},
                           {"class_labels", at::cat(labels)}});
    ++calls;
    std::int64_t row = 0;
    for (auto& request : batch) {
      if (!output) {
        request.done.set_value(output.error());
        continue;
      }
      const auto own = output->narrow(0, row, request.shape[0]);
      row += request.shape[0];
      finish(request, request.stepper.feed({own.const_data_ptr<float>(), static_cast<std::size_t>(own.numel())}),
             running);
    }
  }

  void finish(Request& request, const zeus_trt::Status& fed, std::deque<Request>& running) {
    if (!fed) return request.done.set_value(fed.error());
    if (request.stepper.call()) return running.push_back(std::move(request));
    if (auto finished = request.stepper.finish(); !finished) return request.done.set_value(finished.error());
    request.done.set_value(at::from_blob(const_cast<float*>(request.stepper.latents().data), request.shape).clone());
  }

  zeus_trt::AotiEngine& engine_;
  std::int64_t most_rows_;
  std::mutex mutex_;
  std::condition_variable waits_;
  std::deque<Request> asked_;
  bool is_closed_ = false;
  std::thread thread_;
};

int fail(const zeus_trt::Error& error) {
  std::cerr << "Error: " << error.message << "\n";
  return 1;
}

}  // namespace

int main(int count, char** values) {
  if (count < 4) return std::cerr << "server DEPLOY OUTPUT PROGRAM PROGRAM ...\n", 2;
  auto engine = zeus_trt::AotiEngine::open(values[1]);
  if (!engine) return fail(engine.error());
  std::vector<zeus_trt::SamplingProgram> programs;
  for (int i = 3; i < count; ++i) {
    auto program = zeus_trt::SamplingProgram::load(values[i]);
    if (!program) return fail(program.error());
    for (const char letter : program->plan)
      if (const auto fits = engine->record().check_letter(letter); !fits) return fail(fits.error());
    programs.push_back(std::move(*program));
  }
  const auto& latents = engine->manifest().inputs[0];
  Server server(*engine, engine->record().profile.at(latents.name).max[0]);
  std::vector<std::future<Latents>> clients;
  for (std::size_t k = 0; k < programs.size(); ++k)
    clients.push_back(std::async(std::launch::async, [&, k] {
      std::vector<std::int64_t> shape = {1};
      for (std::size_t i = 1; i < latents.axes.size(); ++i) shape.push_back(std::get<std::int64_t>(latents.axes[i]));
      const auto noise = at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(k));
      return server.submit(programs[k], noise, at::tensor({static_cast<std::int64_t>(k % 10)})).get();
    }));
  std::ofstream file(values[2], std::ios::binary);
  std::size_t nfe = 0;
  for (std::size_t k = 0; k < programs.size(); ++k) {
    auto made = clients[k].get();
    if (!made) return fail(made.error());
    file.write(static_cast<const char*>(made->data_ptr()), static_cast<std::streamsize>(made->numel() * 4));
    nfe += programs[k].nfe();
  }
  std::cout << programs.size() << " requests, " << nfe << " full steps, " << server.calls << " engine calls\n";
}
