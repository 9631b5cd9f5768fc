/*
 * import.c: opens a trace of any form: decompresses, looks at the first bytes, hands on.
 */
#include <plan/trace/import.h>

#include <internal/error.h>
#include <plan/base/file.h>
#include <plan/base/gzip.h>
#include <plan/base/plan.h>

#include <string.h>

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

const char *pleat__trace_form_name(pleat__trace_form form)
{
    switch (form) {
    case PLEAT__FORM_TRACE:
        return "trace";
    case PLEAT__FORM_SNAPSHOT:
        return "torch snapshot";
    case PLEAT__FORM_CSV:
        return "lifetime table";
    }
    return "unknown";
}

static bool looks_like_json(const bytes *all)
{
    size_t i = 0;
    while (i < all->size && (all->data[i] == ' ' || all->data[i] == '\n' || all->data[i] == '\t'))
        i++;
    return i < all->size && (all->data[i] == '{' || all->data[i] == '[');
}

/* Whether the first line can be a table's header: text with a comma. */
static bool looks_like_csv(const bytes *all)
{
    for (size_t i = 0; i < all->size && i < 4096; i++) {
        if (all->data[i] == ',')
            return true;
        if (all->data[i] < ' ' && all->data[i] != '\t')
            return false;
    }
    return false;
}

/* What else may be given by mistake is named. */
static pleat_result refuse(const char *path, const bytes *all)
{
    if (all->size == 0)
        return pleat__fail(PLEAT_E_INPUT, "'%s': byte 0: the file is empty", path);
    if (looks_like_json(all))
        return pleat__fail(PLEAT_E_INPUT,
                           "'%s': this is JSON: what 'pleat export --format perfetto' writes, and "
                           "torch's profiler, is for viewers, and does not say all that a trace "
                           "does; a torch memory snapshot (a pickle) is wanted",
                           path);
    if (all->size >= 4 && memcmp(all->data, "PK\3\4", 4) == 0)
        return pleat__fail(PLEAT_E_INPUT,
                           "'%s': this is a zip file, as torch.save writes them; a snapshot is "
                           "written by torch.cuda.memory._dump_snapshot or pickle.dump",
                           path);
    if (pleat__plan_begins(all->data, all->size))
        return pleat__fail(
            PLEAT_E_INPUT,
            "'%s': this is a plan; a trace or a recording is wanted ('pleat plan' and 'pleat "
            "verify' take a plan by itself)",
            path);
    return pleat__fail(PLEAT_E_INPUT,
                       "'%s': byte 0: neither a trace, nor a pickled torch snapshot (protocol 2 to "
                       "5), nor a table with a header id,lower,upper,size",
                       path);
}

/* Spreadsheets put a mark of UTF-8 in front of a table. */
static bytes without_mark(const bytes *all)
{
    static const char mark[] = "\xef\xbb\xbf";
    size_t size = sizeof mark - 1;
    if (all->size < size || memcmp(all->data, mark, size) != 0)
        return *all;
    return (bytes){all->data + size, all->size - size};
}

static pleat_result decode(const char *path, const bytes *all, int device, bool *devices,
                           pleat__trace_form *form, pleat_trace **out)
{
    uint8_t first = all->size > 0 ? all->data[0] : 0;
    if (first == 0x80) { /* the opcode PROTO */
        *form = PLEAT__FORM_SNAPSHOT;
        return pleat__snapshot_decode(path, all->data, all->size, device, devices, out);
    }
    if ((first & 0xf0) == 0x90) { /* a msgpack array */
        *form = PLEAT__FORM_TRACE;
        return pleat__trace_decode(path, all->data, all->size, out);
    }
    const bytes text = without_mark(all);
    if (!looks_like_json(&text) && looks_like_csv(&text)) {
        *form = PLEAT__FORM_CSV;
        return pleat__csv_decode(path, text.data, text.size, out);
    }
    return refuse(path, all);
}

static pleat_result read_any(const char *path, int device, bool *devices, pleat__trace_form *form,
                             pleat_trace **out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat__trace_form ignored;
    bytes file;
    pleat_result result = pleat__file_read_any(path, arena, &file.data, &file.size);
    if (result == PLEAT_OK)
        result = decode(path, &file, device, devices, form ? form : &ignored, out);
    pleat__arena_destroy(arena);
    return result;
}

/* A trace file may be of several devices; a snapshot that was read is of one. */
static pleat_result keep_device(const char *path, int device, pleat_trace **trace)
{
    pleat_trace *kept;
    const pleat_trace_event *events = pleat_trace_events(*trace);
    size_t i = 0, count = pleat_trace_event_count(*trace);
    while (i < count && events[i].device == device)
        i++;
    if (i == count)
        return PLEAT_OK;
    pleat_result result = pleat__trace_of_device(*trace, device, &kept);
    pleat_trace_free(*trace);
    *trace = result == PLEAT_OK ? kept : NULL;
    return result == PLEAT_OK ? PLEAT_OK : pleat__context(result, "'%s'", path);
}

pleat_result pleat__trace_import(const char *path, int device, pleat__trace_form *form,
                                 pleat_trace **out)
{
    pleat__trace_form found;
    PLEAT_TRY(read_any(path, device, NULL, &found, out));
    if (form != NULL)
        *form = found;
    return device == PLEAT__ANY_DEVICE || found == PLEAT__FORM_SNAPSHOT
               ? PLEAT_OK
               : keep_device(path, device, out);
}

pleat_result pleat__trace_import_any(const char *path, bool *devices, pleat__trace_form *form,
                                     pleat_trace **out)
{
    return read_any(path, PLEAT__ANY_DEVICE, devices, form, out);
}
