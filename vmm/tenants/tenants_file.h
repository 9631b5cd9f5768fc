/*
 * tenants_file.h: the ledger's file: its layout, whether it is trusted, its locks (see tenants.h).
 */
#ifndef PLEAT_VMM_TENANTS_FILE_H
#define PLEAT_VMM_TENANTS_FILE_H

#include <vmm/tenants/tenants.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* An entry; each word is written by itself. 256 bytes. */
typedef struct pleat__ledger_slot {
    _Atomic uint64_t serial; /* 0: nobody's; written last, and first when it ends */
    _Atomic uint64_t pid, uid;
    _Atomic uint64_t guarantee_bytes, cap_bytes, priority; /* anybody's to set */
    _Atomic uint64_t reclaim;
    _Atomic uint64_t use_bytes, other_bytes, idle_bytes, host_bytes, want_bytes, want_ns;
    _Atomic uint64_t name[PLEAT__TENANT_NAME / sizeof(uint64_t)]; /* its letters, as in memory */
    unsigned char spare[120];
} pleat__ledger_slot;

/* The whole file. */
typedef struct pleat__ledger_map {
    char magic[8];
    uint32_t version, slot_bytes;
    char device[64];
    _Atomic uint64_t device_bytes;
    _Atomic uint64_t serial; /* of the last tenant */
    _Atomic uint64_t news;   /* changes of wants and terms */
    unsigned char spare[3992];
    pleat__ledger_slot slots[PLEAT__TENANTS_MOST];
} pleat__ledger_map;

_Static_assert(sizeof(pleat__ledger_slot) == 256, "the file's layout");
_Static_assert(sizeof(pleat__ledger_map) == 4096 + 256 * PLEAT__TENANTS_MOST, "the file's layout");

/* A ledger that this process has open; once, however many tenants of it there are. */
typedef struct pleat__ledger_file {
    char path[512];
    int fd;
    dev_t device; /* and inode: which file it is, whatever its path */
    ino_t inode;
    uint32_t users;
    uint32_t process; /* that opened it: pleat__process_now() */
    pleat__ledger_map *map;
    pthread_mutex_t lock;            /* one thread of the process at a time has the file's lock */
    struct pleat__ledger_file *next; /* of the process's */
    _Atomic bool own[PLEAT__TENANTS_MOST]; /* entries of this process: its own locks it is not told
                                              of */
    _Atomic uint64_t physical;             /* bytes of their memory that exist */
} pleat__ledger_file;

/* The number of a group; -1: of no name (NULL or ""). PLEAT_E_INVALID: there is none. */
PLEAT_NODISCARD pleat_result pleat__ledger_group(const char *name, long *group);
/* The ledger of a device for the user or a group; made where there is none. */
PLEAT_NODISCARD pleat_result pleat__ledger_open(const pleat__tenant_options *options,
                                                pleat__ledger_file **out);
/* One that is there, by its name in the folder. */
PLEAT_NODISCARD pleat_result pleat__ledger_open_named(const char *name, pleat__ledger_file **out);
void pleat__ledger_close(pleat__ledger_file *file);
/* What the device has: what the ledger says or, where that is less or makes no sense, `seen`. */
uint64_t pleat__ledger_bytes(pleat__ledger_file *file, uint64_t seen);

/* The ledger's lock, for those who join and for terms, some microseconds at a time.
 * PLEAT_E_NOT_READY, which names the process that has it: it was not to be had for two seconds. */
PLEAT_NODISCARD pleat_result pleat__ledger_lock(pleat__ledger_file *file);
void pleat__ledger_unlock(pleat__ledger_file *file);

/* An entry's byte becomes this process's; false: it is another one's. It ends with the process, or
 * by die, and by nothing that else opens or closes the file. With the ledger's lock. */
bool pleat__ledger_live(pleat__ledger_file *file, uint32_t slot);
void pleat__ledger_die(pleat__ledger_file *file, uint32_t slot);
bool pleat__ledger_is_alive(const pleat__ledger_file *file, uint32_t slot);
/* A copy of an entry's numbers, checked each by itself, as others may change them meanwhile; false:
 * it is nobody's. `alive` and the name are not set. Takes no lock. */
bool pleat__ledger_read(const pleat__ledger_file *file, uint32_t slot, uint64_t device_bytes,
                        pleat__tenant_entry *entry);
/* Its name, or "?" and false. Takes no lock: a name that is being written may be read as parts of
 * two. */
bool pleat__ledger_read_name(const pleat__ledger_file *file, uint32_t slot,
                             char name[PLEAT__TENANT_NAME]);
/* Strikes out an entry whose tenant is dead; whether it did. Takes no lock: of several who find it
 * one strikes it out, and whoever has the entry by then is another one. */
bool pleat__ledger_bury(pleat__ledger_file *file, uint32_t slot);

#endif
