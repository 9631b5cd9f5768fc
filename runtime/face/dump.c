/*
 * dump.c: a runtime in words and in JSON. What is said is gathered first, under the lock, so that
 * it is of one moment; then it is written without the lock, since a stream may be slow or may
 * itself allocate.
 */
#include <runtime/face/runtime_internal.h>

#include <internal/error.h>
#include <inttypes.h>

typedef struct snapshot {
    pleat__arena *arena;
    const char *policy;
    int device;
    uint64_t limit_bytes;
    pleat_stats stats;
    pleat__space_stats space;
    pleat__arena_bytes host;
    pleat__states states;
    bool has_states;
    pleat_stream *streams;
    size_t stream_capacity;
    size_t stream_count;
    pleat_block *blocks;
    size_t block_capacity;
    size_t block_count;
    pleat_result failed; /* of the gathering */
} snapshot;

/* ---- gathering ---- */

static void gather_block(void *context, const pleat_block *block)
{
    snapshot *s = context;
    if (s->failed == PLEAT_OK)
        s->failed = pleat__arena_grow(s->arena, &s->blocks, &s->block_capacity, s->block_count,
                                      sizeof *s->blocks);
    if (s->failed == PLEAT_OK)
        s->blocks[s->block_count++] = *block;
}

static void gather_streams(snapshot *s, const pleat_runtime *runtime)
{
    for (size_t i = 0; i < runtime->gate.stream_count && s->failed == PLEAT_OK; i++) {
        s->failed = pleat__arena_grow(s->arena, &s->streams, &s->stream_capacity, s->stream_count,
                                      sizeof *s->streams);
        if (s->failed == PLEAT_OK)
            s->streams[s->stream_count++] = runtime->gate.streams[i].stream;
    }
}

/* With the lock held. */
static void gather(snapshot *s, pleat_runtime *runtime)
{
    /* Before it takes metadata of its own. */
    s->stats = pleat__stats_locked(runtime);
    s->host = pleat__arena_bytes_of(runtime->arena);
    s->space = pleat__space_stats_of(runtime->space);
    s->policy = runtime->ops->name;
    s->device = runtime->device;
    s->limit_bytes = runtime->limits.cap_bytes;
    s->has_states = runtime->ops->states != NULL;
    if (s->has_states)
        s->states = *runtime->ops->states(runtime->policy);
    gather_streams(s, runtime);
    pleat__walk_locked(runtime, gather_block, s);
}

static void release(snapshot *s)
{
    pleat__arena_free(s->arena, s->streams);
    pleat__arena_free(s->arena, s->blocks);
}

/* ---- what both forms say ---- */

#define VERBS(X)                                                                                   \
    X(creates, "chunks created")                                                                   \
    X(maps, "ranges mapped")                                                                       \
    X(set_accesses, "ranges given access")                                                         \
    X(unmaps, "ranges unmapped")                                                                   \
    X(releases, "chunks released")                                                                 \
    X(failed_verbs, "verbs that the driver refused")                                               \
    X(mapped_pages, "pages mapped now")                                                            \
    X(alias_pages, "of them beyond each chunk's first")                                            \
    X(pooled_bytes, "bytes of chunks that wait to be used again")

typedef struct figure {
    const char *name;
    const char *text;
    uint64_t value;
} figure;

#define COUNTER_FIGURE(name, text) {#name, text, s->stats.name},
#define VERB_FIGURE(name, text)    {#name, text, s->space.name},

/* ---- text ---- */

static void text_figures(FILE *out, const figure *figures, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fprintf(out, "  %-20s %18" PRIu64 "  %s\n", figures[i].name, figures[i].value,
                figures[i].text);
}

static void text_states(FILE *out, const pleat__states *states)
{
    fprintf(out, "state: %s\n  entered:", pleat__state_name(states->now));
    for (unsigned i = 0; i < PLEAT__STATE_COUNT; i++)
        fprintf(out, " %s %" PRIu64, pleat__state_name((pleat__state)i), states->entered[i]);
    fputs("\n  causes:", out);
    for (unsigned i = 0; i < PLEAT__CAUSE_COUNT; i++)
        fprintf(out, " %s %" PRIu64, pleat__cause_name((pleat__cause)i), states->caused[i]);
    fputs("\n", out);
}

static void write_text(FILE *out, const snapshot *s)
{
    const figure counters[] = {PLEAT_COUNTERS(COUNTER_FIGURE)};
    const figure verbs[] = {VERBS(VERB_FIGURE)};
    fprintf(out, "policy %s on device %d, at most %" PRIu64 " bytes\n", s->policy, s->device,
            s->limit_bytes);
    fputs("counters\n", out);
    text_figures(out, counters, sizeof counters / sizeof *counters);
    fputs("memory verbs\n", out);
    text_figures(out, verbs, sizeof verbs / sizeof *verbs);
    fprintf(out, "metadata: %" PRIu64 " bytes now, %" PRIu64 " at most\n", s->host.allocated,
            s->host.peak);
    if (s->has_states)
        text_states(out, &s->states);
    fputs("streams:", out);
    for (size_t i = 0; i < s->stream_count; i++)
        fprintf(out, " %#" PRIx64, (uint64_t)s->streams[i]);
    fprintf(out, "\nblocks: %zu\n", s->block_count);
    for (size_t i = 0; i < s->block_count; i++) {
        const pleat_block *block = &s->blocks[i];
        fprintf(out, "  %#014" PRIx64 " %14" PRIu64, (uint64_t)block->address, block->bytes);
        if (block->requested != 0)
            fprintf(out, " asked %" PRIu64 " stream %#" PRIx64 "%s\n", block->requested,
                    (uint64_t)block->stream, block->allocated ? "" : ", freed, and waits");
        else
            fputs(" free\n", out);
    }
}

/* ---- JSON: all names are identifiers, nothing needs an escape ---- */

static void json_figures(FILE *out, const char *key, const figure *figures, size_t count)
{
    fprintf(out, ",\n\"%s\": {", key);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s\"%s\": %" PRIu64, i == 0 ? "" : ", ", figures[i].name, figures[i].value);
    fputs("}", out);
}

static void json_states(FILE *out, const pleat__states *states)
{
    fprintf(out, ",\n\"states\": {\"now\": \"%s\", \"entered\": {", pleat__state_name(states->now));
    for (unsigned i = 0; i < PLEAT__STATE_COUNT; i++)
        fprintf(out, "%s\"%s\": %" PRIu64, i == 0 ? "" : ", ", pleat__state_name((pleat__state)i),
                states->entered[i]);
    fputs("}, \"causes\": {", out);
    for (unsigned i = 0; i < PLEAT__CAUSE_COUNT; i++)
        fprintf(out, "%s\"%s\": %" PRIu64, i == 0 ? "" : ", ", pleat__cause_name((pleat__cause)i),
                states->caused[i]);
    fputs("}}", out);
}

static void json_blocks(FILE *out, const snapshot *s)
{
    fputs(",\n\"blocks\": [", out);
    for (size_t i = 0; i < s->block_count; i++) {
        const pleat_block *block = &s->blocks[i];
        fprintf(out,
                "%s\n{\"address\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"requested\": %" PRIu64
                ", \"stream\": %" PRIu64 ", \"allocated\": %s}",
                i == 0 ? "" : ",", (uint64_t)block->address, block->bytes, block->requested,
                (uint64_t)block->stream, block->allocated ? "true" : "false");
    }
    fputs("]", out);
}

static void write_json(FILE *out, const snapshot *s)
{
    const figure counters[] = {PLEAT_COUNTERS(COUNTER_FIGURE)};
    const figure verbs[] = {VERBS(VERB_FIGURE)};
    fprintf(out, "{\"policy\": \"%s\", \"device\": %d, \"limit_bytes\": %" PRIu64, s->policy,
            s->device, s->limit_bytes);
    json_figures(out, "counters", counters, sizeof counters / sizeof *counters);
    json_figures(out, "verbs", verbs, sizeof verbs / sizeof *verbs);
    fprintf(out, ",\n\"host\": {\"allocated_bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64 "}",
            s->host.allocated, s->host.peak);
    if (s->has_states)
        json_states(out, &s->states);
    fputs(",\n\"streams\": [", out);
    for (size_t i = 0; i < s->stream_count; i++)
        fprintf(out, "%s%" PRIu64, i == 0 ? "" : ", ", (uint64_t)s->streams[i]);
    fputs("]", out);
    json_blocks(out, s);
    fputs("}\n", out);
}

pleat_result pleat_dump(pleat_runtime *runtime, pleat_dump_format format, FILE *out)
{
    if (runtime == NULL || out == NULL || (format != PLEAT_DUMP_TEXT && format != PLEAT_DUMP_JSON))
        return pleat__fail(PLEAT_E_INVALID, "a dump needs a runtime, a format and a stream");
    PLEAT__TRY_HERE(runtime);
    snapshot s = {.arena = runtime->arena};
    pleat__gate_lock(&runtime->gate);
    gather(&s, runtime);
    pleat__gate_unlock(&runtime->gate);
    pleat_result result = s.failed;
    if (result == PLEAT_OK) {
        (format == PLEAT_DUMP_JSON ? write_json : write_text)(out, &s);
        if (fflush(out) != 0 || ferror(out))
            result = pleat__fail_errno(PLEAT_E_IO, "a dump cannot be written");
    }
    release(&s);
    return result;
}
