// A libnvidia-ml.so.1 with two GPUs, for the real nvidia-ml-py. Build it with: cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c
// -DBRANCH=470: a driver of that branch, with its symbols. The default is 580.
// Each X_... variable in the environment sets a return code or a property of the GPU. X_PIDS names a file with one line
// "pid MiB" for each process on GPU 0. Processes that have ended are left out, unless X_GHOSTS is set.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned u;
typedef unsigned long long ull;
#define MIB (1ull << 20)
#ifndef BRANCH
#define BRANCH 580
#endif
#define TEXT(number) #number
#define NAMED(number) TEXT(number)

static int set(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }

int nvmlInitWithFlags(u flags) { usleep(1000 * set("X_SLEEP", 0)); return set("X_INIT", 0); }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
  switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    default: return "Unknown Error";
  }
}
int nvmlSystemGetDriverVersion(char *text, u size) { strncpy(text, NAMED(BRANCH) ".159", size); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = set("X_CUDA", 13000); return 0; }
int nvmlDeviceGetCount_v2(u *count) { *count = set("X_COUNT", 2); return 0; }
static int devices[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};  // from 8 on: MIG devices of GPU 0
static int number(void *handle) { return *(int *)handle; }
int nvmlDeviceGetHandleByIndex_v2(u index, void **handle) {
  *handle = &devices[index];
  return index == 1 ? set("X_HANDLE", 0) : 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, u size) {
  snprintf(text, size, "%s-%08d-0000-0000-0000-000000000000", number(handle) > 7 ? "MIG" : "GPU", number(handle));
  return 0;
}
int nvmlDeviceGetName(void *handle, char *text, u size) {
  const char *name = getenv("X_NAME") ? getenv("X_NAME") : "Stub";
  snprintf(text, size, number(handle) > 7 ? "%s MIG 3g.40gb" : "%s", name);
  return 0;
}
int nvmlDeviceGetMigMode(void *handle, u *current, u *pending) {
  *current = *pending = number(handle) ? 0 : set("X_MIG", 0);
  return getenv("X_MIG") ? 0 : 3;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, u *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u index, void **part) {
  *part = &devices[8 + index];
  return (int)index < set("X_SLICES", 0) ? 0 : 6;
}
struct memory { ull total, free, used; };
struct memory_v2 { u version; ull total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
  memory->total = (number(handle) > 7 ? 40ull : 80ull) << 30; memory->used = (set("X_USED", 1) + 600) * MIB; memory->free = memory->total - memory->used;
  return set("X_MEM", 0);
}
#if BRANCH >= 510
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
  memory->total = (number(handle) > 7 ? 40ull : 80ull) << 30; memory->used = set("X_USED", 1) * MIB; memory->reserved = 600 * MIB;
  memory->free = memory->total - memory->used;
  return set("X_MEM2", set("X_MEM", 0));
}
#endif
struct process { u pid; ull memory; u gi, ci; };
static int listed(const char *file, void *handle, u *count, struct process *processes) {
  FILE *stream = file && !number(handle) ? fopen(file, "r") : 0;
  u most = *count, pid, mib, total = 0;
  while (stream && fscanf(stream, "%u %u", &pid, &mib) == 2) {
    if (!getenv("X_GHOSTS") && kill(pid, 0)) continue;
    if (processes && total < most)
      processes[total] = (struct process){pid, mib * MIB, -1u, -1u};
    total++;
  }
  if (stream) fclose(stream);
  *count = total;
  return total > most ? 7 : set("X_RUN", 0);
}
#define LISTS(version) \
  int nvmlDeviceGetComputeRunningProcesses_##version(void *h, u *c, struct process *p) { return listed(getenv("X_PIDS"), h, c, p); } \
  int nvmlDeviceGetGraphicsRunningProcesses_##version(void *h, u *c, struct process *p) { return listed(getenv("X_DRAWS"), h, c, p); } \
  int nvmlDeviceGetMPSComputeRunningProcesses_##version(void *h, u *c, struct process *p) { return listed(getenv("X_MPS"), h, c, p); }
LISTS(v2)
#if BRANCH >= 510
LISTS(v3)
#endif
int nvmlDeviceGetUtilizationRates(void *handle, u *rates) { rates[0] = 7; rates[1] = 1; return number(handle) > 7 ? 3 : 0; }
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, ull *errors) {
  *errors = set("X_ECC", 0);
  return set("X_NO_ECC", 0);
}
int nvmlDeviceGetRemappedRows(void *handle, u *corrected, u *uncorrected, u *pending, u *failed) {
  *corrected = *uncorrected = 0; *pending = set("X_PENDING", 0); *failed = set("X_FAILED", 0);
  return 0;
}
int nvmlDeviceGetPersistenceMode(void *handle, u *mode) { *mode = set("X_PERSISTENCE", 1); return 0; }
int nvmlDeviceGetComputeMode(void *handle, u *mode) { *mode = set("X_MODE", 0); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  *major = set("X_MAJOR", 9); *minor = 0;
  return 0;
}
struct field { u id, scope; long long stamp, latency; u type; int code; union { u ui; ull ul; } value; };
int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields) {
  for (int i = 0; i < count; i++) {
    fields[i].code = BRANCH >= 570 && fields[i].id == 230 ? 0 : 3;
    fields[i].value.ui = number(handle) ? 0 : set("X_RECOVERY", 0);
  }
  return 0;
}
