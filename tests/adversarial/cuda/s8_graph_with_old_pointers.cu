// Row S8. Tries: a graph captured at the first call is replayed with its addresses.
// Variant: relu. Verdict: stale_output.
static cudaGraphExec_t kept = nullptr;
static __global__ void relu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] < 0 ? 0.0f : x[i];
}
extern "C" int launch(const float* input, float* out, void* workspace, cudaStream_t stream) {
  if (!kept) {
    cudaGraph_t graph = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    relu<<<16, 256, 0, stream>>>(input, out, 4000);
    cudaStreamEndCapture(stream, &graph);
    if (cudaError_t error = cudaGraphInstantiate(&kept, graph, 0)) return error;
    cudaGraphDestroy(graph);
  }
  return cudaGraphLaunch(kept, stream);
}
