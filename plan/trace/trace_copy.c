/*
 * trace_copy.c: a trace once more: its names, and events from its first on.
 */
#include <plan/trace/import.h>

#include <internal/error.h>
#include <string.h>

pleat_result pleat__trace_add_names(const pleat_trace *from, size_t most, pleat_trace *to)
{
    uint32_t label, site;
    uint16_t stream;
    for (uint32_t i; (i = pleat_trace_label_count(to)) < pleat_trace_label_count(from); most--) {
        const char *text = pleat_trace_label(from, i);
        if (most == 0)
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(pleat_trace_add_label(to, text, strlen(text), &label));
    }
    for (uint32_t i; (i = pleat_trace_site_count(to)) < pleat_trace_site_count(from); most--) {
        const char *text = pleat_trace_site(from, i);
        if (most == 0)
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(pleat_trace_add_site(to, text, strlen(text), &site));
    }
    for (uint32_t i; (i = pleat_trace_stream_count(to)) < pleat_trace_stream_count(from); most--) {
        if (most == 0)
            return PLEAT_E_NOT_READY;
        PLEAT_TRY(pleat_trace_add_stream(to, pleat_trace_stream(from, (uint16_t)i), &stream));
    }
    pleat_trace_set_device_bytes(to, pleat_trace_device_bytes(from));
    return PLEAT_OK;
}

static pleat_result add_events(const pleat_trace *from, size_t end, pleat_trace *to)
{
    const pleat_trace_event *events = pleat_trace_events(from);
    for (size_t i = 0; i < end; i++)
        PLEAT_TRY(pleat_trace_add(to, &events[i]));
    return PLEAT_OK;
}

pleat_result pleat__trace_copy_names(const pleat_trace *trace, pleat_trace **out)
{
    pleat_trace *made;
    PLEAT_TRY(pleat_trace_new(&made));
    pleat_result result = pleat__trace_add_names(trace, SIZE_MAX, made);
    if (result == PLEAT_OK)
        *out = made;
    else
        pleat_trace_free(made);
    return result;
}

pleat_result pleat__trace_copy(const pleat_trace *trace, size_t events, pleat_trace **out)
{
    pleat_trace *made;
    PLEAT_TRY(pleat__trace_copy_names(trace, &made));
    pleat_result result = add_events(trace, events, made);
    if (result == PLEAT_OK)
        *out = made;
    else
        pleat_trace_free(made);
    return result;
}
