/* A libnvidia-ml.so.1 for machines without a GPU, driven by a control file that may change at run time.
 *
 * FAKE_NVML names the file; each line is `key=value`, nested as `devices.0.processes.1.pid=42`. The file is read again
 * when its modification time or size changes, so a test can lose a device, slow a call or start a process under a
 * running poller. Calls are counted in `<file>.calls`, an array of (name[56], uint64) that any process may map.
 * build.py writes and reads both. Without FAKE_NVML the library behaves as if there were none. Layouts and codes follow
 * NVIDIA's nvml.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LIBRARY_NOT_FOUND = 12, FUNCTION_NOT_FOUND = 13,
};
#define MAX_DEVICES 16
#define MAX_MIG 7
#define MAX_ENTRIES 4096
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFull

/* --- the control file ------------------------------------------------------------------------------------------ */

typedef struct { char *key; char *value; } Entry;
static Entry entries[MAX_ENTRIES];
static int entry_count;
static char *text;
static struct timespec loaded_at;
static off_t loaded_size = -1;
static ino_t loaded_inode;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int by_key(const void *a, const void *b) { return strcmp(((const Entry *)a)->key, ((const Entry *)b)->key); }

static void reload(void) {
  const char *path = getenv("FAKE_NVML");
  struct stat info;
  if (!path || stat(path, &info)) return;
  if (info.st_size == loaded_size && info.st_ino == loaded_inode && info.st_mtim.tv_sec == loaded_at.tv_sec &&
      info.st_mtim.tv_nsec == loaded_at.tv_nsec) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  free(text);
  text = calloc(1, info.st_size + 1);
  size_t got = fread(text, 1, info.st_size, file);
  text[got] = 0;
  fclose(file);
  loaded_at = info.st_mtim;
  loaded_size = info.st_size;
  loaded_inode = info.st_ino;
  entry_count = 0;
  char *rest = text, *line;
  while ((line = strsep(&rest, "\n")) && entry_count < MAX_ENTRIES) {
    char *equals = strchr(line, '=');
    if (!equals) continue;
    *equals = 0;
    entries[entry_count++] = (Entry){line, equals + 1};
  }
  qsort(entries, entry_count, sizeof(Entry), by_key);
}

static const char *lookup(const char *key) {
  Entry wanted = {(char *)key, NULL};
  Entry *found = bsearch(&wanted, entries, entry_count, sizeof(Entry), by_key);
  return found ? found->value : NULL;
}

static const char *string_at(const char *prefix, const char *name, const char *otherwise) {
  char key[160];
  snprintf(key, sizeof key, "%s%s", prefix, name);
  const char *value = lookup(key);
  return value ? value : otherwise;
}

static long long number_at(const char *prefix, const char *name, long long otherwise) {
  const char *value = string_at(prefix, name, NULL);
  return value ? strtoll(value, NULL, 10) : otherwise;
}

/* --- counting and slowness -------------------------------------------------------------------------------------- */

typedef struct { char name[56]; uint64_t count; } Counter;
#define MAX_COUNTERS 64
static Counter *counters;

static void count_call(const char *name) {
  if (!counters) {
    const char *path = getenv("FAKE_NVML");
    char calls[4096];
    if (!path) return;
    snprintf(calls, sizeof calls, "%s.calls", path);
    int file = open(calls, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    if (ftruncate(file, sizeof(Counter) * MAX_COUNTERS) == 0) {
      void *map = mmap(NULL, sizeof(Counter) * MAX_COUNTERS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (map != MAP_FAILED) counters = map;
    }
    close(file);
    if (!counters) return;
  }
  for (int i = 0; i < MAX_COUNTERS; i++) {
    if (!counters[i].name[0]) snprintf(counters[i].name, sizeof counters[i].name, "%s", name);
    if (!strcmp(counters[i].name, name)) { __atomic_add_fetch(&counters[i].count, 1, __ATOMIC_RELAXED); return; }
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Sleeping is 50 us coarse; real calls take 2 to 40 us, so short delays spin. */
static void delay(long long microseconds) {
  if (microseconds <= 0) return;
  if (microseconds < 500) {
    double until = now() + microseconds * 1e-6;
    while (now() < until) {}
    return;
  }
  struct timespec t = {microseconds / 1000000, (microseconds % 1000000) * 1000};
  nanosleep(&t, NULL);
}

/* --- handles ---------------------------------------------------------------------------------------------------- */

/* A handle is its generation, device and MIG instance, so that a stale one is recognised after a restart. */
static uint64_t registered[MAX_DEVICES];
static int delivered[MAX_DEVICES];
static int references;
static uint32_t generation;

static void *make_handle(int device, int instance) {
  return (void *)(uintptr_t)(((uint64_t)(generation & 0xFFFF) << 16) | (uint64_t)(device + 1) << 8 | (instance + 1));
}

typedef struct { int device, instance; char prefix[64]; } Target;

static int target_of(void *handle, Target *target) {
  uint64_t bits = (uintptr_t)handle;
  target->device = (int)((bits >> 8) & 0xFF) - 1;
  target->instance = (int)(bits & 0xFF) - 1;
  if (((bits >> 16) & 0xFFFF) != (generation & 0xFFFF)) return INVALID_ARGUMENT;
  if (target->device < 0 || target->device >= number_at("", "count", 1)) return INVALID_ARGUMENT;
  if (target->instance < 0) snprintf(target->prefix, sizeof target->prefix, "devices.%d.", target->device);
  else snprintf(target->prefix, sizeof target->prefix, "devices.%d.mig_instances.%d.", target->device, target->instance);
  /* An instance that is gone takes its handle with it. */
  if (target->instance >= 0 && !string_at(target->prefix, "total", NULL)) return INVALID_ARGUMENT;
  return OK;
}

/* Every call on a device: reload, count, sleep, and answer the fault that the control file asks for. */
static int enter(const char *name, void *handle, Target *target) {
  pthread_mutex_lock(&mutex);
  reload();
  count_call(name);
  long long wait = number_at("delay_us.", name, number_at("delay_us.", "all", 0));
  pthread_mutex_unlock(&mutex);
  delay(wait);
  pthread_mutex_lock(&mutex);
  int code = OK;
  if (!getenv("FAKE_NVML")) code = DRIVER_NOT_LOADED;
  else if (references == 0) code = UNINITIALIZED;
  else if (number_at("", "driver_error", 0)) code = (int)number_at("", "driver_error", 0);
  else if (number_at("missing.", name, 0)) code = FUNCTION_NOT_FOUND;
  else if (target) {
    code = target_of(handle, target);
    if (code == OK) {
      char parent[64], key[96];
      snprintf(parent, sizeof parent, "devices.%d.", target->device);
      code = (int)number_at(parent, "error", 0);
      snprintf(key, sizeof key, "errors.%s", name);
      if (code == OK) code = (int)number_at(target->prefix, key, 0);
    }
  }
  if (code != OK) pthread_mutex_unlock(&mutex);
  return code;
}

static int leave(int code) {
  pthread_mutex_unlock(&mutex);
  return code;
}

#define ENTER(handle) \
  Target target; \
  int code = enter(__func__, handle, &target); \
  if (code != OK) return code;

static int copy_text(const char *value, char *out, unsigned length) {
  snprintf(out, length, "%s", value);
  return OK;
}

/* --- the library ------------------------------------------------------------------------------------------------ */

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&mutex);
  reload();
  count_call(__func__);
  long long wait = number_at("delay_us.", __func__, 0);
  int code = getenv("FAKE_NVML") ? (int)number_at("", "init", 0) : LIBRARY_NOT_FOUND;
  if (code == OK && references++ == 0) {
    generation++;
    /* Events that were not asked for before this init are new to it. */
    memset(registered, 0, sizeof registered);
    memset(delivered, 0, sizeof delivered);
  }
  pthread_mutex_unlock(&mutex);
  delay(wait);
  return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
  pthread_mutex_lock(&mutex);
  count_call(__func__);
  int code = references > 0 ? (references--, OK) : UNINITIALIZED;
  pthread_mutex_unlock(&mutex);
  return code;
}
const char *nvmlErrorString(int code) {
  static char words[32];
  snprintf(words, sizeof words, "fake error %d", code);
  return words;
}
int nvmlSystemGetDriverVersion(char *out, unsigned length) {
  int code = enter(__func__, NULL, NULL);
  return code ? code : leave(copy_text(string_at("", "driver", "580.159"), out, length));
}
int nvmlSystemGetNVMLVersion(char *out, unsigned length) {
  int code = enter(__func__, NULL, NULL);
  return code ? code : leave(copy_text(string_at("", "driver", "13.580.159"), out, length));
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  *out = 13000;
  return leave(OK);
}
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlDeviceGetCount_v2(unsigned *out) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  *out = (unsigned)number_at("", "count", 1);
  return leave(OK);
}
int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  if (index >= (unsigned)number_at("", "count", 1)) return leave(INVALID_ARGUMENT);
  char prefix[64];
  snprintf(prefix, sizeof prefix, "devices.%u.", index);
  code = (int)number_at(prefix, "error", number_at(prefix, "handle_error", 0));
  if (code == OK) *out = make_handle((int)index, -1);
  return leave(code);
}
int nvmlDeviceGetHandleByIndex(unsigned index, void **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

int nvmlDeviceGetName(void *handle, char *out, unsigned length) {
  ENTER(handle)
  return leave(copy_text(string_at(target.prefix, "name", target.instance < 0 ? "NVIDIA Fake H200" : "NVIDIA Fake MIG 1g.18gb"), out, length));
}
int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
  ENTER(handle)
  char otherwise[80];
  if (target.instance < 0) snprintf(otherwise, sizeof otherwise, "GPU-00000000-0000-0000-0000-%012d", target.device);
  else snprintf(otherwise, sizeof otherwise, "MIG-00000000-0000-0000-%04d-%012d", target.instance, target.device);
  return leave(copy_text(string_at(target.prefix, "uuid", otherwise), out, length));
}
int nvmlDeviceGetIndex(void *handle, unsigned *out) { ENTER(handle) *out = target.device; return leave(OK); }
int nvmlDeviceGetMinorNumber(void *handle, unsigned *out) { ENTER(handle) *out = target.device; return leave(OK); }

typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } MemoryV2;

static int read_memory(Target *target, MemoryV2 *out) {
  if (number_at(target->prefix, "unified", 0)) return NOT_SUPPORTED;
  if (target->instance < 0 && number_at(target->prefix, "mig", 0) && !number_at(target->prefix, "mig_permission", 1))
    return NO_PERMISSION;
  out->total = number_at(target->prefix, "total", 150754820096LL);
  out->used = number_at(target->prefix, "used", 3773628416LL);
  out->reserved = number_at(target->prefix, "reserved", 644939776LL);
  out->free = number_at(target->prefix, "free", (long long)(out->total - out->used - out->reserved));
  return OK;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *out) {
  ENTER(handle)
  MemoryV2 memory;
  code = read_memory(&target, &memory);
  if (code == OK) *out = (Memory){memory.total, memory.free, memory.used + memory.reserved};
  return leave(code);
}
#ifndef WITHOUT_MEMORY_V2
int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *out) {
  ENTER(handle)
  return leave(read_memory(&target, out));
}
#endif

typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(void *handle, Utilization *out) {
  ENTER(handle)
  if (number_at(target.prefix, "mig", 0) || target.instance >= 0) return leave(NOT_SUPPORTED);
  *out = (Utilization){(unsigned)number_at(target.prefix, "utilization", 37), 12};
  return leave(OK);
}

#define NUMBER_CALL(name, type, key, otherwise) \
  int name(void *handle, type *out) { ENTER(handle) *out = (type)number_at(target.prefix, key, otherwise); return leave(OK); }
NUMBER_CALL(nvmlDeviceGetPowerUsage, unsigned, "power_mw", 123456)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit_mw", 700000)
NUMBER_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, "throttle", 0)
NUMBER_CALL(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, "throttle", 0)
NUMBER_CALL(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig_max", MAX_MIG)
NUMBER_CALL(nvmlDeviceGetTotalEnergyConsumption, uint64_t, "energy_mj", 1)

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out) {
  ENTER(handle)
  if (sensor != 0) return leave(INVALID_ARGUMENT);
  *out = (unsigned)number_at(target.prefix, "temperature", 41);
  return leave(OK);
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, uint64_t *out) {
  ENTER(handle)
  (void)counter;
  *out = kind == 1 ? number_at(target.prefix, "ecc_uncorrected", 0) : 0;
  return leave(OK);
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  ENTER(handle)
  *corrected = 0;
  *uncorrected = 0;
  *pending = (unsigned)number_at(target.prefix, "remap_pending", 0);
  *failed = (unsigned)number_at(target.prefix, "remap_failed", 0);
  return leave(OK);
}
int nvmlDeviceGetNumaNodeId(void *handle, int *out) {
  ENTER(handle)
  long long node = number_at(target.prefix, "numa_node", -1);
  *out = (int)node;
  return leave(node < 0 ? NOT_SUPPORTED : OK);
}
int nvmlDeviceGetPcieThroughput(void *handle, int kind, unsigned *out) {
  ENTER(handle)
  (void)kind;
  *out = 1000;
  return leave(OK);
}

/* --- processes -------------------------------------------------------------------------------------------------- */

typedef struct { uint32_t pid; uint64_t used; uint32_t gpu_instance, compute_instance; } Process;

static int list_processes(Target *target, const char *list, unsigned *count, Process *out) {
  if (target->instance < 0 && number_at(target->prefix, "mig", 0) && !number_at(target->prefix, "mig_permission", 1))
    return NO_PERMISSION;
  unsigned found = 0;
  for (;; found++) {
    char key[160];
    snprintf(key, sizeof key, "%s%s.%u.", target->prefix, list, found);
    const char *pid = string_at(key, "pid", NULL);
    if (!pid) break;
    if (!out || found >= *count) continue;
    const char *used = string_at(key, "used", "0");
    out[found].pid = !strcmp(pid, "self") ? (uint32_t)getpid() : (uint32_t)strtoul(pid, NULL, 10);
    out[found].used = !strcmp(used, "null") ? NOT_AVAILABLE : strtoull(used, NULL, 10);
    out[found].gpu_instance = target->instance < 0 ? 0xFFFFFFFF : (uint32_t)target->instance;
    out[found].compute_instance = target->instance < 0 ? 0xFFFFFFFF : 0;
  }
  unsigned room = *count;
  *count = found;
  return found == 0 || (out && room >= found) ? OK : INSUFFICIENT_SIZE;
}
#define PROCESS_CALL(name, list) \
  int name(void *handle, unsigned *count, Process *out) { ENTER(handle) return leave(list_processes(&target, list, count, out)); }
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v2, "processes")
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
#ifndef WITHOUT_PROCESSES_V3
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
#endif

/* --- MIG -------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  ENTER(handle)
  if (target.instance >= 0) return leave(INVALID_ARGUMENT);
  *current = *pending = (unsigned)number_at(target.prefix, "mig", 0);
  return leave(number_at(target.prefix, "mig_capable", 1) ? OK : NOT_SUPPORTED);
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
  ENTER(handle)
  char key[64];
  snprintf(key, sizeof key, "mig_instances.%u.total", index);
  if (index >= MAX_MIG) return leave(INVALID_ARGUMENT);
  if (!string_at(target.prefix, key, NULL)) return leave(NOT_FOUND);
  *out = make_handle(target.device, (int)index);
  return leave(OK);
}

/* --- events: the control file's `xids` of each device, each delivered once a process ---------------------------------- */

typedef struct { void *device; uint64_t type, data; uint32_t gpu_instance, compute_instance; } Event;

int nvmlEventSetCreate(void **out) {
  int code = enter(__func__, NULL, NULL);
  if (code) return code;
  *out = (void *)1;
  return leave(OK);
}
int nvmlDeviceRegisterEvents(void *handle, uint64_t types, void *set) {
  ENTER(handle)
  (void)set;
  registered[target.device] = types;
  return leave(OK);
}
int nvmlEventSetWait_v2(void *set, Event *out, unsigned milliseconds) {
  int code = enter(__func__, NULL, NULL);
  (void)set;
  (void)milliseconds;
  if (code) return code;
  for (int device = 0; device < MAX_DEVICES; device++) {
    char key[64];
    snprintf(key, sizeof key, "devices.%d.xids.%d", device, delivered[device]);
    const char *xid = lookup(key);
    if (!registered[device] || !xid) continue;
    delivered[device]++;
    *out = (Event){make_handle(device, -1), 8, strtoull(xid, NULL, 10), 0xFFFFFFFF, 0xFFFFFFFF};
    return leave(OK);
  }
  return leave(TIMEOUT);
}

/* --- what other monitors ask (benchmarks) ------------------------------------------------------------------------ */

#define UNSUPPORTED_CALL(name) \
  int name(void *handle) { ENTER(handle) return leave(NOT_SUPPORTED); }
UNSUPPORTED_CALL(nvmlDeviceGetPciInfo_v3)
UNSUPPORTED_CALL(nvmlDeviceGetEncoderUtilization)
UNSUPPORTED_CALL(nvmlDeviceGetDecoderUtilization)
UNSUPPORTED_CALL(nvmlDeviceGetClockInfo)
UNSUPPORTED_CALL(nvmlDeviceGetMaxClockInfo)
UNSUPPORTED_CALL(nvmlDeviceGetFanSpeed)
UNSUPPORTED_CALL(nvmlDeviceGetPowerManagementLimit)
UNSUPPORTED_CALL(nvmlDeviceGetDisplayActive)
UNSUPPORTED_CALL(nvmlDeviceGetDisplayMode)
UNSUPPORTED_CALL(nvmlDeviceGetDriverModel)
UNSUPPORTED_CALL(nvmlDeviceGetDriverModel_v2)
UNSUPPORTED_CALL(nvmlDeviceGetPersistenceMode)
UNSUPPORTED_CALL(nvmlDeviceGetPerformanceState)
UNSUPPORTED_CALL(nvmlDeviceGetComputeMode)
UNSUPPORTED_CALL(nvmlDeviceGetCudaComputeCapability)
UNSUPPORTED_CALL(nvmlDeviceGetProcessUtilization)
UNSUPPORTED_CALL(nvmlDeviceGetBAR1MemoryInfo)
UNSUPPORTED_CALL(nvmlDeviceGetSerial)
UNSUPPORTED_CALL(nvmlDeviceGetNvLinkVersion)
UNSUPPORTED_CALL(nvmlDeviceGetNvLinkState)
UNSUPPORTED_CALL(nvmlDeviceGetNvLinkCapability)
UNSUPPORTED_CALL(nvmlDeviceGetFieldValues)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_generation", 5)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width", 16)
