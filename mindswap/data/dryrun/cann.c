// Functions of CANN whose answer matters in a dry run; everything else that the wheel asks for returns 0 and stands
// below, written by features/dryrun/cann_stand_ins.py, which takes the names that are defined here from the text.
#include <stdlib.h>
#include <string.h>
struct three { void *a[3]; };
struct text { void *p; unsigned long n; char b[16]; };
#define HANDLE(name) void *name(void) { return malloc(64); }
#define OUT_HANDLE(name) int name(void **p) { *p = malloc(64); return 0; }

int aclrtGetDeviceCount(unsigned *n) { *n = 8; return 0; }
const char *aclrtGetSocName(void) { return "Ascend910B1"; }
int aclrtGetMemInfo(int a, unsigned long *free, unsigned long *all) { *free = 62UL << 30; *all = 64UL << 30; return 0; }
int aclrtGetRunMode(int *mode) { *mode = 1; return 0; }
const char *aclGetRecentErrMsg(void) { return ""; }
const char *HcclGetErrorString(int code) { return ""; }
int aclsysGetCANNVersion(int package, char (*version)[64]) {
  // 128 bytes for the whole, 64 for each part: MindSpore 2.10 reads the first part as a number
  static const char *parts[] = {"8.3.0", "", "8", "3", "0", "0"};
  for (int i = 0; i < 6; i++) strcpy(version[i], parts[i]);
  return 0;
}
int aclrtMallocHost(void **p, unsigned long n) { *p = malloc(n); return 0; }
int aclrtMalloc(void **p, unsigned long n) {
  static unsigned long a = 0x700000000000UL;
  *p = (void *)a;
  a += (n + 511) & ~511UL;
  return 0;
}

HANDLE(aclCreateTensor)
HANDLE(aclCreateBoolArray)
HANDLE(aclCreateDataBuffer)
HANDLE(aclCreateFloatArray)
HANDLE(aclCreateIntArray)
HANDLE(aclCreateScalar)
HANDLE(aclCreateTensorDesc)
HANDLE(aclCreateTensorList)
HANDLE(aclmdlCreateDataset)
HANDLE(aclmdlCreateDesc)
HANDLE(aclopCreateAttr)
HANDLE(aclprofCreateConfig)
OUT_HANDLE(aclrtCreateStream)
OUT_HANDLE(aclrtCreateStreamWithConfig)
OUT_HANDLE(aclrtCreateContext)
OUT_HANDLE(aclrtCreateEventWithFlag)
OUT_HANDLE(aclrtCreateEventExWithFlag)
OUT_HANDLE(aclrtGetCurrentContext)

