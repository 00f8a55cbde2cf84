// A linear layer with FEATURES inputs and OUTPUTS outputs, which are defined before this file. `parameters` are a weight for each
// output and feature, output by output, then a bias for each output. Behind each pointer comes its length: the kernel stays
// below it. The file keeps to what CUDA and C have in common, for tests on the host.

// A thread for each output of each row.
extern "C" __global__ void forward(float *output, long long output_length, const float *parameters,
    long long parameters_length, const float *input, long long input_length)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, row = at / OUTPUTS, to = at % OUTPUTS;
    if (at >= output_length || row >= input_length / FEATURES || parameters_length < (FEATURES + 1) * OUTPUTS) {
        return;
    }
    float sum = parameters[FEATURES * OUTPUTS + to];
    for (int from = 0; from < FEATURES; from++) {
        sum += parameters[to * FEATURES + from] * input[row * FEATURES + from];
    }
    output[at] = sum;
}
