/*
 * tenants.h: who has how much of a device: a ledger that the processes of a user, or of a group,
 * share, so that each knows what the others have, and lends what it does not use. There is no
 * daemon: the ledger is a file in shared memory, one for each device, by the device's own name.
 *
 *   guarantee  bytes that a tenant can always have. All guarantees together fit the device.
 *   cap        the most that it may have. Above its guarantee it borrows what is idle.
 *   want       bytes that it asks for and does not get. What it asks for within its guarantee is
 *              lent to nobody any more, and borrowers give it back; what it asks for above it is
 *              given up by borrowers of a lower priority.
 *   hold       what a tenant asked for within its guarantee stays its own for a second after it
 *              asked last, used or not: so memory does not go back and forth.
 *
 * LOCKING  The kernel's record locks on the file, which end with their process, however it ends,
 *          and cannot be damaged by who writes nonsense into the file. A tenant holds one on its
 *          entry's byte for as long as it lives, which is how others know that it does, whatever
 *          process numbers their containers have. That lock is the open file's (F_OFD_SETLK):
 *          nothing else in the process that opens and closes the ledger ends it, and a forked child
 *          has the file no more (one that is made by the system's call itself, past fork(), would
 *          keep its parent's share). Whoever joins or sets terms holds one on the first byte, which
 *          is the process's (F_SETLK), as only of such a lock the system says who has it. To claim,
 *          to give back, to ask and to look takes no lock. A process has each ledger open once, by
 *          whatever path.
 * DEATH    Every change is one store of one word, so a tenant may die between any two. Its entry is
 *          found, and its share is free, when the next one asks for what is not there.
 * TRUST    The file is refused unless it is a plain file with one name, of the right owner or
 *          group, mode, size and version. Every field is checked whenever it is read: an entry that
 *          makes no sense counts as one that has nothing and is guaranteed nothing. What a tenant
 *          has it knows itself, and writes anew with every change. So nonsense harms the one whose
 *          entry it is, until its next change. Whoever may write the file may also make it shorter,
 *          and that is not survived: each process that uses it ends by SIGBUS when it next looks.
 *          A file with a name cannot be sealed against it, and reading and writing by calls of the
 *          system would be slow and have no exchange of a word, which striking out the dead needs
 *          (docs/limits.md).
 * ERRORS   PLEAT_E_INPUT: a file that is not trusted; PLEAT_E_IO; PLEAT_E_BUDGET: no room;
 *          PLEAT_E_LIMIT: no entry is left, or guarantees do not fit; PLEAT_E_NOT_READY: another
 *          process keeps the ledger's lock; PLEAT_E_INVALID: no such group or device.
 * THREADS  Any.
 */
#ifndef PLEAT_VMM_TENANTS_H
#define PLEAT_VMM_TENANTS_H

#include <pleat/base.h>
#include <stdbool.h>

#define PLEAT__TENANTS_MOST 128u /* D480 */
#define PLEAT__TENANT_NAME  32u

/* ---- a tenant ---- */

typedef struct pleat__tenant pleat__tenant;

typedef struct pleat__tenant_options {
    const char *group;     /* whose ledger: a group's name; NULL or "": the user's own */
    const char *device;    /* the device's own name (`identify`) */
    uint64_t device_bytes; /* as memory_info says */
    const char *name;      /* what people call it; NULL or "": the program's */
    uint64_t guarantee_bytes, cap_bytes; /* cap 0: the device */
    uint32_t priority;
} pleat__tenant_options;

PLEAT_NODISCARD pleat_result pleat__tenant_join(const pleat__tenant_options *options,
                                                pleat__tenant **out);
/* All that it has counts as given back. NULL is allowed, and does nothing in a forked child. */
void pleat__tenant_leave(pleat__tenant *tenant);
/* Before memory is made. PLEAT_E_BUDGET, and the text says whether its own cap or the others are in
 * the way. */
PLEAT_NODISCARD pleat_result pleat__tenant_claim(pleat__tenant *tenant, uint64_t bytes);
/* After memory was given back. */
void pleat__tenant_unclaim(pleat__tenant *tenant, uint64_t bytes);
/* The process may have more: its cap is raised, where nobody else has set it since it joined or was
 * raised last. A lower cap is the process's own to keep to: what it is guaranteed stays. By one
 * thread at a time. */
void pleat__tenant_raise(pleat__tenant *tenant, uint64_t cap_bytes);
/* So many bytes are asked for and not there; 0: none any more. */
void pleat__tenant_want(pleat__tenant *tenant, uint64_t bytes);
/* So many bytes that it claimed exist by now, or, a difference that wraps around, do no more. */
void pleat__tenant_count(pleat__tenant *tenant, uint64_t more);
/* What exists so of all tenants that this process has in the ledger. */
uint64_t pleat__tenant_process_bytes(const pleat__tenant *tenant);
/* What its process has beside what its tenants claimed (`other`: the context, libraries), of which
 * the first of these tenants speaks for all; and what it could give back now (`idle`), and has in
 * host memory. For the others and for people. */
void pleat__tenant_tell(pleat__tenant *tenant, uint64_t other_bytes, uint64_t idle_bytes,
                        uint64_t host_bytes);

/* How a tenant stands. */
typedef struct pleat__standing {
    uint64_t use_bytes, guarantee_bytes;
    uint64_t allowed_bytes; /* the most that it could have now: at least its guarantee or, where
                               others' other memory leaves less, that */
    uint64_t debt_bytes;    /* of what it has, so much is others' and wanted back */
    bool pressed;           /* somebody asks for more than there is */
    bool is_shared;         /* others have something */
    uint64_t reclaim;       /* changes when people ask for what is idle (pleat__tenants_reclaim) */
} pleat__standing;
void pleat__tenant_look(pleat__tenant *tenant, pleat__standing *out);
/* Grows with every change of anybody's wants: unchanged, there is nothing new to look at. */
uint64_t pleat__tenant_news(const pleat__tenant *tenant);

/* ---- for people: `pleat tenants` ---- */

typedef struct pleat__tenant_entry {
    uint64_t serial; /* names it for the calls below */
    uint64_t pid;    /* as it is numbered where it runs */
    uint32_t uid;
    char name[PLEAT__TENANT_NAME];
    uint32_t priority;
    uint64_t guarantee_bytes, cap_bytes, use_bytes, other_bytes, idle_bytes, want_bytes, host_bytes;
    bool alive, damaged;
} pleat__tenant_entry;

typedef struct pleat__tenants pleat__tenants;

/* The folder of the ledgers: PLEAT_TENANTS_DIR, or /dev/shm. */
const char *pleat__tenants_folder(void);
/* Whether a file in there is called like a ledger; its device and, "": the user's own, its group's
 * number. */
bool pleat__tenants_is_name(const char *file, char device[64], char group[16]);
PLEAT_NODISCARD pleat_result pleat__tenants_open(const char *file, pleat__tenants **out);
void pleat__tenants_close(pleat__tenants *tenants);
uint64_t pleat__tenants_device_bytes(const pleat__tenants *tenants);
/* A copy of all entries; how many. */
PLEAT_NODISCARD pleat_result pleat__tenants_list(pleat__tenants *tenants,
                                                 pleat__tenant_entry entries[PLEAT__TENANTS_MOST],
                                                 uint32_t *count);
/* NULL: as it is. PLEAT_E_NOT_FOUND; PLEAT_E_LIMIT: guarantees would not fit. */
PLEAT_NODISCARD pleat_result pleat__tenants_set(pleat__tenants *tenants, uint64_t serial,
                                                const uint64_t *guarantee_bytes,
                                                const uint64_t *cap_bytes,
                                                const uint32_t *priority);
/* Asks a tenant to give back what is idle. */
PLEAT_NODISCARD pleat_result pleat__tenants_reclaim(pleat__tenants *tenants, uint64_t serial);
/* Strikes out those that are dead; how many. Nobody needs to: who asks for memory does it too. */
PLEAT_NODISCARD pleat_result pleat__tenants_remove_dead(pleat__tenants *tenants, uint32_t *count);

#endif
