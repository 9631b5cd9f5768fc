/*
 * sending.h: tensors for processes that need not be under Pleat.
 *
 * The driver lets another process open what cudaMalloc gave, and nothing of Pleat's window, which
 * is many handles: those go by a socket (ipc.h), to processes under Pleat. So what a program sends
 * is moved, the first time, to memory of torch's own allocator: the storage gets another address,
 * which all its tensors follow. Later tensors of that size lie there from the beginning (found.h).
 */
#ifndef PLEAT_TORCH_SENDING_H
#define PLEAT_TORCH_SENDING_H

#include "allocator.h"

#include <c10/core/StorageImpl.h>

namespace pleat_torch
{

/* Whether a storage's memory is this allocator's to move: not another process's, nor what was sent
 * before. */
inline bool is_own(const c10::StorageImpl &storage, const Allocator &allocator)
{
    return storage.data_ptr().get_deleter() == allocator.raw_deleter() &&
           storage.data_ptr().get() != nullptr && storage.nbytes() != 0;
}

/* To another place, in which other processes can open it; false: there is no memory. What waits on
 * any stream is waited for, since the old place is free afterwards. */
inline bool move(Allocator &allocator, c10::StorageImpl &storage, size_t bytes)
{
    c10::Device device = storage.device();
    c10::cuda::CUDAGuard guard(device.index());
    void *made = allocator.take_to_send(bytes);
    if (made == nullptr)
        return false;
    c10::DataPtr moved(made, made, allocator.raw_deleter(), device);
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    C10_CUDA_CHECK(cudaMemcpyAsync(made, storage.data(), storage.nbytes(), cudaMemcpyDeviceToDevice,
                                   c10::cuda::getCurrentCUDAStream(device.index())));
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    allocator.found().used(made);
    (void)storage.set_data_ptr(std::move(moved)); /* what it returns frees the old place */
    return true;
}

/* Whether the storage has moved. A graph that was captured goes on using the old place: where there
 * may be one nothing is moved. */
inline bool make_sendable(Allocator &allocator, c10::StorageImpl &storage)
{
    if (!is_own(storage, allocator))
        return false;
    void *old = storage.mutable_data();
    size_t bytes = allocator.requested(old);
    if (bytes == 0 && allocator.devices().ranges_of(old) == nullptr) {
        allocator.found().used(old);
        return false;
    }
    if (bytes != 0)
        allocator.found().met(bytes, Found::SENT);
    else
        bytes = storage.nbytes(); /* of a pool: other tensors of its size are not meant */
    return !in_capture() && !allocator.has_captured() && move(allocator, storage, bytes);
}

} // namespace pleat_torch

#endif
