"""Programs in C++: ``zeus-trt package`` copies them."""
