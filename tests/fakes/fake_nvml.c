/* A fake libnvidia-ml.so.1 for tests: N GPUs whose readings follow a script file.
 *   gcc -shared -fPIC -O1 -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c
 *   LD_LIBRARY_PATH=DIR FAKE_NVML_COUNT=2 FAKE_NVML_SCRIPT=gpus.txt python ...
 * Script: one change a line, "SECONDS GPU KEY VALUE"; GPU is an index or *; a value holds until the next change. The file
 * is read again whenever it changes, so a test can append to it. Time 0 is FAKE_NVML_T0 (epoch seconds) or the first init.
 * Keys: name total_mib used_mib reserved_mib util mem_util power_mw inst_power_mw limit_mw temp sm_mhz mem_mhz reasons
 *       pcie_tx_kbs pcie_rx_kbs procs (pid:mib,pid:mib) xid ecc mig cc (90 = 9.0) arch count cuda (12080 = 12.8)
 *       mig (1: MIG mode is on) mig_devices (slots of the MIG devices it has, such as 0,2) mig_procs (as procs, on each)
 *       err (nvmlReturn_t of every call on that GPU) err:FUNCTION (of one call) err:nvmlInit_v2 with GPU *
 *       err:field:N (of one field value) hang:FUNCTION (1: the call waits until the script says 0) mem_temp
 *       sm_active sm_occupancy tensor_active dram_active (percent, told by GPM where cc >= 90) err:gpm:N (of one GPM metric)
 *       persistence pcie_tx_bytes pcie_rx_bytes pcie_replays nvlink_tx_kib nvlink_rx_kib (the last five count; NVLink's by links: scope -1 sums 2)
 * Energy and throttled times are exact integrals of the script: reasons 0x4 counts as power, 0x20 as heat.
 * A MIG device answers as its GPU does, but for UUID, name, memory (a seventh) and processes; it refuses utilisation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK, UNINIT, BADARG, NOTSUP, NOPERM, ALREADY, NOTFOUND, SMALL, TIMEOUT = 10, LOST = 15 };
#define MIB 1048576ULL
#define API __attribute__((visibility("default")))

typedef struct { double t; int gpu; char key[64]; char val[192]; } Change;
typedef struct { Change *c; int n; } Script;
static Script *S = &(Script){0}; /* replaced whole, never freed: threads read it */
static int inits;
static double t0;
static struct timespec seen;
static off_t seen_size = -1;
static struct { int gpu; } dev[64], mig[64 * 7];

static double wall(void) { struct timespec s; clock_gettime(CLOCK_REALTIME, &s); return s.tv_sec + s.tv_nsec / 1e9; }
static double now(void) { return wall() - t0; }

static void load(void) {
  const char *p = getenv("FAKE_NVML_SCRIPT");
  struct stat st;
  if (!p || stat(p, &st)) return;
  if (seen_size == st.st_size && !memcmp(&seen, &st.st_mtim, sizeof seen)) return;
  FILE *f = fopen(p, "r");
  if (!f) return;
  seen = st.st_mtim, seen_size = st.st_size;
  Script *fresh = calloc(1, sizeof *fresh);
  char line[400], g[16];
  while (fgets(line, sizeof line, f)) {
    Change c;
    if (sscanf(line, "%lf %15s %63s %191[^\n]", &c.t, g, c.key, c.val) != 4) continue;
    c.gpu = *g == '*' ? -1 : atoi(g);
    if (fresh->n % 256 == 0) fresh->c = realloc(fresh->c, (fresh->n + 256) * sizeof c);
    fresh->c[fresh->n++] = c;
  }
  fclose(f);
  S = fresh;
}

static const char *str_at(int gpu, const char *key, double t, const char *def) {
  Script *s = S;
  for (int i = 0; i < s->n; i++)
    if (s->c[i].t <= t && (s->c[i].gpu == gpu || s->c[i].gpu < 0) && !strcmp(s->c[i].key, key)) def = s->c[i].val;
  return def;
}
static const char *str(int gpu, const char *key, const char *def) { load(); return str_at(gpu, key, now(), def); }
static double num_at(int gpu, const char *key, double t, double def) {
  const char *s = str_at(gpu, key, t, NULL);
  return s ? atof(s) : def;
}
static double num(int gpu, const char *key, double def) { load(); return num_at(gpu, key, now(), def); }
static int count(void) { const char *e = getenv("FAKE_NVML_COUNT"); return (int)num(-1, "count", e ? atoi(e) : 1); }

static int is_mig(void *d) { return (char *)d >= (char *)mig && (char *)d < (char *)(mig + 64 * 7); }
static int slot_of(void *d) { return (int)((char *)d - (char *)mig) / (int)sizeof *mig; } /* GPU * 7 + slot */
static int gpu_of(void *d) { return is_mig(d) ? slot_of(d) / 7 : (int)((char *)d - (char *)dev) / (int)sizeof *dev; }
static int check(void *d, const char *fn) {
  char k[80];
  if (!inits) return UNINIT;
  int i = gpu_of(d);
  if (!d || i < 0 || i >= count()) return BADARG;
  int e = (int)num(i, "err", 0);
  snprintf(k, sizeof k, "hang:%s", fn);
  while (num(i, k, 0)) usleep(10000);
  snprintf(k, sizeof k, "err:%s", fn);
  return e ? e : (int)num(i, k, 0);
}
#define GPU(d) gpu_of(d)
#define ENTER(d) do { int e_ = check(d, __func__); if (e_) return e_; } while (0)
#define PUT(ptr, v) do { if (!(ptr)) return BADARG; *(ptr) = (v); return OK; } while (0)
static int text(char *out, u32 n, const char *s) { if (strlen(s) + 1 > n) return SMALL; strcpy(out, s); return OK; }

static double power_mw(int g, double t) { return num_at(g, "power_mw", t, 70000); }
static double throttled(int g, double t, u64 bit) { return strtoull(str_at(g, "reasons", t, "1"), NULL, 0) & bit ? 1e9 : 0; }
static double power_ns(int g, double t) { return throttled(g, t, 0x4); }
static double heat_ns(int g, double t) { return throttled(g, t, 0x20); }
static double integral(int g, double t, double (*of)(int, double)) { /* exact: `of` is a step function of the script */
  double sum = 0, a = 0;
  load();
  Script *s = S;
  while (a < t) {
    double b = t;
    for (int i = 0; i < s->n; i++) if (s->c[i].t > a && s->c[i].t < b) b = s->c[i].t;
    sum += of(g, a) * (b - a);
    a = b;
  }
  return sum;
}
static double energy_mj(int g, double t) { return 1e6 + integral(g, t, power_mw); }

API int nvmlInitWithFlags(u32 f) {
  (void)f;
  if (!inits && !t0) t0 = getenv("FAKE_NVML_T0") ? atof(getenv("FAKE_NVML_T0")) : wall();
  int e = (int)num(-1, "err:nvmlInit_v2", 0);
  if (e) return e;
  inits++;
  return OK;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { if (!inits) return UNINIT; inits--; return OK; }
API const char *nvmlErrorString(int r) {
  static const char *s[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size"};
  return r >= 0 && r < 8 ? s[r] : r == LOST ? "GPU is lost" : r == 999 ? "Unknown Error" : "Other Error";
}
API int nvmlSystemGetDriverVersion(char *s, u32 n) { return text(s, n, "580.00.00"); }
API int nvmlSystemGetNVMLVersion(char *s, u32 n) { return text(s, n, "13.580.00"); }
API int nvmlSystemGetCudaDriverVersion_v2(int *v) { PUT(v, (int)num(-1, "cuda", 13000)); }
API int nvmlSystemGetCudaDriverVersion(int *v) { PUT(v, (int)num(-1, "cuda", 13000)); }
API int nvmlDeviceGetCount_v2(u32 *n) { if (!inits) return UNINIT; PUT(n, (u32)count()); }
API int nvmlDeviceGetHandleByIndex_v2(u32 i, void **d) {
  if (!inits) return UNINIT;
  if ((int)i >= count()) return BADARG;
  *d = &dev[i];
  return check(*d, __func__);
}
static void uuid_of(int g, char *s) { sprintf(s, "GPU-fa4e0000-0000-4000-8000-%012d", g); }
static void mig_uuid_of(int k, char *s) { sprintf(s, "MIG-fa4e0000-0000-4000-%04d-%012d", k % 7, k / 7); }
static int has_slot(int g, int slot) {
  const char *s = str(g, "mig_devices", "");
  return num(g, "mig", 0) && strchr(s, '0' + slot);
}
API int nvmlDeviceGetHandleByUUID(const char *u, void **d) {
  char s[64];
  for (int i = 0; i < count(); i++) { uuid_of(i, s); if (!strcmp(s, u)) { *d = &dev[i]; return check(*d, __func__); } }
  for (int k = 0; k < count() * 7; k++) {
    mig_uuid_of(k, s);
    if (has_slot(k / 7, k % 7) && !strcmp(s, u)) { *d = &mig[k]; return check(*d, __func__); }
  }
  return NOTFOUND;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(void *d, u32 i, void **out) {
  ENTER(d);
  if (i > 6) return BADARG;
  if (!has_slot(GPU(d), (int)i)) return NOTFOUND;
  PUT(out, &mig[GPU(d) * 7 + (int)i]);
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *d, void **out) { ENTER(d); if (!is_mig(d)) return BADARG; PUT(out, &dev[GPU(d)]); }
API int nvmlDeviceGetGpuInstanceId(void *d, u32 *v) { ENTER(d); if (!is_mig(d)) return NOTSUP; PUT(v, (u32)(slot_of(d) % 7)); }
API int nvmlDeviceGetComputeInstanceId(void *d, u32 *v) { ENTER(d); if (!is_mig(d)) return NOTSUP; PUT(v, 0); }
API int nvmlDeviceGetIndex(void *d, u32 *i) { ENTER(d); PUT(i, (u32)GPU(d)); }
API int nvmlDeviceGetMinorNumber(void *d, u32 *i) { ENTER(d); PUT(i, (u32)GPU(d)); }
API int nvmlDeviceGetName(void *d, char *s, u32 n) {
  char b[256];
  ENTER(d);
  snprintf(b, sizeof b, "%s%s", str(GPU(d), "name", "NVIDIA H100 80GB HBM3"), is_mig(d) ? " MIG 1g.10gb" : "");
  return text(s, n, b);
}
API int nvmlDeviceGetUUID(void *d, char *s, u32 n) {
  char b[64];
  ENTER(d);
  if (is_mig(d)) mig_uuid_of(slot_of(d), b); else uuid_of(GPU(d), b);
  return text(s, n, b);
}
typedef struct { char legacy[16]; u32 domain, bus, device, devid, subsys; char id[32]; } Pci;
API int nvmlDeviceGetPciInfo_v3(void *d, Pci *p) {
  ENTER(d);
  memset(p, 0, sizeof *p);
  p->bus = 0x10 + GPU(d);
  sprintf(p->legacy, "0000:%02X:00.0", p->bus & 255);
  sprintf(p->id, "00000000:%02X:00.0", p->bus & 255);
  return OK;
}
typedef struct { u64 total, free, used; } Mem1;
typedef struct { u32 version; u64 total, reserved, free, used; } Mem2;
static void mem(int g, Mem2 *m, int parts) {
  m->total = (u64)(num(g, "total_mib", 81559) * MIB), m->used = (u64)(num(g, "used_mib", 1) * MIB);
  m->reserved = (u64)(num(g, "reserved_mib", 600) * MIB);
  m->total /= parts, m->used /= parts, m->reserved /= parts, m->free = m->total - m->used - m->reserved;
}
API int nvmlDeviceGetMemoryInfo_v2(void *d, Mem2 *m) { ENTER(d); mem(GPU(d), m, is_mig(d) ? 7 : 1); return OK; }
API int nvmlDeviceGetMemoryInfo(void *d, Mem1 *m) { /* v1: used includes reserved */
  ENTER(d);
  Mem2 x;
  mem(GPU(d), &x, is_mig(d) ? 7 : 1);
  m->total = x.total, m->free = x.free, m->used = x.used + x.reserved;
  return OK;
}
API int nvmlDeviceGetUtilizationRates(void *d, u32 *u) {
  ENTER(d);
  if (is_mig(d)) return NOTSUP;
  u[0] = (u32)num(GPU(d), "util", 0), u[1] = (u32)num(GPU(d), "mem_util", 0);
  return OK;
}
API int nvmlDeviceGetPowerUsage(void *d, u32 *p) { ENTER(d); load(); PUT(p, (u32)power_mw(GPU(d), now())); }
API int nvmlDeviceGetTotalEnergyConsumption(void *d, u64 *e) { ENTER(d); PUT(e, (u64)energy_mj(GPU(d), floor(now() * 10) / 10)); } /* 100 ms updates */
API int nvmlDeviceGetEnforcedPowerLimit(void *d, u32 *p) { ENTER(d); PUT(p, (u32)num(GPU(d), "limit_mw", 700000)); }
API int nvmlDeviceGetPowerManagementLimit(void *d, u32 *p) { ENTER(d); PUT(p, (u32)num(GPU(d), "limit_mw", 700000)); }
API int nvmlDeviceGetTemperature(void *d, int s, u32 *t) { (void)s; ENTER(d); PUT(t, (u32)num(GPU(d), "temp", 35)); }
typedef struct { u32 version, sensor; int temp; } TempV;
API int nvmlDeviceGetTemperatureV(void *d, TempV *t) { ENTER(d); PUT(&t->temp, (int)num(GPU(d), "temp", 35)); }
API int nvmlDeviceGetClockInfo(void *d, u32 k, u32 *c) { ENTER(d); PUT(c, (u32)(k == 2 ? num(GPU(d), "mem_mhz", 2619) : num(GPU(d), "sm_mhz", 345))); }
API int nvmlDeviceGetMaxClockInfo(void *d, u32 k, u32 *c) { ENTER(d); PUT(c, k == 2 ? 2619 : 1980); }
API int nvmlDeviceGetCurrentClocksEventReasons(void *d, u64 *r) { ENTER(d); PUT(r, strtoull(str(GPU(d), "reasons", "1"), NULL, 0)); }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, u64 *r) { ENTER(d); PUT(r, strtoull(str(GPU(d), "reasons", "1"), NULL, 0)); }
API int nvmlDeviceGetPcieThroughput(void *d, int k, u32 *v) { ENTER(d); PUT(v, (u32)num(GPU(d), k ? "pcie_rx_kbs" : "pcie_tx_kbs", 0)); }
API int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { ENTER(d); int c = (int)num(GPU(d), "cc", 90); *a = c / 10, *b = c % 10; return OK; }
API int nvmlDeviceGetArchitecture(void *d, u32 *a) { ENTER(d); PUT(a, (u32)num(GPU(d), "arch", 9)); }
API int nvmlDeviceGetPersistenceMode(void *d, u32 *v) { ENTER(d); PUT(v, (u32)num(GPU(d), "persistence", 1)); }
API int nvmlDeviceGetPowerManagementDefaultLimit(void *d, u32 *p) { ENTER(d); PUT(p, 700000); }
API int nvmlDeviceGetComputeMode(void *d, u32 *v) { ENTER(d); PUT(v, 0); }
API int nvmlDeviceGetPerformanceState(void *d, u32 *v) { ENTER(d); PUT(v, 0); }
API int nvmlDeviceGetFanSpeed(void *d, u32 *v) { (void)v; ENTER(d); return NOTSUP; }
#define REFUSED(fn) API int fn(void *d) { ENTER(d); return NOTSUP; } /* nvitop asks for these */
REFUSED(nvmlDeviceGetEncoderUtilization) REFUSED(nvmlDeviceGetDecoderUtilization) REFUSED(nvmlDeviceGetProcessUtilization)
REFUSED(nvmlDeviceGetDisplayActive) REFUSED(nvmlDeviceGetDisplayMode) REFUSED(nvmlDeviceGetDriverModel) REFUSED(nvmlDeviceGetDriverModel_v2)
REFUSED(nvmlDeviceGetNvLinkState)
API int nvmlDeviceIsMigDeviceHandle(void *d, u32 *v) { ENTER(d); PUT(v, (u32)is_mig(d)); }
API int nvmlDeviceGetMigMode(void *d, u32 *a, u32 *b) { ENTER(d); if (is_mig(d)) return BADARG; *a = *b = (u32)num(GPU(d), "mig", 0); return OK; }
API int nvmlDeviceGetMaxMigDeviceCount(void *d, u32 *n) { ENTER(d); PUT(n, num(GPU(d), "mig", 0) ? 7 : 0); }
API int nvmlDeviceGetTotalEccErrors(void *d, int t, int c, u64 *v) { (void)t, (void)c; ENTER(d); PUT(v, (u64)num(GPU(d), "ecc", 0)); }
typedef struct { u32 pid; u64 mem; u32 gi, ci; } Proc;
API int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u32 *n, Proc *out) {
  ENTER(d);
  char b[192], *save, *s;
  u32 k = 0;
  strcpy(b, str(GPU(d), is_mig(d) ? "mig_procs" : "procs", ""));
  for (s = strtok_r(b, ",", &save); s; s = strtok_r(NULL, ",", &save), k++) {
    if (!out || k >= *n) continue;
    char *m = strchr(s, ':');
    out[k] = (Proc){(u32)atoi(s), m ? (u64)(atof(m + 1) * MIB) : ~0ULL, ~0u, ~0u}; /* no ":mib" = memory not available */
  }
  int small = k && (!out || k > *n);
  *n = k;
  return small ? SMALL : OK;
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *d, u32 *n, Proc *o) { (void)o; ENTER(d); PUT(n, 0); }
typedef struct { u64 ts; u64 raw; } Sample; /* value is a union of 8 bytes */
API int nvmlDeviceGetSamples(void *d, int type, u64 last, int *vt, u32 *n, Sample *out) { /* 50 Hz, 120 deep */
  ENTER(d);
  static const char *key[] = {"power_mw", "util", "mem_util"};
  if (type > 2) return NOTSUP;
  u64 step = 20000, end = (u64)(wall() * 1e6) / step * step, t = end - 119 * step;
  if (last >= t) t = (last / step + 1) * step;
  u32 k = 0, cap = *n;
  load();
  for (*vt = 1; t <= end; t += step, k++)
    if (out && k < cap) out[k] = (Sample){t, (u64)(u32)num_at(GPU(d), key[type], t / 1e6 - t0, type ? 0 : 70000)};
  if (!k) return NOTFOUND;
  *n = out && k > cap ? cap : k;
  return OK;
}
typedef struct { u32 field, scope; long long ts, lat; u32 vtype; int ret; union { double d; u64 u; u32 ui; } v; } Field;
API int nvmlDeviceGetFieldValues(void *d, int n, Field *f) {
  ENTER(d);
  for (int i = 0; i < n; i++) {
    char k[32];
    snprintf(k, sizeof k, "err:field:%u", f[i].field);
    f[i].ts = (long long)(wall() * 1e6), f[i].lat = 0, f[i].vtype = 1, f[i].v.u = 0;
    f[i].ret = (int)num(GPU(d), k, 0);
    double links = f[i].scope == ~0u ? 2 : 1;
    if (f[i].ret) continue;
    if (f[i].field == 74 || f[i].field == 75)
      f[i].vtype = 3, f[i].v.u = (u64)integral(GPU(d), now(), f[i].field == 74 ? power_ns : heat_ns);
    else if (f[i].field == 82) f[i].v.ui = (u32)num(GPU(d), "mem_temp", 40);
    else if (f[i].field == 94) f[i].v.ui = (u32)num(GPU(d), "pcie_replays", 0);
    else if (f[i].field == 138 || f[i].field == 139)
      f[i].vtype = 3, f[i].v.u = (u64)(links * num(GPU(d), f[i].field == 138 ? "nvlink_tx_kib" : "nvlink_rx_kib", 0));
    else if (f[i].field == 197 || f[i].field == 198)
      f[i].vtype = 3, f[i].v.u = (u64)num(GPU(d), f[i].field == 197 ? "pcie_tx_bytes" : "pcie_rx_bytes", 0);
    else if (f[i].field == 186) f[i].v.ui = (u32)num(GPU(d), "inst_power_mw", power_mw(GPU(d), now())); /* POWER_INSTANT */
    else if (f[i].field == 185) f[i].v.ui = (u32)power_mw(GPU(d), now());                          /* POWER_AVERAGE */
    else if (f[i].field == 83) f[i].vtype = 3, f[i].v.u = (u64)energy_mj(GPU(d), now());           /* TOTAL_ENERGY */
    else f[i].ret = NOTSUP;
  }
  return OK;
}
/* GPM: a sample is a moment, and a metric the exact mean of the script's value between two. */
typedef struct { int gpu; double t; } Gpm;
typedef struct { u32 version, supported; } GpmSupport;
typedef struct { u32 id; int ret; double value; const char *names[3]; } GpmMetric;
typedef struct { u32 version, n; Gpm *one, *two; GpmMetric metrics[]; } GpmGet;
static int has_gpm(void *d) { return num(GPU(d), "cc", 90) >= 90; }
static double sm_active(int g, double t) { return num_at(g, "sm_active", t, 0); }
static double sm_occupancy(int g, double t) { return num_at(g, "sm_occupancy", t, 0); }
static double tensor_active(int g, double t) { return num_at(g, "tensor_active", t, 0); }
static double dram_active(int g, double t) { return num_at(g, "dram_active", t, 0); }
API int nvmlGpmQueryDeviceSupport(void *d, GpmSupport *s) { ENTER(d); PUT(&s->supported, (u32)has_gpm(d)); }
API int nvmlGpmSampleAlloc(Gpm **s) { PUT(s, calloc(1, sizeof(Gpm))); }
API int nvmlGpmSampleFree(Gpm *s) { free(s); return OK; }
API int nvmlGpmSampleGet(void *d, Gpm *s) { ENTER(d); if (!has_gpm(d) || is_mig(d)) return NOTSUP; PUT(s, ((Gpm){GPU(d), now()})); }
API int nvmlGpmMigSampleGet(void *d, u32 gi, Gpm *s) { ENTER(d); if (!has_gpm(d) || gi > 6) return NOTSUP; PUT(s, ((Gpm){GPU(d), now()})); }
API int nvmlGpmMetricsGet(GpmGet *q) {
  if (q->version != 1 || !q->one->t || q->two->t <= q->one->t) return BADARG;
  for (u32 i = 0; i < q->n; i++) {
    GpmMetric *m = &q->metrics[i];
    int g = q->one->gpu;
    double (*of)(int, double) = m->id == 2 ? sm_active : m->id == 3 ? sm_occupancy : m->id == 5 ? tensor_active : m->id == 10 ? dram_active : NULL;
    char k[32];
    snprintf(k, sizeof k, "err:gpm:%u", m->id);
    m->ret = of ? (int)num(g, k, 0) : NOTSUP;
    m->value = of ? (integral(g, q->two->t, of) - integral(g, q->one->t, of)) / (q->two->t - q->one->t) : 0;
  }
  return OK;
}
typedef struct { double from; u32 mask; } Set;
API int nvmlEventSetCreate(Set **s) { *s = calloc(1, sizeof(Set)); (*s)->from = now(); return OK; }
API int nvmlEventSetFree(Set *s) { free(s); return OK; }
API int nvmlDeviceGetSupportedEventTypes(void *d, u64 *m) { ENTER(d); PUT(m, 0x1e); }
API int nvmlDeviceRegisterEvents(void *d, u64 types, Set *s) { (void)types; ENTER(d); s->mask |= 1u << GPU(d); return OK; }
typedef struct { void *dev; u64 type, data; u32 gi, ci; } Event;
API int nvmlEventSetWait_v2(Set *s, Event *e, u32 ms) {
  for (double end = now() + ms / 1e3;; usleep(5000)) {
    load();
    double t = now();
    Script *all = S;
    for (int i = 0; i < all->n; i++) {
      Change *c = &all->c[i];
      if (!strcmp(c->key, "xid") && c->t > s->from && c->t <= t && (c->gpu < 0 || s->mask >> c->gpu & 1)) {
        *e = (Event){&dev[c->gpu < 0 ? 0 : c->gpu], 8, (u64)atoll(c->val), ~0u, ~0u};
        s->from = c->t;
        return OK;
      }
    }
    if (t >= end) return TIMEOUT;
  }
}
