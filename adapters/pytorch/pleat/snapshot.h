/*
 * snapshot.h: a runtime's blocks as the segments of torch's snapshots.
 */
#ifndef PLEAT_TORCH_SNAPSHOT_H
#define PLEAT_TORCH_SNAPSHOT_H

#include "device.h"

namespace pleat_torch
{

/* A run of mapped pages is a segment. */
inline void add_block(void *context, const pleat_block *block)
{
    auto *segments = static_cast<std::vector<SegmentInfo> *>(context);
    if (segments->empty() ||
        segments->back().address + segments->back().total_size != block->address) {
        segments->emplace_back();
        segments->back().address = block->address;
        segments->back().is_large = true;
        segments->back().is_expandable = true;
    }
    SegmentInfo &segment = segments->back();
    segment.blocks.emplace_back();
    segment.blocks.back().size = block->bytes;
    segment.blocks.back().requested_size = block->requested;
    segment.blocks.back().allocated = block->allocated != 0;
    /* What was freed, and waits, is "active_pending_free". */
    segment.blocks.back().active = block->requested != 0;
    segment.total_size += block->bytes;
    segment.requested_size += block->requested;
    segment.allocated_size += block->allocated ? block->bytes : 0;
    segment.active_size += block->requested != 0 ? block->bytes : 0;
    if (block->allocated)
        segment.stream = reinterpret_cast<decltype(segment.stream)>(block->stream);
}

inline void add_segments(caching::SnapshotInfo &info, pleat_runtime *runtime, DeviceIndex index,
                         History &history)
{
    std::vector<SegmentInfo> found;
    if (pleat_walk(runtime, add_block, &found) != PLEAT_OK)
        throw_last("walk the blocks");
    for (SegmentInfo &segment : found) {
        segment.device = index;
        size_t address = segment.address;
        for (auto &block : segment.blocks) {
            if (block.allocated)
                block.context_when_allocated = history.context_of(address);
            address += block.size;
        }
        info.segments.push_back(std::move(segment));
    }
}

/* Two lists of events as one, by time. */
inline void merge(std::vector<TraceEntry> &into, std::vector<TraceEntry> more)
{
    into.insert(into.end(), std::make_move_iterator(more.begin()),
                std::make_move_iterator(more.end()));
    std::stable_sort(into.begin(), into.end(), [](const TraceEntry &a, const TraceEntry &b) {
        return a.time_.t_ < b.time_.t_;
    });
}

} // namespace pleat_torch

#endif
