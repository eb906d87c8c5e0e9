// A libcuda.so.1 with the calls that a trial makes. Build it with: cc -shared -fPIC -o libcuda.so.1 cuda.c
// X_CUDA names a file with the error code for a new context. With 0 or no file, a context is created. A negative code
// is for how many seconds CUDA hangs. X_CUDA_GPU: only the GPU with this UUID.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int refusal(void) {
  const char *name = getenv("X_CUDA"), *gpu = getenv("X_CUDA_GPU"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  FILE *stream = name ? fopen(name, "r") : 0;
  int code = 0;
  if (!stream) return 0;
  if (gpu && (!visible || strcmp(gpu, visible))) { fclose(stream); return 0; }
  if (fscanf(stream, "%d", &code) != 1) code = 0;
  fclose(stream);
  if (code < 0) sleep(-code);
  return code;
}
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &context; return refusal(); }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(unsigned long long *memory, size_t bytes) { *memory = 4096; return 0; }
int cuMemsetD8_v2(unsigned long long memory, unsigned char value, size_t bytes) { return memory == 4096 ? 0 : 1; }
int cuCtxSynchronize(void) { return 0; }
int cuGetErrorString(int code, const char **text) { *text = "uncorrectable ECC error encountered"; return 0; }
