/*
 * pending_free.c: see pending_free.h.
 */
#include <runtime/streams/pending_free.h>

#include <internal/error.h>

#define ASKED    8u   /* streams that are remembered in one call (D199) */
#define SEARCHED 512u /* frees that a request looks at from each of two places (D506) */

pleat_result pleat__pending_create(pleat_vmm vmm, int device, pleat__arena *arena,
                                   const pleat__gate *gate, pleat__pending_held held,
                                   pleat__pending_done done, void *context, pleat__pending *pending)
{
    *pending = (pleat__pending){.vmm = vmm,
                                .device = device,
                                .arena = arena,
                                .gate = gate,
                                .held = held,
                                .done = done,
                                .context = context};
    pending->last = &pending->first;
    return pleat__address_map_create(arena, &pending->entries);
}

static void destroy_uses(pleat__pending *pending, pleat__pending_use *use)
{
    while (use != NULL) {
        pleat__pending_use *next = use->next;
        /* A refused destruction leaves an event of the driver's behind, nothing of ours. */
        (void)pending->vmm.ops->event_destroy(pending->vmm.self, use->event);
        pleat__arena_free(pending->arena, use);
        use = next;
    }
}

void pleat__pending_destroy(pleat__pending *pending)
{
    if (pending->entries.entries == NULL)
        return;
    for (uint64_t i = 0; i <= pending->entries.mask; i++) {
        pleat__pending_entry *entry = pending->entries.entries[i].value;
        if (entry != NULL) {
            destroy_uses(pending, entry->uses);
            pleat__arena_free(pending->arena, entry);
        }
    }
    for (pleat__pending_entry *entry = pending->spare_entries, *next; entry != NULL; entry = next) {
        next = entry->next;
        pleat__arena_free(pending->arena, entry);
    }
    destroy_uses(pending, pending->spare_uses);
    pleat__address_map_destroy(&pending->entries);
    *pending = (pleat__pending){0};
}

static pleat_result new_use(pleat__pending *pending, pleat_stream stream, pleat__pending_use **out)
{
    pleat__pending_use *use = pending->spare_uses;
    if (use != NULL) {
        pending->spare_uses = use->next;
    } else {
        use = pleat__arena_calloc(pending->arena, 1, sizeof *use);
        if (use == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream's use");
        pleat_result result =
            pending->vmm.ops->event_create(pending->vmm.self, pending->device, &use->event);
        if (result != PLEAT_OK) {
            pleat__arena_free(pending->arena, use);
            return result;
        }
    }
    use->stream = stream;
    use->recorded = false;
    *out = use;
    return PLEAT_OK;
}

static pleat_result new_entry(pleat__pending *pending, pleat_va address, uint64_t bytes,
                              pleat__pending_entry **out)
{
    PLEAT_TRY(pleat__address_map_reserve(&pending->entries));
    pleat__pending_entry *entry = pending->spare_entries;
    if (entry != NULL)
        pending->spare_entries = entry->next;
    else
        entry = pleat__arena_alloc(pending->arena, sizeof *entry);
    if (entry == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream's use");
    *entry = (pleat__pending_entry){.address = address, .bytes = bytes};
    pleat__address_map_insert(&pending->entries, address, entry);
    *out = entry;
    return PLEAT_OK;
}

static void spare_use(pleat__pending *pending, pleat__pending_use *use)
{
    use->next = pending->spare_uses;
    pending->spare_uses = use;
}

static void forget(pleat__pending *pending, pleat__pending_entry *entry)
{
    pleat__address_map_remove(&pending->entries, entry->address);
    for (pleat__pending_use *use = entry->uses, *next; use != NULL; use = next) {
        next = use->next;
        spare_use(pending, use);
    }
    entry->next = pending->spare_entries;
    pending->spare_entries = entry;
}

static pleat_result is_freed(pleat_va address)
{
    return pleat__fail(PLEAT_E_STATE,
                       "%#llx has been freed, and waits for other streams or until it is resumed",
                       (unsigned long long)address);
}

static bool uses(const pleat__pending_entry *entry, pleat_stream stream)
{
    const pleat__pending_use *use = entry->uses;
    while (use != NULL && use->stream != stream)
        use = use->next;
    return use != NULL;
}

pleat_result pleat__pending_prepare(pleat__pending *pending, pleat_va address, uint64_t bytes)
{
    pleat__pending_entry *entry = pleat__address_map_find(&pending->entries, address);
    return entry != NULL ? PLEAT_OK : new_entry(pending, address, bytes, &entry);
}

/* The use comes first: an allocation that it is refused for may be none, and has no entry then. */
pleat_result pleat__pending_record(pleat__pending *pending, pleat_va address, uint64_t bytes,
                                   pleat_stream stream)
{
    pleat__pending_entry *entry = pleat__address_map_find(&pending->entries, address);
    pleat__pending_use *use;
    if (entry != NULL && entry->waiting)
        return is_freed(address);
    if (entry != NULL && uses(entry, stream))
        return PLEAT_OK;
    PLEAT_TRY(new_use(pending, stream, &use));
    if (entry == NULL) {
        pleat_result result = new_entry(pending, address, bytes, &entry);
        if (result != PLEAT_OK) {
            spare_use(pending, use);
            return result;
        }
    }
    use->next = entry->uses;
    entry->uses = use;
    return PLEAT_OK;
}

pleat_stream pleat__pending_first(const pleat__pending *pending, pleat_va address)
{
    const pleat__pending_entry *entry = pleat__address_map_find(&pending->entries, address);
    const pleat__pending_use *use = entry->uses;
    while (use->next != NULL)
        use = use->next;
    return use->stream;
}

bool pleat__pending_waits(const pleat__pending *pending, pleat_va address)
{
    const pleat__pending_entry *entry =
        pending->entries.count > 0 ? pleat__address_map_find(&pending->entries, address) : NULL;
    return entry != NULL && entry->waiting;
}

/* Streams of which there is nothing new to be heard in one call. Asking costs more than the
 * allocation that does it. */
typedef struct streams {
    pleat_stream streams[ASKED];
    uint32_t count;
} streams;

static bool has(const streams *set, pleat_stream stream)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->streams[i] == stream)
            return true;
    return false;
}

static void add(streams *set, pleat_stream stream)
{
    if (set->count < ASKED)
        set->streams[set->count++] = stream;
}

/* Records what has not been recorded; false when the driver still refuses, as it does while a
 * stream captures. `refused`: streams that it did so for. */
static bool record_events(pleat__pending *pending, pleat__pending_entry *entry, streams *refused)
{
    bool all = true;
    for (pleat__pending_use *use = entry->uses; use != NULL; use = use->next) {
        if (!use->recorded && !has(refused, use->stream)) {
            use->recorded = pleat__gate_record(pending->gate, use->event, use->stream) == PLEAT_OK;
            if (!use->recorded)
                add(refused, use->stream);
        }
        all = all && use->recorded;
    }
    return all;
}

bool pleat__pending_come_behind(pleat__pending *pending, pleat_va address, pleat_stream owner)
{
    const pleat__pending_entry *entry = pleat__address_map_find(&pending->entries, address);
    bool behind = entry != NULL && !entry->waiting && uses(entry, owner) &&
                  pleat__gate_before(pending->gate, owner) == 0;
    for (pleat__pending_use *use = behind ? entry->uses : NULL; use != NULL; use = use->next) {
        if (use->stream == owner)
            continue;
        use->recorded = pleat__gate_record(pending->gate, use->event, use->stream) == PLEAT_OK;
        behind = behind && use->recorded &&
                 pending->vmm.ops->stream_wait(pending->vmm.self, owner, use->event) == PLEAT_OK;
    }
    return behind;
}

pleat_result pleat__pending_free(pleat__pending *pending, pleat_va address, uint64_t *bytes)
{
    *bytes = 0;
    pleat__pending_entry *entry = pleat__address_map_find(&pending->entries, address);
    if (entry == NULL)
        return PLEAT_OK;
    if (entry->waiting)
        return is_freed(address);
    if (entry->uses == NULL && !pending->held(pending->context, address)) {
        forget(pending, entry);
        return PLEAT_OK;
    }
    streams refused = {.count = 0};
    (void)record_events(pending, entry, &refused);
    entry->waiting = true;
    entry->link = pending->last;
    *pending->last = entry;
    pending->last = &entry->next;
    pending->waiting++;
    *bytes = entry->bytes;
    return PLEAT_OK;
}

/* Behind an event that was found not to have passed all others of its stream have not either. */
static bool has_passed(const pleat__pending *pending, const pleat__pending_use *use, streams *busy)
{
    if (has(busy, use->stream))
        return false;
    if (pending->vmm.ops->event_query(pending->vmm.self, use->event) == PLEAT_OK)
        return true;
    add(busy, use->stream);
    return false;
}

/* What is known of streams in one poll. */
typedef struct heard {
    streams refused, busy;
} heard;

static bool is_past(pleat__pending *pending, pleat__pending_entry *entry, void *opaque)
{
    heard *known = opaque;
    if (!record_events(pending, entry, &known->refused))
        return false;
    for (pleat__pending_use *use = entry->uses; use != NULL; use = use->next)
        if (!has_passed(pending, use, &known->busy))
            return false;
    return true;
}

static void finish(pleat__pending *pending, pleat__pending_entry *entry)
{
    pending->done(pending->context, entry->address, entry->bytes);
    forget(pending, entry);
}

/* The entry leaves the queue: the streams are past it. Whether its free is due. */
static bool leave_queue(pleat__pending *pending, pleat__pending_entry *entry)
{
    *entry->link = entry->next;
    if (entry->next == NULL)
        pending->last = entry->link;
    else
        entry->next->link = entry->link;
    if (pending->asked == entry)
        pending->asked = entry->next;
    pending->waiting--;
    bool due = !pending->held(pending->context, entry->address);
    if (due) {
        finish(pending, entry);
    } else {
        entry->next = pending->held_back;
        pending->held_back = entry;
    }
    return due;
}

/* Whether the streams are past an entry. */
typedef bool (*judgement)(pleat__pending *pending, pleat__pending_entry *entry, void *context);

/* From an entry on, up to `most` that stay; the one behind them. *due: how many were. */
static pleat__pending_entry *walk_from(pleat__pending *pending, pleat__pending_entry *entry,
                                       uint64_t most, judgement goes, void *context, uint64_t *due)
{
    for (uint64_t stayed = 0; entry != NULL && stayed < most;) {
        pleat__pending_entry *next = entry->next;
        if (goes(pending, entry, context))
            *due += leave_queue(pending, entry);
        else
            stayed++;
        entry = next;
    }
    return entry;
}

/* From the oldest on, and from where the last walk ended; how many were due. */
static uint64_t walk(pleat__pending *pending, uint64_t most, judgement goes, void *context)
{
    uint64_t due = 0;
    pleat__pending_entry *behind = walk_from(pending, pending->first, most, goes, context, &due);
    if (behind != NULL)
        pending->asked = walk_from(pending, pending->asked != NULL ? pending->asked : behind, most,
                                   goes, context, &due);
    return due;
}

uint64_t pleat__pending_poll(pleat__pending *pending, uint64_t most)
{
    heard known = {.refused.count = 0};
    return walk(pending, most, is_past, &known);
}

void pleat__pending_resume(pleat__pending *pending)
{
    pleat__pending_poll(pending, UINT64_MAX);
    for (pleat__pending_entry **at = &pending->held_back; *at != NULL;) {
        pleat__pending_entry *entry = *at;
        if (pending->held(pending->context, entry->address)) {
            at = &entry->next;
        } else {
            *at = entry->next;
            finish(pending, entry);
        }
    }
}

/* Later work of `owner` comes behind all that the entry waits for. A stream that captures a graph
 * would capture the wait. */
static bool is_ordered(pleat__pending *pending, pleat__pending_entry *entry, pleat_stream owner,
                       streams *refused)
{
    const pleat_vmm_ops *ops = pending->vmm.ops;
    if (pleat__gate_before(pending->gate, owner) != 0 || !record_events(pending, entry, refused))
        return false;
    for (pleat__pending_use *use = entry->uses; use != NULL; use = use->next) {
        if (ops->event_query(pending->vmm.self, use->event) == PLEAT_OK)
            continue;
        if (ops->stream_wait(pending->vmm.self, owner, use->event) != PLEAT_OK)
            return false;
        pending->ordered++;
    }
    return true;
}

/* What a request wants of the frees that wait, and what is known of streams meanwhile. */
typedef struct wish {
    pleat__pending_wanted wanted;
    pleat__pending_granted granted;
    void *context;
    streams refused;
} wish;

static bool is_granted(pleat__pending *pending, pleat__pending_entry *entry, void *opaque)
{
    wish *by = opaque;
    pleat_stream owner;
    if (!by->wanted(by->context, entry->address, &owner) ||
        !is_ordered(pending, entry, owner, &by->refused))
        return false;
    by->granted(by->context);
    return true;
}

uint64_t pleat__pending_order(pleat__pending *pending, pleat__pending_wanted wanted,
                              pleat__pending_granted granted, void *wishes)
{
    wish by = {.wanted = wanted, .granted = granted, .context = wishes};
    return walk(pending, SEARCHED, is_granted, &by);
}

size_t pleat__pending_events(pleat__pending *pending, pleat_event **out)
{
    size_t count = 0, capacity = 0;
    pleat_event *events = NULL;
    streams refused = {.count = 0};
    for (pleat__pending_entry *entry = pending->first; entry != NULL; entry = entry->next) {
        (void)record_events(pending, entry, &refused);
        for (pleat__pending_use *use = entry->uses; use != NULL; use = use->next) {
            if (use->recorded && pleat__arena_grow(pending->arena, &events, &capacity, count,
                                                   sizeof *events) == PLEAT_OK)
                events[count++] = use->event;
        }
    }
    *out = events;
    return count;
}
