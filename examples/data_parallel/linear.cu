// A linear layer: `parameters` is a weight for each output and feature, output by output, then a bias for each output.

// A thread for each output of each row.
extern "C" __global__ void forward(
    float *output, const float *parameters, const float *input, int rows, int features, int outputs)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= rows * outputs) {
        return;
    }
    int row = at / outputs, to = at % outputs;
    float sum = parameters[features * outputs + to];
    for (int from = 0; from < features; from++) {
        sum += parameters[to * features + from] * input[row * features + from];
    }
    output[at] = sum;
}

// A thread for each parameter.
extern "C" __global__ void backward(
    float *gradients, const float *slopes, const float *input, int rows, int features, int outputs)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (features + 1) * outputs) {
        return;
    }
    bool is_bias = at >= features * outputs;
    int to = is_bias ? at - features * outputs : at / features, from = at % features;
    float sum = 0.0f;
    for (int row = 0; row < rows; row++) {
        sum += slopes[row * outputs + to] * (is_bias ? 1.0f : input[row * features + from]);
    }
    gradients[at] = sum;
}
