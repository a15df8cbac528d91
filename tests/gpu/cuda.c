/* The driver's side of the stand-in: what Triton and Inductor look up before they compile. */
#include <stddef.h>
#include "cards.h"

#define CALL(name, ...) int name(__VA_ARGS__)
CALL(cuDeviceGetCount, int *count) { *count = devices(); return 0; }
CALL(cuDeviceGet, int *device, int number) { *device = number; return 0; }
CALL(cuDriverGetVersion, int *version) { *version = 13000; return 0; }
CALL(cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
CALL(cuCtxGetCurrent, void **context) { *context = (void *)1; return 0; }
CALL(cuGetErrorString, int error, const char **text) { *text = "no error"; return 0; }
CALL(cuDeviceGetAttribute, int *value, int number, int device) { *value = attribute(number); return 0; }

#define DOES_NOTHING(name) CALL(name, void) { return 0; }
DOES_NOTHING(cuInit)
DOES_NOTHING(cuCtxSetCurrent)
DOES_NOTHING(cuCtxGetLimit)
DOES_NOTHING(cuCtxSetLimit)
DOES_NOTHING(cuCtxGetDevice)
DOES_NOTHING(cuCtxPushCurrent)
DOES_NOTHING(cuCtxPopCurrent)
DOES_NOTHING(cuDevicePrimaryCtxRetain)
DOES_NOTHING(cuFuncGetAttribute)
DOES_NOTHING(cuFuncSetAttribute)
DOES_NOTHING(cuFuncSetCacheConfig)
DOES_NOTHING(cuGetErrorName)
DOES_NOTHING(cuGetProcAddress)
DOES_NOTHING(cuGetProcAddress_v2)
DOES_NOTHING(cuLaunchKernel)
DOES_NOTHING(cuLaunchKernelEx)
DOES_NOTHING(cuLinkCreate)
DOES_NOTHING(cuMemGetAddressRange)
DOES_NOTHING(cuModuleGetFunction)
DOES_NOTHING(cuModuleLoad)
DOES_NOTHING(cuModuleLoadData)
DOES_NOTHING(cuModuleLoadDataEx)
DOES_NOTHING(cuModuleUnload)
DOES_NOTHING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
DOES_NOTHING(cuPointerGetAttribute)
DOES_NOTHING(cuStreamGetCaptureInfo_v3)
DOES_NOTHING(cuTensorMapEncodeTiled)
