/*
 * worker.c: see worker.h.
 */
#include <runtime/base/worker.h>

#include <internal/error.h>

void pleat__worker_init(pleat__worker *worker, pleat__arena *arena, pleat__gate *gate,
                        pleat__work work, void *context)
{
    *worker = (pleat__worker){.arena = arena, .gate = gate, .work = work, .context = context};
    pthread_cond_init(&worker->done, NULL);
}

void pleat__worker_release(pleat__worker *worker)
{
    pleat__mapper_destroy(worker->thread);
    pthread_cond_destroy(&worker->done);
    *worker = (pleat__worker){0};
}

static pleat_result work(void *context, pleat_result ready)
{
    pleat__worker *worker = context;
    for (bool more = true; more;) {
        pleat__gate_let_pass(worker->gate);
        pleat__gate_lock_turn(worker->gate);
        more = worker->work(worker->context);
        worker->busy = more;
        pthread_cond_broadcast(&worker->done);
        pleat__gate_unlock(worker->gate);
    }
    return ready;
}

pleat_result pleat__worker_wake(pleat__worker *worker)
{
    if (worker->busy)
        return PLEAT_OK;
    if (worker->thread == NULL)
        PLEAT_TRY(pleat__mapper_create(worker->gate->space, worker->arena, 1, &worker->thread));
    worker->job =
        (pleat__job){.kind = PLEAT__JOB_CALL, .call = work, .context = worker, .forgotten = true};
    PLEAT_TRY(pleat__mapper_submit(worker->thread, &worker->job));
    worker->busy = true;
    return PLEAT_OK;
}

void pleat__worker_wait(pleat__worker *worker)
{
    pleat__gate_wait(worker->gate, &worker->done);
}
