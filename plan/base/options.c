/*
 * options.c: see options.h.
 */
#include <plan/base/options.h>

#include <internal/error.h>
#include <internal/sized.h>
#include <plan/base/plan.h>

#define DEFAULT_CHUNK_BYTES (2u << 20)

static pleat_result check(const pleat_plan_options *options)
{
    if (options->chunk_bytes % PLEAT__ALIGNMENT != 0 || options->chunk_bytes > PLEAT__CHUNK_MOST)
        return pleat__fail(PLEAT_E_INVALID,
                           "chunks of %llu bytes: a multiple of %u up to 1 TiB is wanted",
                           (unsigned long long)options->chunk_bytes, PLEAT__ALIGNMENT);
    return PLEAT_OK;
}

pleat_result pleat__plan_options_read(const pleat_plan_options *options, pleat_plan_options *out)
{
    *out = (pleat_plan_options){0};
    PLEAT_TRY(pleat__read_sized("pleat_plan_options", options, sizeof *out, out, sizeof *out));
    if (out->algorithm == NULL)
        out->algorithm = "auto";
    if (out->chunk_bytes == 0)
        out->chunk_bytes = DEFAULT_CHUNK_BYTES;
    return check(out);
}
