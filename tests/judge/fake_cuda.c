/* A libcuda.so.1 with which vLLM's CUDA build can be imported on a machine without a GPU.
 *
 * The driver answers that there is no device, so nothing can believe that a kernel ran: what a
 * library names must resolve, and every call refuses. The names are those that `nm -D` lists as
 * undefined in vLLM, PyTorch and Triton, and those that Triton compiles against at import. */

#include <stddef.h>

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_NOT_FOUND = 500 };
enum { DRIVER_VERSION = 13000 };

int cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_ERROR_NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = 0;
    return CUDA_ERROR_NO_DEVICE;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_NOT_FOUND";
    return CUDA_SUCCESS;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == CUDA_ERROR_NO_DEVICE ? "stub of libcuda: no device" : "stub of libcuda";
    return CUDA_SUCCESS;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags,
                        void *status)
{
    (void)name, (void)version, (void)flags, (void)status;
    *found = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* What none of them gets to, because cuInit comes first. */
#define REFUSED(name)                \
    int name(void)                   \
    {                                \
        return CUDA_ERROR_NO_DEVICE; \
    }

REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetDevice)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxSetCurrent)
REFUSED(cuCtxSetLimit)
REFUSED(cuDeviceCanAccessPeer)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDevicePrimaryCtxGetState)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuFuncSetCacheConfig)
REFUSED(cuGetExportTable)
REFUSED(cuGetProcAddress)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuMemAddressFree)
REFUSED(cuMemAddressReserve)
REFUSED(cuMemCreate)
REFUSED(cuMemGetAllocationGranularity)
REFUSED(cuMemMap)
REFUSED(cuMemRelease)
REFUSED(cuMemSetAccess)
REFUSED(cuMemUnmap)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleLoad)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuOccupancyMaxActiveClusters)
REFUSED(cuPointerGetAttribute)
REFUSED(cuPointerGetAttributes)
REFUSED(cuTensorMapEncodeIm2col)
REFUSED(cuTensorMapEncodeTiled)
