# find_package(zeus_trt) makes the target zeus_trt::zeus_trt: the headers, and nlohmann-json.
# `zeus-trt cmake-dir` prints this folder: cmake -Dzeus_trt_DIR="$(zeus-trt cmake-dir)" ...
include(CMakeFindDependencyMacro)
find_dependency(nlohmann_json 3.9)
if(NOT TARGET zeus_trt::zeus_trt)
  add_library(zeus_trt::zeus_trt INTERFACE IMPORTED)
  set_target_properties(zeus_trt::zeus_trt PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_LINK_LIBRARIES nlohmann_json::nlohmann_json)
endif()
