/*
 * plan_cache.h: plans that runs leave for the next ones, in a folder of the user's:
 * $XDG_CACHE_HOME/pleat/plans, or ~/.cache/pleat/plans.
 *
 * KEY      A plan is found by how its job begins and by the program that it was made of. The file's
 *          name is the key, so that a folder is searched without opening a file:
 *          FIRST-BEGINNING-PROGRAM.plan, each a hash in 16 hexadecimal digits.
 * TRUST    The folder is used where nobody but this user can write it. A file is read where the
 *          same holds and it is no link, up to PLEAT__PLAN_CACHE_FILE_BYTES, and verified like any
 *          plan.
 * ROOM     Whoever writes a plan removes those that were used longest ago, until all are within the
 *          bytes given. A plan's use is its file's time of modification.
 * THREADS  Any, of any process: a file is written whole under another name and renamed, and what
 *          another process removes is not missed.
 */
#ifndef PLEAT_PLAN_FILE_PLAN_CACHE_H
#define PLEAT_PLAN_FILE_PLAN_CACHE_H

#include <internal/arena.h>
#include <pleat/plan.h>
#include <stdbool.h>

#define PLEAT__PLAN_CACHE_FILE_BYTES (64ull << 20)
#define PLEAT__PLAN_CACHE_FILES      1024u
#define PLEAT__PLAN_CACHE_PATH       4096u
#define PLEAT__PLAN_CACHE_NAME       56u /* of a file, with its end */

/* Requests from a job's first one on whose sizes and streams are its beginning. */
#define PLEAT__PLAN_CACHE_BEGINNING 32u

typedef struct pleat__plan_key {
    uint64_t first;     /* of the first request, of a chunk's bytes, and of what reads plans */
    uint64_t beginning; /* of the first requests */
    uint64_t program;   /* of what tells programs apart that begin alike */
} pleat__plan_key;

/* A plan that is there. */
typedef struct pleat__kept_plan {
    char name[PLEAT__PLAN_CACHE_NAME];
    pleat__plan_key key;
    uint64_t bytes;
    int64_t used_s; /* when it was used last, since 1970 */
    long used_ns;
} pleat__kept_plan;

/* What the first request alone says. */
uint64_t pleat__plan_key_first(uint64_t chunk_bytes, uint64_t bytes);
/* Of a recorded job; `program` is the caller's. false: nothing is allocated on the device. */
bool pleat__plan_key_of(const pleat_trace *trace, uint32_t device, uint64_t chunk_bytes,
                        uint64_t program, pleat__plan_key *key);
/* Of bytes, going on from another one's hash; 0 begins. */
uint64_t pleat__plan_key_hash(uint64_t hash, const void *bytes, size_t size);

/* The folder's path. PLEAT_E_NOT_FOUND: neither $XDG_CACHE_HOME nor $HOME names one. PLEAT_E_IO:
 * it is not this user's alone, or (`make`) cannot be made. Without `make` it may not be there. */
PLEAT_NODISCARD pleat_result pleat__plan_cache_folder(bool make, char path[PLEAT__PLAN_CACHE_PATH]);
/* The plans in it, the last used first; none where there is no folder. */
PLEAT_NODISCARD pleat_result pleat__plan_cache_list(const char *folder, pleat__arena *arena,
                                                    pleat__kept_plan **plans, size_t *count);
/* The plan to try for a job whose first request is known: of the same program's that begin so the
 * last used. false: there is none. A plan's memory is made at the start, so that of another program
 * would cost it before it shows that it is none (docs/decisions.md, D293). */
bool pleat__plan_cache_find(const pleat__kept_plan *plans, size_t count, uint64_t first,
                            uint64_t program, pleat__kept_plan *found);
/* Reads and verifies. Errors as pleat_plan_read's. */
PLEAT_NODISCARD pleat_result pleat__plan_cache_read(const char *folder, const char *name,
                                                    pleat_plan **out);
/* Writes a plan, in the place of one with the same key, and makes room. PLEAT_E_LIMIT: it is larger
 * than a file, or all of them, may be. `program` is put into it, for people. */
PLEAT_NODISCARD pleat_result pleat__plan_cache_write(const char *folder, const pleat__plan_key *key,
                                                     pleat_plan *plan, const char *program,
                                                     uint64_t most_bytes);
/* It was used now. */
void pleat__plan_cache_touch(const char *folder, const char *name);
/* PLEAT_E_NOT_FOUND: there is none of that name. */
PLEAT_NODISCARD pleat_result pleat__plan_cache_remove(const char *folder, const char *name);
/* What pleat__plan_cache_write was told of the program; "": nothing. */
const char *pleat__plan_cache_program(const pleat_plan *plan);

#endif
