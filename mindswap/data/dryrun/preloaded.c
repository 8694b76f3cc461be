// Loaded before everything else. MindSpore asks how many processors there are: with few it builds graphs without
// inlining, as no server does. And two of its threads ask for reports of the device all the time. A device lets them
// wait, MindSpore's dry run answers at once (`SimuFuncIaclrtProcessReport`): they would take two processors.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int get_nprocs(void) { return PROCESSORS; }
int get_nprocs_conf(void) { return PROCESSORS; }
long sysconf(int name) {
  static long (*real)(int);
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? PROCESSORS : real(name);
}
int _ZN9mindspore6device6ascend27SimuFuncIaclrtProcessReportIiEET_i(int timeout_ms) { usleep(10000); return 0; }
