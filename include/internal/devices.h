/*
 * internal/devices.h: how many devices a machine has at most. Arrays of them have so many entries
 * (docs/decisions.md, D479).
 */
#ifndef PLEAT_INTERNAL_DEVICES_H
#define PLEAT_INTERNAL_DEVICES_H

#define PLEAT__DEVICES 64

#endif
