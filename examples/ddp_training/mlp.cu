// One hidden layer, softmax and cross entropy, as in `model.rs`; FEATURES, HIDDEN, CLASSES and OUTPUT, where the parameters of
// the output layer begin, are defined before this file. Behind each pointer comes its length: every kernel stays below it. The
// file keeps to what CUDA and C have in common, for tests on the host.

#define PARAMETERS (OUTPUT + (HIDDEN + 1) * CLASSES)

// A thread for each unit of each row.
extern "C" __global__ void activate(double *hidden, long long hidden_length, const double *parameters,
    long long parameters_length, const double *input, long long input_length)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, row = at / HIDDEN, to = at % HIDDEN;
    if (at >= hidden_length || row >= input_length / FEATURES || parameters_length < PARAMETERS) {
        return;
    }
    double sum = 0.0;
    for (int from = 0; from < FEATURES; from++) {
        sum += parameters[to * FEATURES + from] * input[row * FEATURES + from];
    }
    hidden[at] = tanh(sum + parameters[HIDDEN * FEATURES + to]);
}

// A thread for each row. `scores` are its loss and whether the model is right, `errors` the slopes of the loss times `*scale`.
extern "C" __global__ void judge(double *scores, long long scores_length, double *errors, long long errors_length,
    const double *parameters, long long parameters_length, const double *hidden, long long hidden_length,
    const long long *classes, long long classes_length, const double *scale, long long scale_length)
{
    long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= scores_length / 2 || row >= errors_length / CLASSES || row >= hidden_length / HIDDEN
        || row >= classes_length || parameters_length < PARAMETERS || scale_length < 1) {
        return;
    }
    if (classes[row] < 0 || classes[row] >= CLASSES) {
        return;
    }
    double powers[CLASSES], most = 0.0, sum = 0.0;
    for (int to = 0; to < CLASSES; to++) {
        double output = 0.0;
        for (int from = 0; from < HIDDEN; from++) {
            output += parameters[OUTPUT + to * HIDDEN + from] * hidden[row * HIDDEN + from];
        }
        powers[to] = output + parameters[OUTPUT + CLASSES * HIDDEN + to];
        most = to == 0 || powers[to] > most ? powers[to] : most;
    }
    // The largest is taken away first, so that no exponential overflows.
    for (int to = 0; to < CLASSES; to++) {
        powers[to] = exp(powers[to] - most);
        sum += powers[to];
    }
    double own = powers[classes[row]] / sum;
    int is_right = 1;
    for (int to = 0; to < CLASSES; to++) {
        double probability = powers[to] / sum;
        is_right = is_right && probability <= own;
        errors[row * CLASSES + to] = (probability - (to == classes[row] ? 1.0 : 0.0)) * *scale;
    }
    scores[row * 2] = -log(own > 2.2250738585072014e-308 ? own : 2.2250738585072014e-308);
    scores[row * 2 + 1] = is_right;
}

// A thread for each unit of each row: the slopes of the hidden layer.
extern "C" __global__ void descend_into_hidden(double *slopes, long long slopes_length, const double *parameters,
    long long parameters_length, const double *hidden, long long hidden_length, const double *errors,
    long long errors_length)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, row = at / HIDDEN, unit = at % HIDDEN;
    if (at >= slopes_length || at >= hidden_length || row >= errors_length / CLASSES
        || parameters_length < PARAMETERS) {
        return;
    }
    double error = 0.0;
    for (int to = 0; to < CLASSES; to++) {
        error += parameters[OUTPUT + to * HIDDEN + unit] * errors[row * CLASSES + to];
    }
    slopes[at] = error * (1.0 - hidden[at] * hidden[at]);
}

// A thread for each parameter of a layer: weights, output by output, then biases.
extern "C" __global__ void differentiate(double *gradients, long long gradients_length, const double *slopes,
    long long slopes_length, const double *input, long long input_length, long long inputs, long long outputs)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= gradients_length || inputs < 1 || outputs < 1) {
        return;
    }
    int is_bias = at / inputs >= outputs;
    long long to = is_bias ? at - inputs * outputs : at / inputs, from = at % inputs;
    if (to >= outputs) {
        return;
    }
    double sum = 0.0;
    for (long long row = 0; row < slopes_length / outputs && row < input_length / inputs; row++) {
        sum += slopes[row * outputs + to] * (is_bias ? 1.0 : input[row * inputs + from]);
    }
    gradients[at] = sum;
}

// A thread for each parameter: a step against the gradient.
extern "C" __global__ void step(double *parameters, long long parameters_length, const double *gradients,
    long long gradients_length, const double *rate, long long rate_length)
{
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < parameters_length && at < gradients_length && rate_length > 0) {
        parameters[at] -= *rate * gradients[at];
    }
}
