/*
 * walk.c: every block of a runtime, in order of address: for snapshots and reports.
 */
#include <runtime/face/runtime_internal.h>

#include <internal/error.h>
#include <internal/range.h>

pleat_result pleat__policy_block(const pleat_runtime *runtime, pleat_va address, pleat_block *block)
{
    PLEAT_TRY(runtime->ops->block_of(runtime->policy, address, block));
    block->requested -= runtime->canary.guard;
    block->allocated = !pleat__pending_waits(&runtime->pending, block->address);
    return PLEAT_OK;
}

bool pleat__next_block(pleat_runtime *runtime, pleat_va *at, pleat_block *block)
{
    const pleat__policy_ops *ops = runtime->ops;
    pleat_va begin = ops->next(runtime->policy, *at);
    if (begin == 0 || ops->block_of(runtime->policy, begin, block) != PLEAT_OK)
        return false;
    *at = block->address + block->bytes;
    return true;
}

pleat__range pleat__pages_of(const pleat_runtime *runtime, const pleat_block *block)
{
    uint64_t page = pleat__space_page_bytes(runtime->space);
    uint64_t from = block->address - pleat__space_base(runtime->space);
    return (pleat__range){from / page, pleat__ceil_div(from + block->bytes, page)};
}

typedef struct walk {
    pleat_runtime *runtime;
    pleat_block_visitor visit;
    void *context;
    pleat_va done; /* all before it was visited: a block may span pages that are not mapped */
} walk;

static void visit_free(const walk *w, pleat_va from, pleat_va to)
{
    if (from < to) {
        pleat_block block = {.address = from, .bytes = to - from};
        w->visit(w->context, &block);
    }
}

/* Where the walk goes on behind an address that is free. */
static pleat_va go_on(const walk *w, pleat_va at, pleat_va to)
{
    pleat_va next = w->runtime->ops->next(w->runtime->policy, at);
    return next == 0 || next > to ? to : next;
}

/* The blocks of a run of mapped pages. */
static void visit_run(walk *w, pleat_va from, pleat_va to)
{
    pleat_va done = from > w->done ? from : w->done;
    for (pleat_va at = done; at < to;) {
        pleat_block block;
        if (pleat__policy_block(w->runtime, at, &block) != PLEAT_OK) {
            at = go_on(w, at, to);
            continue;
        }
        visit_free(w, done, block.address);
        w->visit(w->context, &block);
        at = done = block.address + block.bytes;
    }
    visit_free(w, done, to);
    w->done = done;
}

/* What another process shares is mapped, too, and nothing is allocated in it here. */
void pleat__walk_locked(pleat_runtime *runtime, pleat_block_visitor visit, void *context)
{
    walk w = {runtime, visit, context, 0};
    pleat__space *space = runtime->space;
    uint64_t page_bytes = pleat__space_page_bytes(space);
    pleat_va base = pleat__space_base(space);
    for (uint64_t page = 0, pages; (pages = pleat__space_next_own(space, &page)) != 0;
         page += pages)
        visit_run(&w, base + page * page_bytes, base + (page + pages) * page_bytes);
}

pleat_result pleat_walk(pleat_runtime *runtime, pleat_block_visitor visit, void *context)
{
    if (runtime == NULL || visit == NULL)
        return pleat__fail(PLEAT_E_INVALID, "a walk needs a runtime and a visitor");
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock(&runtime->gate);
    pleat__walk_locked(runtime, visit, context);
    pleat__gate_unlock(&runtime->gate);
    return PLEAT_OK;
}
