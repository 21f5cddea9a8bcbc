// Reads a JSON text per line, and says of each what the readers say.   read program|manifest
#include <zeus_trt/zeus_trt_manifest.hpp>
#include <zeus_trt/zeus_trt_program.hpp>

#include <iostream>

template <class T>
std::string say(const zeus_trt::Result<T>& made) {
  return made ? "ok" : made.error().message;
}

int main(int count, char** values) {
  const bool is_program = count == 2 && values[1] == std::string("program");
  for (std::string line; std::getline(std::cin, line);)
    std::cout << (is_program ? say(zeus_trt::SamplingProgram::parse(line)) : say(zeus_trt::Manifest::parse(line)))
              << "\n";
}
